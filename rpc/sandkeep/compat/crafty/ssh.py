"""SSH servers in sandboxes at Modal: their start, and what an SSH client needs.

Both keys are made here, for one sandbox each. The server's goes into the sandbox, so that its public half is known
before anybody connects, and a client accepts no other. The user's stays in ``~/.crafty/ssh``, where only the user can
read it.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from sandkeep.blocking import Client
from sandkeep.errors import CallerError, SetupError, StateError
from sandkeep.model import Process, ProcessOutput, Sandbox

PARENT: Final = "~/.crafty/ssh"
LABELS: Final = {"modal.ssh": "1"}
USER: Final = "root"
START_S: Final = 60.0
"""Seconds that a server may take until it listens."""

_ADDRESS: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,252}):([0-9]{1,5})")
_LISTENS: Final = b"Server listening"
_SERVER: Final = r"""
umask 077
mkdir -p /run/sshd /run/sandkeep-ssh && cd /run/sandkeep-ssh || exit
printf '%s\n' "$SSH_HOST_KEY" >host_key
printf '%s\n' "$SSH_AUTHORIZED_KEY" >authorized_keys
unset SSH_HOST_KEY SSH_AUTHORIZED_KEY
sshd=$(command -v sshd || echo /usr/sbin/sshd)
[ -x "$sshd" ] || { echo 'there is no sshd' >&2; exit 127; }
exec "$sshd" -D -e -f /dev/null -o Port=22 -o PidFile=none -o UsePAM=no -o HostKey="$PWD/host_key" \
    -o AuthorizedKeysFile="$PWD/authorized_keys" -o AuthenticationMethods=publickey \
    -o PermitRootLogin=prohibit-password -o AllowUsers=root -o Subsystem='sftp internal-sftp'
"""


class SshRecord(Struct, frozen=True, kw_only=True):
    """Parameters of an SSH client for a sandbox. `identity_file` is the private key, which only the user can read;
    `known_hosts_file` has the server's key.
    """

    sandbox_id: str
    host: str
    port: int
    user: str
    identity_file: Path
    known_hosts_file: Path

    @property
    def command(self) -> list[str]:
        """The argv of an SSH client, to which a command may be added. It accepts no other server."""
        return [
            "ssh", "-F", "/dev/null", "-i", str(self.identity_file), "-o", "IdentitiesOnly=yes",
            "-o", f"UserKnownHostsFile={self.known_hosts_file}", "-o", "GlobalKnownHostsFile=/dev/null",
            "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-p", str(self.port), f"{self.user}@{self.host}",
        ]  # fmt: skip


def record(sandbox: Sandbox) -> SshRecord:
    """Return the record of a sandbox. Raises `not_supported` for one without a server, `not_found` without its key."""
    found = _ADDRESS.fullmatch(sandbox.ssh_address or "")
    if found is None:
        message = f"sandbox {sandbox.sandbox_id} has no SSH server: create it at Modal, of an image with openssh-server"
        raise SetupError("not_supported", message, sandbox_id=sandbox.sandbox_id)
    directory = _directory(sandbox.sandbox_id)
    if not (directory / "id_ed25519").exists():
        message = (
            f"{directory} has no key of sandbox {sandbox.sandbox_id}: its image has no openssh-server, "
            "or it was created elsewhere"
        )
        raise CallerError("not_found", message, sandbox_id=sandbox.sandbox_id)
    return SshRecord(
        sandbox_id=sandbox.sandbox_id, host=found[1], port=int(found[2]), user=USER,
        identity_file=directory / "id_ed25519", known_hosts_file=directory / "known_hosts",
    )  # fmt: skip


def start(client: Client, sandbox: Sandbox) -> None:
    """Start the server of a new sandbox, and return when it listens.

    Raises `not_supported` where the image, or this machine, has no OpenSSH.
    """
    directory = _directory(sandbox.sandbox_id)
    directory.mkdir(mode=0o700, parents=True)
    comment = f"sandkeep {sandbox.sandbox_id}"
    _make_key(directory / "id_ed25519", comment)
    with tempfile.TemporaryDirectory(prefix="sandkeep-ssh-") as work:
        _make_key(Path(work, "host_key"), comment)
        host_key, public = Path(work, "host_key").read_text(), Path(work, "host_key.pub").read_text()
    found, own = record(sandbox), (directory / "id_ed25519.pub").read_text()
    name = found.host if found.port == 22 else f"[{found.host}]:{found.port}"  # as OpenSSH has it
    (directory / "known_hosts").write_text(f"{name} {' '.join(public.split()[:2])}\n")
    secrets = {"SSH_HOST_KEY": host_key.strip(), "SSH_AUTHORIZED_KEY": own.strip()}
    _await_server(client, client.process.launch(sandbox.sandbox_id, _SERVER, secrets=secrets))


def remove(sandbox_id: str) -> None:
    """Remove the keys of a sandbox, if there are any."""
    shutil.rmtree(_directory(sandbox_id), ignore_errors=True)


def _directory(sandbox_id: str) -> Path:
    return Path(os.path.expanduser(PARENT), sandbox_id)


def _make_key(path: Path, comment: str) -> None:
    """Make a pair of keys: `path`, with mode 0600, and its public half beside it."""
    try:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
            check=True, stdin=subprocess.DEVNULL, capture_output=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise SetupError("not_supported", "ssh-keygen is not installed on this machine: install OpenSSH") from None


def _await_server(client: Client, server: Process) -> None:
    deadline, offset, printed = time.monotonic() + START_S, 0, b""
    while _LISTENS not in printed:
        if time.monotonic() > deadline:
            raise StateError("timeout", f"the SSH server in the sandbox did not listen within {START_S:.0f} s")
        piece: ProcessOutput = client.process.read(
            server.sandbox_id, server.process_id, stderr_offset=offset, max_bytes=65536, wait_s=1.0
        )
        printed, offset = (printed + piece.stderr)[-65536:], piece.next_stderr_offset
        if piece.ended and _LISTENS not in printed:
            why = " ".join(printed.decode(errors="replace").split())[-300:]
            message = f"sshd did not start in the sandbox: install openssh-server in its image ({why})"
            raise SetupError("not_supported", message)
