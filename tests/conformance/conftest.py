"""One suite over every provider: each test gets a `world` of each kind that can be had here."""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from examples.plain_provider import open_plain
from tests.support.fake_provider import open_fake
from tests.support.kubernetes import live as live_cluster
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import TOOLS
from tests.support.modal import live
from tests.support.modal.accounts import account_at, leaving_no_descriptors

from sandkeep.ids import IMAGE, PROCESS, SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeep_store.archives.trees.pack import pack
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.images import ImageRequest
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.contract.processes import Exit, Launch
from sandkeepd.contract.provider import Provider
from sandkeepd.providers.common.inside import INSIDE
from sandkeepd.providers.docker.engine import Engine
from sandkeepd.providers.docker.provider import open_docker
from sandkeepd.providers.gvisor.provider import open_gvisor
from sandkeepd.providers.kubernetes import manifests
from sandkeepd.providers.kubernetes.cluster import Cluster
from sandkeepd.providers.kubernetes.provider import open_kubernetes
from sandkeepd.providers.local import strays
from sandkeepd.providers.local.provider import open_local
from sandkeepd.providers.modal.provider import open_modal
from sandkeepd.providers.modal.sandbox import DIRECTORY as MODAL_DIRECTORY
from sandkeepd.providers.modal.sdk import Account

UID_BASE = 1_900_000_000

KUBERNETES = pytest.param("kubernetes", marks=pytest.mark.needs("root"))
MODAL = pytest.param("modal", marks=[pytest.mark.needs("root"), pytest.mark.needs("modal")])
KINDS = (
    "plain", "local", "none", pytest.param("docker", marks=pytest.mark.needs("docker")),
    pytest.param("gvisor", marks=pytest.mark.needs("runsc")), KUBERNETES, MODAL,
)  # fmt: skip

MISSING: dict[str, dict[str, Any]] = {
    "docker": {"docker_image_id": f"sha256:{'0a' * 32}"},
    "kubernetes": {"image": "no-such-image:latest"},
    "modal": {"modal_image_id": "im-NoSuchImageAtAll00000"},
}
"""The details of an image that is not there, where there are any."""

ELSEWHERE = {"kubernetes": manifests.DIRECTORY, "modal": MODAL_DIRECTORY}
"""The directory of the keeper inside, by the kind of sandboxes that share none with the daemon."""

NAMESPACE = "conformance"
SNAPSHOTS = "podsnapshot.gke.io"
POLICY = {
    "apiVersion": f"{SNAPSHOTS}/v1", "kind": "PodSnapshotPolicy", "metadata": {"name": NAMESPACE},
    "spec": {
        "storageConfigName": NAMESPACE, "triggerConfig": {"type": "manual", "postCheckpoint": "resume"},
        "selector": {"matchExpressions": [{"key": "sandbox.users.io/sandkeep-sandbox", "operator": "Exists"}]},
        "snapshotGroupingRules": {"groupByLabelValue": {"labels": ["sandbox.users.io/sandkeep-sandbox"]}},
    },
}  # fmt: skip
STORAGE = {
    "apiVersion": f"{SNAPSHOTS}/v1", "kind": "PodSnapshotStorageConfig", "metadata": {"name": NAMESPACE},
    "spec": {"snapshotStorageConfig": {"gcs": {"bucket": "b", "path": "p"}}},
}  # fmt: skip


async def no_progress(sentence: str) -> None:
    assert sentence


