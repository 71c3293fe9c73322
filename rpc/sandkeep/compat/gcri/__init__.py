"""The sandboxes of *GCRI*: a copy of a project for each branch of an iteration, and commands in it.

    sandbox = get_sandbox(config)
    ids = {n: sandbox.setup_branch(0, n, "project") for n in range(2)}
    print(sandbox.execute_command(ids[0], "make test"))
    print(sandbox.execute_python(ids[1], "print(6 * 7)"))
    verified = sandbox.setup_verification_branches(0, [{"index": 0, "source_indices": [0, 1]}], ids)
    sandbox.commit_to_host(verified[0], "project")
    sandbox.clean_up_all()

`config.sandbox`, or the configuration itself, has the properties of the sandboxes: see `SandboxConfig`. With `enabled`
they are containers. Where Docker does not work, a warning is logged, the daemon's log has an event of it, and they are
local sandboxes, as they are without `enabled`. Both are a `SandboxProtocol`, and give the same answers in the same
words.

The defects of the originals are not repeated. A command that takes too long is killed with all that it started, and its
output is kept. Links are copied as links. Exit codes are kept (`Output.exit_code`). A branch that cannot be set up
leaves nothing behind. Branches are merged over their common base, deletions included, and a conflict raises
`merge_conflict`. A commit applies a branch's changes, all or none, and raises `host_changed` for files that were
changed on the host meanwhile. Names that are not copied into a branch do not leave it either.

Each call connects to the daemon that ``SANDKEEP_SOCKET`` names. Threads may share a sandbox object.
"""

from sandkeep.compat.gcri.config import IGNORED, IGNORED_AT_HEAD, SandboxConfig
from sandkeep.compat.gcri.output import Output
from sandkeep.compat.gcri.protocol import SandboxProtocol
from sandkeep.compat.gcri.strategies import (
    DockerSandbox,
    LocalSandbox,
    SandboxStrategy,
    docker_available,
    get_sandbox,
)

__all__ = [
    "IGNORED",
    "IGNORED_AT_HEAD",
    "DockerSandbox",
    "LocalSandbox",
    "Output",
    "SandboxConfig",
    "SandboxProtocol",
    "SandboxStrategy",
    "docker_available",
    "get_sandbox",
]
