"""What all tests share: engines that a test needs, a real daemon, and the check that nothing of it stays behind.

Rules for tests: temporary directories only; an engine that is absent skips with its reason, and fails where
SANDKEEP_REQUIRE names it; no sleeps for order; whatever was started is gone at the end of the session.
"""

import contextlib
import ctypes
import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from tests.sources import repositories
from tests.support import localstack, order, template
from tests.support.patience import patient

from sandkeep.demo import traces
from sandkeep.system.trees import remove_tree

if TYPE_CHECKING:
    from tests.support.boxes import Box
    from tests.support.gcs import GcsEmulator
    from tests.support.s3 import S3Server

DAEMON = [sys.executable, "-m", "sandkeepd.main"]
START_S = patient(60.0)
NO_STATE_DIR = "/proc/sandkeep-tests-name-their-own"
SHOWN_CHARACTERS = 8000
"""So much of the end of a daemon's log is shown with a failure."""

# How long an example takes, or its making, is the machine's.
hypothesis.settings.register_profile("sandkeep", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("sandkeep")

# -- engines ----------------------------------------------------------------------------------------------------------


def _program(*names: str) -> Callable[[], str | None]:
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = f"{' or '.join(names)} is not installed"
    return lambda: None if any(shutil.which(name, path=path) for name in names) else missing


def _modules(*names: str) -> Callable[[], str | None]:
    def look() -> str | None:
        for name in names:
            try:
                if importlib.util.find_spec(name) is None:
                    return f"{name} is not installed"
            except ModuleNotFoundError:
                return f"{name} is not installed"
        return None

    return look


def _root_alone(what: str) -> str | None:
    return None if os.geteuid() == 0 else f"only root can {what}"


def _freezer() -> str | None:
    from sandkeepd.host.cgroups.groups import Hierarchies

    return None if Hierarchies().can_freeze() else "there is no writable freezer control group"


ENGINES: dict[str, Callable[[], str | None]] = {
    "bwrap": _program("bwrap"),
    "tmux": _program("tmux"),
    "docker": lambda: _program("dockerd")() or _root_alone("start a Docker engine"),
    "registry": _program("docker-registry"),
    "runsc": _program("runsc"),
    "bsdtar": _program("bsdtar"),
    "busybox": _program("busybox"),
    "systemd": _program("systemd-analyze"),
    "freezer": _freezer,
    "zsh": _program("zsh"),
    "fish": _program("fish"),
    "socat": _program("socat"),
    "nc": _program("nc.openbsd"),  # the other netcat reaches no Unix sockets
    "curl": _program("curl"),
    "node": _program("node"),
    "groff": _program("groff"),
    "mandoc": _program("mandoc"),
    "cc": _program("cc"),
    "root": lambda: _root_alone("become other users"),
    "gcs": _modules("google.cloud.storage", "gcp_storage_emulator"),
    "s3": _modules("boto3", "moto.server", "flask"),
    "localstack": lambda: localstack.why_absent(),
    "modal": _modules("modal"),
    **repositories.ENGINES,
}
"""Why an engine cannot be had here, or None when it can."""


def pytest_configure() -> None:
    """Give what tests start the signals' defaults, also where pytest itself was started to ignore them; and have no
    test keep anything where a daemon of this machine's does, or sweep there.

    The shell has background jobs ignore SIGINT and SIGQUIT, and `nohup` SIGHUP. A handler of ours is reset by exec, an
    ignored signal is not; and as this one does nothing, a run under `nohup` still survives its terminal.
    """
    gc.disable()  # what is collected stays; see `pytest_collection_finish`
    os.environ["SANDKEEP_STATE_DIR"] = NO_STATE_DIR
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    for number, default in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, default)


