"""Handlers of the methods in `sandkeep.protocol.methods`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sandkeep.errors import CallerError
from sandkeep.model import Empty, Sandbox
from sandkeep.protocol.methods import SandboxRestore
from sandkeepd.api.dispatch import Dispatch, HandleNow
from sandkeepd.app.file_services import SnapshotServices
from sandkeepd.app.status import Software
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Command, Handle, eventless_command
from sandkeepd.eventlog.history import History
from sandkeepd.eventlog.retention import Retention
from sandkeepd.eventlog.verify import Verification
from sandkeepd.http.keys import Keys
from sandkeepd.sandboxes.default_provider import ProviderChooser
from sandkeepd.sandboxes.files import Files
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.prune import Prune
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sandboxes.stats import Stats
from sandkeepd.sessions.sessions import Sessions
from sandkeepd.sharing.sharing import Sharing
from sandkeepd.stream.access import Access

__all__ = ["Dispatch", "dispatch"]


def dispatch(
    core: Core,
    images: Images,
    sandboxes: Sandboxes,
    processes: Processes,
    software: Software,
    access: Access,
    retention: Retention,
    prune: Prune,
    services: SnapshotServices,
    sharing: Sharing,
    sessions: Sessions,
    keys: Keys,
) -> Dispatch:
    """The daemon's handler of calls."""
    history, upkeep, files = (
        History(core),
        Verification(core, software.state_dir),
        Files(core, sandboxes.runtimes),
    )
    choosing, locking = ProviderChooser(core), sharing.locks
    handlers: dict[str, Handle] = {
        "daemon.capabilities": software.capabilities,
        "daemon.shutdown": software.shutdown,
        "image.create": images.create,
        "image.remove": images.remove,
        "image.tag": images.tag,
        "image.untag": images.untag,
        "image.publish": images.publish,
        "image.unpublish": images.unpublish,
        "volume.create": services.volumes.create,
        "volume.list": services.volumes.list_all,
        "volume.remove": services.volumes.remove,
        "provider.choose": choosing.choose,
        "session.ensure": sessions.ensure,
        "session.close": sessions.close,
        "artifact.export": services.artifacts.export,
        "artifact.get": services.artifacts.get,
        "artifact.open": services.artifacts.open,
        "artifact.remove": services.artifacts.remove,
        "session.history": history.session_history,
        "sandbox.create": sharing.attachment.create,
        "sandbox.attach_shared": sharing.attachment.attach,
        "sandbox.detach": sharing.handover.detach,
        "sandbox.stats": Stats(core, sandboxes.runtimes).stats,
        "sandbox.exec": processes.execution.exec,
        "sandbox.terminate": sandboxes.termination.terminate,
        "sandbox.update": sandboxes.updates.update,
        "sandbox.suspend": sandboxes.suspension.ensure,
        "sandbox.resume": sandboxes.resumption.ensure,
        "sandbox.fork": services.forks.fork,
        "sandbox.diff": services.branches.comparing.diff,
        "branch.create": services.branches.creation.create,
        "branch.diff": services.branches.comparing.diff,
        "branch.merge": services.branches.merging.merge,
        "branch.resolve": services.branches.resolving.resolve,
        "branch.conflicts": services.branches.conflicts,
        "branch.read_version": services.branches.read_version,
        "branch.abandon": services.branches.removal.abandon,
        "branch.plan": services.branches.committing.plan,
        "branch.commit": services.branches.committing.commit,
        "branch.blame": services.branches.blame,
        "branch.remove": services.branches.remove,
        "sandbox.restore": partial(_restore_own, services),
        "checkpoint.create": services.checkpoints.create,
        "checkpoint.delete": services.checkpoints.delete,
        "checkpoint.restore": services.checkpoints.restore,
        "sandbox.restore_at": services.time_travel.restore_at,
        "sandbox.read_file": files.read_file,
        "sandbox.write_file": files.write_file,
        "sandbox.list_dir": files.list_dir,
        "sandbox.copy_out": files.copy_out,
        "sandbox.copy_in": files.copy_in,
        "sandbox.copy_commit": files.copy_commit,
        "sandbox.history": history.sandbox_history,
        "process.launch": processes.launching.launch,
        "process.get": processes.get,
        "process.list": processes.list,
        "process.wait": processes.wait,
        "process.signal": processes.signal,
        "process.cancel": processes.cancel,
        "process.write_stdin": processes.write_stdin,
        "process.read": processes.read,
        "process.attach": processes.attach,
        "process.resize": processes.resize,
        "process.open_output": processes.open_output,
        "snapshot.create": services.snapshots.create,
        "snapshot.delete": services.snapshots.delete,
        "snapshot.restore": services.restores.restore,
        "snapshot.export": services.transfers.export,
        "snapshot.import": services.transfers.import_archive,
        "snapshot.promote": services.transfers.promote,
        "snapshot.gc": services.gc.collect,
        "lock.acquire": locking.acquire,
        "lock.release": locking.release,
        "lock.get": locking.get,
        "key.create": keys.create,
        "key.remove": keys.remove,
        "event.list": history.list,
        "event.state_at": history.state_at,
        "stream.access": access.access,
        "store.compact": retention.compact,
        "store.redact": retention.redact,
        "store.prune": prune.prune,
        "store.verify": upkeep.verify,
        "store.rebuild": upkeep.rebuild,
    }
    at_once: dict[str, HandleNow] = {
        "rpc.hello": software.hello,
        "daemon.ping": software.ping,
        "daemon.status": software.status,
        "quota.get": core.quotas.get_now,
        "image.get": images.get_now,
        "image.list": images.list_now,
        "session.ensure": sessions.ensure_now,
        "session.get": sessions.get_now,
        "session.list": sessions.list_now,
        "session.heartbeat": sessions.heartbeat_now,
        "sandbox.get": sandboxes.get_now,
        "sandbox.list": sandboxes.list_now,
        "checkpoint.get": services.checkpoints.get_now,
        "checkpoint.list": services.checkpoints.list_now,
        "snapshot.get": services.snapshots.get_now,
        "snapshot.list": services.snapshots.list_now,
        "artifact.list": services.artifacts.list_now,
        "branch.list": services.branches.list_now,
        "branch.merges": services.branches.merges_now,
        "lock.list": locking.list_now,
        "key.list": keys.list_now,
    }
    commands: Sequence[Command] = (
        *services.operations, *sessions.operations, *processes.commands, *files.commands, *sharing.commands,
        *images.commands, sandboxes.updates.command, choosing, services.restores,
        services.time_travel, services.branches.command, eventless_command("snapshot.gc", services.gc.answer_again),
        eventless_command("store.prune", prune.answer_again),
        eventless_command("stream.access", access.answer_again), eventless_command("daemon.shutdown", _nothing),
    )  # fmt: skip
    return Dispatch(core, handlers, at_once, commands, sessions.bring_back, sessions.activity.attached)


async def _restore_own(services: SnapshotServices, request: Request[SandboxRestore]) -> Sandbox:
    """Restore a sandbox's own files from a snapshot, or its state from a checkpoint."""
    asked = request.params
    if (asked.snapshot_id is None) == (asked.checkpoint_id is None):
        raise CallerError("invalid", "snapshot_id: give either that or checkpoint_id", field="snapshot_id")
    if asked.checkpoint_id is not None:
        return await services.checkpoints.returning.return_to(request)
    return await services.file_restores.restore(request)


async def _nothing(_: Request[Any]) -> Empty:
    return Empty()