class World:
    """A provider with an image of `source`, and what tests do over and over.

    With `shared`, the image is one that an earlier world left in the engine, if it is still there: making it takes
    longer than most tests. It belongs to that world's log, so they have that in common, too.
    """

    def __init__(
        self,
        kind: str,
        state: Path,
        source: Path,
        engine: Any = None,
        socket: str | None = None,
        *,
        shared: bool = False,
        kubeconfig: str | None = None,
        account: Account | None = None,
    ) -> None:
        self.account = account
        self.kubeconfig = kubeconfig
        self.files: dict[str, Any] = {}
        self.shared = shared and engine is not None
        self.engine = engine
        self.socket = engine.socket if engine is not None else socket
        self.kind = kind
        self.state = state
        self.source = source
        self.image_id = new_id(IMAGE)
        self.log_id = new_id("log")
        self.provider: Provider
        self.details: dict[str, Any] = {}
        if self.shared and (left := self.engine.left_image()):
            self.image_id, self.log_id, self.details = left
        self.plans: dict[str, dict[str, Any]] = {}
        self.handles: dict[str, dict[str, Any]] = {}
        uid = os.geteuid()
        # Without isolation the code runs as its caller, who must not be root for that to be worth a test.
        self.caller = Caller(uid=40_000, gid=40_000) if uid == 0 else Caller(uid=uid, gid=os.getegid())

    @property
    def images(self) -> list[str]:
        """The images that the provider holds: of a cluster none, as its nodes have them."""
        return [] if self.is_elsewhere else [self.image_id]

    @property
    def is_elsewhere(self) -> bool:
        """True if the sandboxes share no directory with the daemon, which has a mirror of its own."""
        return self.kind in ELSEWHERE

    @property
    def inside(self) -> str:
        """The directory, inside, that the keeper shares with the daemon."""
        return ELSEWHERE.get(self.kind, INSIDE)

    async def open(self, stack: AsyncExitStack) -> None:
        if self.kind == "docker":
            opened = open_docker(str(self.state), disk_limit=1 << 30, log_id=self.log_id, engine=Engine(self.socket))
            self.provider = await stack.enter_async_context(opened)
        elif self.kind == "gvisor":
            opened = open_gvisor(str(self.state), uid_base=UID_BASE, disk_limit=1 << 30, log_id=self.log_id)
            self.provider = await stack.enter_async_context(opened)
        elif self.kind == "kubernetes":
            way = Cluster(self.kubeconfig)
            opened = open_kubernetes(str(self.state), log_id=self.log_id, cluster=way)
            self.provider = await stack.enter_async_context(opened)
        elif self.kind == "modal":
            opened = open_modal(str(self.state), log_id=self.log_id, account=self.account)
            self.provider = await stack.enter_async_context(opened)
        elif self.kind in ("plain", "fake"):
            opened = (open_plain if self.kind == "plain" else open_fake)(str(self.state), self.log_id)
            self.provider = await stack.enter_async_context(opened)
        else:
            opened = open_local(str(self.state), uid_base=UID_BASE, disk_limit=1 << 30, log_id=self.log_id)
            self.provider = await stack.enter_async_context(opened)

    async def import_image(self) -> None:
        """Make the image of `source`, unless there is one."""
        if self.details:
            return
        if self.kubeconfig is not None:
            await self._fill_workspaces()
            return
        caller = Caller(uid=os.geteuid(), gid=os.getegid())
        base = TOOLS if self.kind == "modal" else None if self.engine is None else self.engine.guest()
        wanted = ImageRequest(kind="directory", source=str(self.source), base=base, published=None)
        if self.account is not None and live.is_wanted():
            wanted = live.image_of(self.source)
        made = await self.provider.images.make(self.image_id, wanted, caller, no_progress)
        self.details = made.details
        if self.shared:
            self.engine.leave_image(self.image_id, self.log_id, self.details)

    async def _fill_workspaces(self) -> None:
        """Have the files of `source` in all workspaces: the image is a reference."""
        wanted = ImageRequest(kind="reference", source=TOOLS, published=None)
        self.details = (await self.provider.images.make(self.image_id, wanted, self.caller, no_progress)).details
        layers = self.provider.layers
        assert layers is not None
        with tempfile.TemporaryFile() as file:
            directory = os.open(self.source, os.O_RDONLY | os.O_DIRECTORY)
            made = pack(directory, file.fileno(), codec="none")
            os.close(directory)
            archive = KeptArchive(descriptor=file.fileno(), sha256=made.sha256, limits=made.limits)
            await layers.fill("source", archive, no_progress)
        self.files = await layers.files_of_layers(["source"], self.image_id)

    def plan(self, sandbox_id: str, image_id: str | None = None, **fields: Any) -> dict[str, Any]:
        """The plan of a sandbox, as if there were no other."""
        taken: list[dict[str, Any]] = fields.pop("taken", [])
        image_id = image_id or self.image_id
        spec, details = self.spec(**fields), self.details
        if image_id != self.image_id and details:
            details = {**details, **MISSING[self.kind]}
        plan = self.provider.plan(sandbox_id, image_id, spec, self.caller, taken, details=details, owner="uid:0")
        return {**plan, **self.files}

    def spec(self, **fields: Any) -> SandboxSpec:
        return SandboxSpec(**{"isolation": "none" if self.kind == "none" else "default", **fields})

    async def sandbox(self, secrets: Mapping[str, str] | None = None, **fields: Any) -> Instance:
        sandbox_id = new_id(SANDBOX)
        plan = self.plan(sandbox_id, taken=list(self.plans.values()), **fields)
        self.plans[sandbox_id] = plan
        instance = await self.provider.create(sandbox_id, self.image_id, self.spec(**fields), secrets or {}, plan)
        self.handles[sandbox_id] = instance.handle
        return instance

    async def measured(self, disk_bytes: int) -> Instance:
        """A sandbox with the provider's own disk limit, which is that now: its usage is measured."""
        vars(self.provider).pop("_planner", None)
        self.provider._disk_limit = disk_bytes  # type: ignore[attr-defined]
        return await self.sandbox()

    async def terminate(self, sandbox_id: str) -> None:
        await self.provider.terminate(sandbox_id, self.plans[sandbox_id], self.handles.get(sandbox_id, {}))
        await self.provider.cleared(sandbox_id)

    async def close(self) -> None:
        for sandbox_id in self.plans:
            await self.terminate(sandbox_id)
        if self.kind == "docker" and not (self.shared and self.engine.has_left(self.image_id)):
            await self.provider.images.remove(self.image_id)  # its engine outlives the test


