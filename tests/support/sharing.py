"""Several daemons that share a place, and what tests of shared sandboxes do with them over and over."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from tests.conftest import RunningDaemon
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.snapshots import sh

from sandkeep.errors import SandkeepError

ID = "sandbox-1f2e"


def of_directory(root: Path) -> dict[str, str]:
    """Settings of daemons that share directories."""
    settings = {
        "SANDBOX_LOCK_MOUNT_PATH": "locks", "SANDBOX_METADATA_MOUNT_PATH": "metadata",
        "SANDBOX_CHECKPOINT_MOUNT_PATH": "checkpoints", "FILESYSTEM_SNAPSHOT_MOUNT_PATH": "snapshots",
    }  # fmt: skip
    for name in settings.values():
        (root / name).mkdir(mode=0o700)
    return {setting: str(root / name) for setting, name in settings.items()}


def of_gcs(bucket: str) -> dict[str, str]:
    """Settings of daemons that share a bucket of GCS."""
    names = (
        "SANDBOX_LOCK_BUCKET",
        "SANDBOX_METADATA_BUCKET",
        "SANDBOX_CHECKPOINT_BUCKET",
        "FILESYSTEM_SNAPSHOT_BUCKET",
    )
    return dict.fromkeys(names, bucket)


class Cluster:
    """Daemons that share a place. The first has an image."""

    def __init__(
        self, make: Callable[[], RunningDaemon], count: int, settings: Mapping[str, str], source: Path | str,
        provider: str = "local",
    ) -> None:  # fmt: skip
        self.daemons = [make() for _ in range(count)]
        self.source, self.provider = source, provider
        for daemon in self.daemons:
            daemon.env |= {"SANDKEEP_STREAM": "tls://127.0.0.1:0", "SANDKEEP_HANDOVER_STOP": "0", **settings}
        self.token = ""
        self.image = ""

    def start(self) -> None:
        for daemon in self.daemons:
            daemon.start()
        with self.daemons[0].connect() as client:
            self.image = client.image.create(str(self.source), provider=self.provider).image_id

    def create(self, at: int = 0, **options: Any) -> Any:
        """Make the shared sandbox, and return it."""
        with self.daemons[at].connect() as client:
            made = client.sandbox.create(self.image, gcs_sandbox_id=ID, **{"enable_handoff": True, **options})
        self.token = made.sandbox_token or self.token
        return made

    def attach(self, at: int, *, patience_s: float = patient(10.0), **options: Any) -> Any:
        with self.daemons[at].connect(patience_s=patience_s) as client:
            return client.sandbox.attach_shared(ID, options.pop("token", self.token), **options)

    def attach_next(self, at: int, **options: Any) -> Any:
        """Attach it, by several attempts if need be. The entry as a waiter of an earlier one may have to expire: if the
        lock changes at that moment, its daemon does not take it away. And where a daemon has less than the product's
        patience with a service, a busy machine may need more.
        """

        def attached() -> Any:
            try:
                return self.attach(at, **options)
            except SandkeepError as error:
                if error.code != "provider_unavailable" and not error.data.get("waiting"):
                    raise
                return None

        return until(attached, patient(120))

    def rob(self, at: int) -> None:
        """Have a daemon attach it after its lock was freed by force.

        The daemon waits for the lock already, so that the owner cannot take it again first.
        """
        with ThreadPoolExecutor(1) as pool:
            attaching = pool.submit(self.attach, at, timeout_s=patient(120))
            lock = Path(self.daemons[at].env["SANDBOX_LOCK_MOUNT_PATH"], "sandboxes", ID, "lock.json")
            until(lambda: msgspec.json.decode(lock.read_bytes()).get("waitingOwnerId"))
            freed = self.daemons[at].cli("lock", "release", ID, "--force")
            attaching.result(patient(180))
        assert freed.returncode == 0, freed

    def sh(self, at: int, script: str, sandbox: str = ID) -> str:
        """Return what a script prints in the sandbox of a daemon."""
        with self.daemons[at].connect() as client:
            return sh(client, sandbox, script)

    def get(self, at: int, sandbox_id: str = ID) -> Any:
        with self.daemons[at].connect() as client:
            return client.sandbox.get(sandbox_id)

    def history(self, at: int, sandbox_id: str = ID) -> list[str]:
        """Return the types of the events of a sandbox."""
        with self.daemons[at].connect() as client:
            return [event.type for event in client.sandbox.history(sandbox_id).events]

    def standing(self) -> list[int]:
        """Return the daemons at which the sandbox runs."""
        found = []
        for at, daemon in enumerate(self.daemons):
            if daemon.process is not None:
                with daemon.connect() as client:
                    found += [at for one in client.sandbox.list().sandboxes if one.status == "running"]
        return found


def metadata(directory: str) -> Any:
    """Return the shared document of a directory."""
    return msgspec.json.decode(Path(directory, "sandboxes", ID, "sandkeep.json").read_bytes())
