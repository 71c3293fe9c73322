"""A real OpenSSH server for images of tests: this machine's, or that of its package, unpacked and not installed."""

import shutil
import subprocess
from pathlib import Path

from tests.support.patience import patient

_PASSWD = "root:x:0:0:root:/root:/bin/sh\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"


def lay_out(root: Path, work: Path) -> str | None:
    """Put the server, its libraries and its user below a directory; return the reason if there is none to be had."""
    server, libraries = Path("/usr/sbin/sshd"), ""
    if not server.exists():
        if why := _unpack(work):
            return why
        server, libraries = work / "usr/sbin/sshd", str(work / "usr/lib/x86_64-linux-gnu")
    listed = subprocess.run(
        ["ldd", str(server)],
        env={"LD_LIBRARY_PATH": libraries, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0 or "not found" in listed.stdout:
        return f"sshd does not load on this machine: {listed.stdout[-300:]}{listed.stderr[-300:]}"
    needed = [words[2] for line in listed.stdout.splitlines() if len(words := line.split()) > 3 and words[1] == "=>"]
    for source, target in ((server, "usr/sbin"), *((Path(name), "usr/lib/x86_64-linux-gnu") for name in needed)):
        (root / target).mkdir(parents=True, exist_ok=True)
        shutil.copy(source, root / target / source.name)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(_PASSWD)
    return None


def _unpack(work: Path) -> str | None:
    work.mkdir(parents=True, exist_ok=True)
    try:
        for command in (
            ["apt-get", "-qq", "download", "openssh-server", "libwrap0"],
            ["sh", "-c", 'for package in *.deb; do dpkg -x "$package" . || exit; done'],
        ):
            subprocess.run(command, cwd=work, check=True, capture_output=True, timeout=patient(120))
    except (OSError, subprocess.SubprocessError) as error:
        return f"there is no sshd, and its package cannot be had: {error}"
    return None
