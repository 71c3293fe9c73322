"""Options as other tools call them, and ours."""

from typing import Final

import click

_EVERYWHERE: Final = {
    "-m": "--memory", "-v": "--volume", "--mount": "--volume", "-l": "--label",
    "-u": "--user", "--cpu": "--cpus", "--pids-limit": "--pids", "--net": "--network", "-t": "--name",
    "--tag": "--name", "--exclude": "--ignore", "--format": "--json", "-c": "--count",
    "--mem": "--memory", "--storage": "--disk", "--ttl": "--max-lifetime", "--hostname": "--name",
    "--env-file": "--env",
}  # fmt: skip
"""The same for all commands that have the option on the right, and not the one on the left."""

_NO_PROGRAM: Final = "`create` runs no program: use `sandkeep exec -it` or `sandkeep run` then."
NO_PORTS: Final = "A sandbox has no ports of its own: use `sandkeep create --network host`."
_NO_USER: Final = "Processes have the user of their sandbox: use `sandkeep create --user`."
_BACKGROUND: Final = "Use `sandkeep run SANDBOX NAME --detach`."
_LAST_EVENTS: Final = "Use `--since 10m`, or pipe to `tail`."
_FILE: Final = "Give the file as an argument; `-` is stdin or stdout."

_OF_COMMANDS: Final = {
    "create": {
        "-i": _NO_PROGRAM, "-t": _NO_PROGRAM, "-d": _NO_PROGRAM, "--detach": _NO_PROGRAM,
        "-p": NO_PORTS, "--publish": NO_PORTS,
        "--image": "Give the image as an argument: `sandkeep create IMAGE`.",
        "--timeout": "Use `--max-lifetime` for its age, or `--idle-timeout`.",
        "--privileged": "A sandbox is never privileged: leave it out.",
        "--gpus": "A sandbox has no GPUs: leave it out.",
        "--rm": "A sandbox lives until `sandkeep rm`: use `--max-lifetime` to end it by itself.",
    },
    "exec": {"-d": _BACKGROUND, "--detach": _BACKGROUND, "-u": _NO_USER, "--user": _NO_USER},
    "run": {"-u": _NO_USER, "--user": _NO_USER, "--rm": "A process leaves nothing to remove: leave it out."},
    "events": {"--limit": _LAST_EVENTS, "--tail": _LAST_EVENTS, "-n": _LAST_EVENTS},
    "fork": {"-n": "Use `--count`."},
    "ls": {"--status": "Use `--filter status=running`, for example."},
    "rm": {"--force": "`rm` also ends running processes: leave it out."},
    "export": {"-o": _FILE, "--output": _FILE},
    "import": {"-i": _FILE, "--input": _FILE},
}  # fmt: skip
"""The same for single commands, in a sentence."""


def option_advice(command: click.Command, option: str) -> str:
    """Return a sentence about an option that `command` does not have, or nothing."""
    own = {name for param in command.params for name in param.opts}
    if sentence := _OF_COMMANDS.get(str(command.name), {}).get(option):
        return sentence
    if "--signal" in own and option[1:].isdigit():
        return f"Use `--signal {option[1:]}`."
    ours = _EVERYWHERE.get(option)
    return f"Use `{ours}`." if ours in own else ""