def pytest_runtest_setup(item: pytest.Item) -> None:
    required = os.environ.get("SANDKEEP_REQUIRE", "").replace(",", " ").split()
    for engine in (name for marker in item.iter_markers("needs") for name in marker.args):
        why = ENGINES[engine]()
        if why and engine in required:
            pytest.fail(f"{why}, and SANDKEEP_REQUIRE names {engine}", pytrace=False)
        if why:
            pytest.skip(why)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Have each of several processes begin with other files."""
    report = yield
    if isinstance(collector, pytest.Directory) and hasattr(collector.config, "workerinput"):
        report.result = order.rotated(report.result or [], collector.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Soaking is asked for by name: `pytest -m soak`. Of several processes, each begins with the longest file left."""
    if hasattr(config, "workerinput"):
        items[:] = order.by_file(items)  # before pytest groups them by their parameters
    yield
    if "soak" not in (config.option.markexpr or ""):
        deep = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=deep)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    if hasattr(config, "workerinput"):
        items[:] = order.longest_first(items)


def pytest_collection_finish() -> None:
    """Leave the collected tests, a quarter of a million objects that stay, out of every later collection of garbage."""
    _freeze()
    gc.enable()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Tell how a process that runs tests ended before its time: xdist says only that it did."""
    if error:
        process: subprocess.Popen[bytes] = node.gateway._io.popen
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patient(10))
        memory = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()[2]
        sys.stderr.write(f"\n{node.gateway.id} ended with {process.returncode} (negative: a signal); {memory}\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with a failure what the test's daemon said, and how it ended if it has."""
    report = yield
    for daemon in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(daemon, RunningDaemon) and os.path.exists(daemon.log):
            code = daemon.process.poll() if daemon.process is not None else "ended"
            report.sections.append((f"daemon of {daemon.root}, exit code {code}", daemon.said()[-SHOWN_CHARACTERS:]))
    return report


# -- buckets ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def gcs() -> "Iterator[GcsEmulator]":
    """A GCS service for all tests. Ask for `gcs_bucket` too: every test has one of its own."""
    from tests.support.gcs import GcsEmulator

    with GcsEmulator() as service:
        _freeze()
        yield service


