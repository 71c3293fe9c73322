"""The toolkit of *AstraForge*: its client of sessions, and its backend for agents, over our HTTP gateway.

    backend = SandboxBackend(runtime, session_params={"image": "python:3.12"})
    print(backend.execute("make test").output)

    client = DeepAgentClient("unix:/run/sandkeep/http.sock", api_key=key)
    session = client.create_sandbox_session({"id": "job-7", "image": "python:3.12"})
    client.upload_file(session.session_id, "in.txt", content="hello")
    text = client.get_file_content(session.session_id, "in.txt", encoding="utf-8")

`DeepAgentClient` has the toolkit's functions for sessions, and none for conversations with agents. `SandboxBackend`
works in one session, which it makes ready before each use: one that ended comes back with its files. Where deepagents
is installed it is one of its backends.

Every call blocks. Threads may share both. Errors are `sandkeep.errors.SandkeepError`, called `DeepAgentError` too, with
the code that the gateway answered.
"""

from typing import TYPE_CHECKING, Any

from sandkeep.compat.astraforge.client import (
    CommandOutcome,
    DeepAgentClient,
    SandboxArtifact,
    SandboxSession,
)
from sandkeep.errors import SandkeepError as DeepAgentError

if TYPE_CHECKING:
    from sandkeep.compat.astraforge.backend import SandboxBackend

__all__ = [
    "CommandOutcome",
    "DeepAgentClient",
    "DeepAgentError",
    "SandboxArtifact",
    "SandboxBackend",
    "SandboxSession",
]


def __getattr__(name: str) -> Any:
    if name != "SandboxBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sandkeep.compat.astraforge.backend import SandboxBackend  # deepagents takes seconds to import

    return SandboxBackend
