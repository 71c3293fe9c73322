"""Names that Docker's SDK, E2B's and `subprocess` have for attributes of handles, collections and clients, and ours."""

from typing import Final

_OURS: Final = {
    "all": ("list",), "build": ("create",), "close": ("terminate", "delete", "remove"), "commands": ("exec",),
    "commit": ("snapshot",), "connect": ("get",), "containers": ("sandboxes",), "delete": ("terminate", "remove"),
    "destroy": ("terminate", "delete", "remove"), "exec_run": ("exec",), "execute": ("exec",),
    "filesystem": ("files",), "find": ("list",), "kill": ("terminate", "signal"), "list": ("ls",),
    "logs": ("output", "processes"), "pause": ("suspend",), "poll": ("refresh",), "process": ("processes",),
    "pull": ("create",), "reload": ("refresh",), "remove": ("terminate", "delete"), "run": ("exec", "launch", "create"),
    "run_code": ("exec",), "send_signal": ("signal",), "send_stdin": ("write_stdin",), "spawn": ("launch",),
    "start": ("resume", "launch"), "stdout": ("output",), "stop": ("suspend", "terminate", "signal"),
    "unpause": ("resume",),
}  # fmt: skip
"""Of each name those of ours that are nearest. An object has one of them, or none."""

_OF_FILES: Final = ("delete", "exists", "make_dir", "mkdir", "move", "remove", "rename", "rm", "stat")


def missing(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have, with the one that does what was meant."""
    kind = type(owner).__name__
    ours = [known for known in _OURS.get(name, ()) if known in dir(owner)]
    if kind.endswith("SandboxFiles") and name in _OF_FILES:
        ours = ["sandbox.exec"]
    advice = f": use {' or '.join(map(repr, ours))}" if ours else ""
    return AttributeError(f"{kind!r} object has no attribute {name!r}{advice}", name=name, obj=owner)