@pytest.fixture
def gcs_bucket(gcs: "GcsEmulator", monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, at the service that this process and daemons of the test find by their settings."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
    return gcs.create_bucket(f"test-{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def s3() -> "Iterator[S3Server]":
    """An S3 service for all tests. Ask for `s3_bucket` too: every test has one of its own."""
    from tests.support.s3 import S3Server

    with S3Server() as service:
        service.client()
        _freeze()  # the SDK's models of services are a hundred thousand objects
        yield service


@pytest.fixture
def s3_bucket(s3: "S3Server", monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, at the service that this process and daemons of the test find by their settings."""
    return _bucket_of(s3, monkeypatch)


def _bucket_of(service: "S3Server | localstack.LocalStack", monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in service.environ.items():
        monkeypatch.setenv(name, value)
    return service.create_bucket(f"test-{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def localstack_s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[localstack.LocalStack]":
    """LocalStack's S3 for all tests. Ask for `localstack_bucket` too: every test has one of its own."""
    with localstack.LocalStack(tmp_path_factory.mktemp("localstack")) as service:
        service.client()
        _freeze()
        yield service


@pytest.fixture
def localstack_bucket(localstack_s3: "localstack.LocalStack", monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket, at the service that this process and daemons of the test find by their settings."""
    return _bucket_of(localstack_s3, monkeypatch)


# -- a place for daemons ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No process of a test's temporary directory, and no mount of one, outlives the tests."""
    root = str(tmp_path_factory.getbasetemp())
    yield
    left = _clear_traces(root)
    assert left == [], f"the tests left behind: {left}"


@pytest.fixture(scope="module", autouse=True)
def garbage_is_collected() -> Iterator[None]:
    """Collect what a file of tests left open, so that the warning of it is an error of that file, and not of a later
    one at whose turn memory happens to be tidied up. And give back the memory of its threads, which allocate by arenas
    of their own: without that a process grows to 1.7 GB, of which every fork copies the tables.
    """
    yield
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _clear_traces(root: str) -> list[str]:
    """End what is left of a place after a moment, so that the next run does not meet it; answer what that was."""
    left = traces.remaining(root)
    for path in traces.mounts(root):
        subprocess.run(["umount", "--lazy", path], check=False)
    for pid in traces.processes(root):
        os.kill(pid, signal.SIGKILL)
    return left


@pytest.fixture(scope="session")
def places() -> Iterator[str]:
    """Where daemons of tests live: a short path, as sockets need. Nothing of it may stay when all tests are through,
    and the place where it was is as it was.
    """
    above = os.stat(tempfile.gettempdir()).st_mode
    root = tempfile.mkdtemp(prefix="skt-")
    os.chmod(root, 0o711)
    yield root
    left = _clear_traces(root)
    remove_tree(root)
    assert left == [], f"the tests left behind: {left}"
    assert oct(os.stat(tempfile.gettempdir()).st_mode) == oct(above), "the directory of all temporary files has changed"


def _environment() -> dict[str, str]:
    """Copy our variables, also in a thread while pytest changes the one that names the test."""
    while True:
        with contextlib.suppress(KeyError, RuntimeError):
            return {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}


class RunningDaemon:
    """A real `sandkeepd` on a state directory of its own, which a test may stop, kill and start again."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.state_dir = os.path.join(root, "state")
        self.socket = os.path.join(root, "sock")
        self.log = os.path.join(root, "daemon.log")
        ours = {"SANDKEEP_STATE_DIR": self.state_dir, "SANDKEEP_SOCKET": self.socket}
        self.env = {**_environment(), **ours, "MODAL_CONFIG_PATH": "/nonexistent"}  # nobody's account is charged
        self.command = [sys.executable, "-m", "sandkeep.cli"]
        self.program = DAEMON
        self.process: subprocess.Popen[bytes] | template.Forked | None = None
        self._stopped = False
        """In good order, so that nothing is left to sweep."""

    def start(self, **environment: str) -> None:
        """Start it and return when it answers."""
        env = {**self.env, **environment}
        self._stopped = False
        with open(self.log, "ab") as log:
            if template.can_start(self.program, env):
                self.process = template.start(self.program, log.fileno(), log.fileno(), env)
            else:
                self.process = subprocess.Popen(
                    self.program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
                )
        self._wait_until_it_answers(self.process)

    def _wait_until_it_answers(self, process: subprocess.Popen[bytes] | template.Forked) -> None:
        from sandkeep.errors import SandkeepError

        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with self.connect(patience_s=0) as client:
                    client.daemon.ping()
            except SandkeepError:
                time.sleep(0.01)
            else:
                return
        raise RuntimeError(f"the daemon did not start:\n{self.said()}")

    def said(self) -> str:
        """The daemon's own log."""
        with open(self.log, errors="replace") as log:
            return log.read()

    def connect(self, **options: Any) -> Any:
        """A blocking client."""
        from sandkeep.blocking import connect

        return connect(self.socket, **options)

    def stop(self) -> int:
        """Stop it in good order; sandboxes go on."""
        return self.end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill it; sandboxes go on."""
        return self.end(signal.SIGKILL)

    def end(self, number: int) -> int:
        """Send it a signal that ends it; sandboxes go on."""
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        code = process.wait(patient(60))
        self._stopped = code == 0
        return code

    def cli(self, *words: str, env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[bytes]:
        """Run `sandkeep WORDS` against it, to its end."""
        command, env = [*self.command, *words], {**self.env, **(env or {})}
        if not options and template.can_start(command, env):
            return template.run(command, env, patient(120))
        options = {"capture_output": True, "timeout": patient(120), **options}
        if "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        return subprocess.run(command, env=env, **options)

    def clear(self) -> None:
        """End every sandbox, and the daemon. One that was stopped is started only for sandboxes that it left."""
        if self.process is None and os.path.isdir(self.state_dir) and not (self._stopped and self._has_no_sandboxes()):
            self.start()
        if self.process is None:
            return
        if self.process.poll() is None:
            with self.connect() as client:
                for sandbox in client.sandbox.list().sandboxes:
                    client.sandbox.terminate(sandbox.sandbox_id)
        self.stop()

    def _has_no_sandboxes(self) -> bool:
        """Look in the log, which takes a tenth of a start."""
        from sandkeep.errors import SandkeepError
        from sandkeep_store.upkeep import offline

        try:
            with contextlib.closing(offline.open_log(self.state_dir)) as log:
                return all(sandbox.hidden for sandbox in offline.fold(log).sandboxes.values())
        except SandkeepError:
            return False


@contextlib.contextmanager
def daemon_in(places: str, **environment: str) -> Iterator[RunningDaemon]:
    """A daemon with a directory of its own, not started yet. It ends with the block, and so do its sandboxes."""
    daemon = RunningDaemon(tempfile.mkdtemp(dir=places))
    os.chmod(daemon.root, 0o711)
    daemon.env |= environment
    try:
        yield daemon
    finally:
        daemon.clear()


@pytest.fixture
def new_daemon(places: str) -> Iterator[Callable[[], RunningDaemon]]:
    """Makes daemons that are not started yet, and clears them when the test is through."""
    with contextlib.ExitStack() as daemons:
        yield lambda: daemons.enter_context(daemon_in(places))


@pytest.fixture(scope="module")
def module_daemons(places: str) -> Iterator[Callable[[], RunningDaemon]]:
    """The same, for all tests of a file."""
    with contextlib.ExitStack() as daemons:
        yield lambda: daemons.enter_context(daemon_in(places))


@pytest.fixture
def running_daemon(new_daemon: Callable[[], RunningDaemon]) -> RunningDaemon:
    """A real daemon that answers, for one test."""
    daemon = new_daemon()
    daemon.start()
    return daemon


@pytest.fixture(scope="module")
def shared_daemon(request: pytest.FixtureRequest, places: str) -> Iterator[RunningDaemon]:
    """A real daemon that answers, for all tests of a file; they may not stop it. It has the file's `SETTINGS`."""
    with daemon_in(places, **getattr(request.module, "SETTINGS", {})) as daemon:
        daemon.start()
        yield daemon


@pytest.fixture(scope="module")
def client(shared_daemon: RunningDaemon) -> Iterator[Any]:
    """A blocking client of the daemon of a file."""
    with shared_daemon.connect() as client:
        yield client


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of a file: of an empty directory, unless the file has another."""
    return str(client.image.create(str(tmp_path_factory.mktemp("empty"))).image_id)


@pytest.fixture
def box(client: Any, image: str) -> Iterator[str]:
    """The id of a sandbox of that image, for one test."""
    sandbox_id = client.sandbox.create(image).sandbox_id
    yield sandbox_id
    client.sandbox.terminate(sandbox_id)


@pytest.fixture(scope="module")
def shared_box(shared_daemon: RunningDaemon, image: str) -> "Iterator[Box]":
    """A sandbox of that image, for all tests of a file."""
    from tests.support.boxes import new_box

    with new_box(shared_daemon, image) as made:
        yield made


@pytest.fixture
def new_service(places: str) -> Iterator[Callable[[], Any]]:
    """Makes daemons as a service manager has them; see `tests.support.service`."""
    from tests.support.service import Service

    made: list[Service] = []

    def make() -> Service:
        root = tempfile.mkdtemp(dir=places)
        os.chmod(root, 0o711)
        made.append(Service(root))
        return made[-1]

    yield make
    for service in made:
        service.close()


# -- a cluster --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[Any]:
    """Our double of a Kubernetes cluster, with real containers, or the one that ``SANDKEEP_CLUSTER`` names. Tests mark
    themselves with ``needs("root")``.
    """
    from tests.support.kubernetes import live

    if live.is_wanted():
        yield live.LiveCluster()
        return
    from tests.support.kubernetes.cluster import start_cluster
    from tests.support.kubernetes.images import with_images

    with with_images(start_cluster, "skt-cluster-") as (_, cluster):
        yield cluster


@pytest.fixture(scope="session")
def modal() -> Iterator[Any]:
    """Our double of Modal's service, with sandboxes that really run. Tests mark themselves with ``needs("root")`` and
    ``needs("modal")``.
    """
    from tests.support.kubernetes.images import with_images
    from tests.support.modal.service import start_modal

    with with_images(start_modal, "skt-modal-") as (_, service):
        yield service


# -- a Docker engine --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Any]:
    """A Docker engine of the tests' own, with `live-restore`. Tests mark themselves with ``needs("docker")``."""
    from tests.support.engine import PrivateEngine

    engine = PrivateEngine(tempfile.mkdtemp(prefix="skt-engine-"))
    engine.start()
    try:
        yield engine
    finally:
        engine.clear()