def directory(source: Path) -> ImageRequest:
    """A request for an image of a plain directory."""
    return ImageRequest(kind="directory", source=str(source))


async def start(instance: Instance, *command: str, **fields: Any) -> str:
    """Start a process and answer its id."""
    process_id = new_id(PROCESS)
    await instance.launch(Launch(process_id=process_id, command=command, **fields))
    return process_id


async def run(instance: Instance, *command: str, **fields: Any) -> tuple[int | None, bytes, bytes]:
    """Run a process to its end: exit code, stdout, stderr."""
    process_id = await start(instance, *command, **fields)
    how: Exit = await instance.wait(process_id)
    stdout, stderr = (instance.read(process_id, stream, 0, 1 << 24).data for stream in ("stdout", "stderr"))
    return how.exit_code, stdout, stderr


async def sh(instance: Instance, script: str, **fields: Any) -> str:
    """Run a script that succeeds, and answer what it printed."""
    code, stdout, stderr = await run(instance, "sh", "-c", script, **fields)
    assert code == 0, (code, stdout, stderr)
    return stdout.decode()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    (directory / "sub").mkdir(parents=True)
    (directory / "file").write_text("from the image\n")
    (directory / "sub" / "inner").write_text("inner\n")
    (directory / "link").symlink_to("file")
    for path in (tmp_path, *tmp_path.parents):
        if path.name.startswith(("pytest-", "popen-", "test_")) and path.stat().st_uid == os.geteuid():
            path.chmod(0o755)  # another uid imports it
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="session")
def namespace(kubernetes: Any) -> str:
    """The kubeconfig of a namespace in our double of a cluster, in which pods can be saved, or of a real one."""
    if live_cluster.is_wanted():
        return str(kubernetes.kubeconfig)
    clients = Clients(kubernetes)
    clients.core.create_namespace({"metadata": {"name": NAMESPACE}})
    clients.custom.create_cluster_custom_object(SNAPSHOTS, "v1", "podsnapshotstorageconfigs", STORAGE)
    clients.custom.create_namespaced_custom_object(SNAPSHOTS, "v1", NAMESPACE, "podsnapshotpolicies", POLICY)
    path = kubernetes.directory / f"kubeconfig-{NAMESPACE}"
    return str(kubernetes.write_kubeconfig(path, kubernetes.token, NAMESPACE))


@pytest.fixture(scope="session")
def account(request: pytest.FixtureRequest) -> Account:
    """An account at our double of Modal; with ``SANDKEEP_LIVE_MODAL=1`` the real one, of the SDK's own settings."""
    return Account() if live.is_wanted() else account_at(request.getfixturevalue("modal"))


@pytest.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path, source: Path) -> AsyncIterator[World]:
    if request.param == "local" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is missing")
    engine = request.getfixturevalue("dockerd") if request.param == "docker" else None
    kubeconfig = request.getfixturevalue("namespace") if request.param == "kubernetes" else None
    account = request.getfixturevalue("account") if request.param == "modal" else None
    made = World(request.param, tmp_path / "state", source, engine, shared=True, kubeconfig=kubeconfig, account=account)
    async with AsyncExitStack() as stack:
        if made.account is not None:
            stack.enter_context(leaving_no_descriptors())
        await made.open(stack)
        await made.import_image()
        try:
            yield made
        finally:
            await made.close()


@pytest.fixture(autouse=True)
def everything_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all that is found of other logs told, however much of it the machine has."""
    monkeypatch.setattr(strays, "MOST_REPORTED", 1 << 20)
