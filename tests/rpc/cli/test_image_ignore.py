"""Files that an image of a directory leaves out, as it is typed."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused
from tests.support.users import NOBODY, as_user

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("bwrap")

ALL = {"src/main.py", "src/main.pyc", ".git/config", ".venv/pyvenv.cfg", "sub/.venv/x", "docs/a.html", "docs/b.html"}


@pytest.fixture
def project(places: str) -> Path:
    """A directory that every user can read."""
    top = Path(tempfile.mkdtemp(dir=places))
    top.chmod(0o755)
    for name in ALL:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x")
    return top


def files(daemon: Any, *words: str) -> set[str]:
    """The files of a sandbox of the image that is made so."""
    done = daemon.cli("image", "create", *words)
    assert done.returncode == 0, done.stderr.decode()
    box = daemon.cli("create", done.stdout.decode().strip()).stdout.decode().strip()
    listed = daemon.cli("exec", box, "--", "find", ".", "-type", "f").stdout.decode().split()
    assert daemon.cli("rm", box).returncode == 0
    return {name.removeprefix("./") for name in listed}


def test_nothing_is_left_out_unless_told(shared_daemon: Any, project: Path) -> None:
    assert files(shared_daemon, str(project)) == ALL


def test_the_files_of_patterns(shared_daemon: Any, project: Path) -> None:
    (project / ".dockerignore").write_text("**/*.pyc\ndocs\n!docs/a.html\n")
    left_out = {"src/main.pyc", "docs/b.html"}
    assert files(shared_daemon, str(project)) == ALL - left_out | {".dockerignore"}
    assert files(shared_daemon, str(project), "--all-files") == ALL | {".dockerignore"}
    (project / ".sandkeepignore").write_text("**/.venv\n")  # in place of the other
    left_out = {".venv/pyvenv.cfg", "sub/.venv/x"}
    assert files(shared_daemon, str(project)) == ALL - left_out | {".dockerignore", ".sandkeepignore"}


def test_branches_have_all_files(shared_daemon: Any, project: Path) -> None:
    """Or a commit of theirs would find files in its way that they never saw."""
    (project / ".dockerignore").write_text("docs\n")
    box = shared_daemon.cli("branch", "create", str(project)).stdout.decode().strip()
    assert shared_daemon.cli("exec", box, "--", "ls", "docs").stdout == b"a.html\nb.html\n"
    assert shared_daemon.cli("rm", box).returncode == 0


def test_options(shared_daemon: Any, project: Path) -> None:
    source = {name for name in ALL if ".git" not in name and ".venv" not in name}
    assert files(shared_daemon, str(project), "--source-only") == source
    words = ("--ignore", ".venv", "--ignore", "docs/*.html", "--ignore", "!docs/a.html")
    assert files(shared_daemon, str(project), *words) == ALL - {".venv/pyvenv.cfg", "sub/.venv/x", "docs/b.html"}


def test_patterns_that_make_no_sense(shared_daemon: Any, client: Any, project: Path) -> None:
    (project / ".sandkeepignore").write_text("[a\n")
    done = shared_daemon.cli("image", "create", str(project))
    assert done.returncode == 1
    assert b".sandkeepignore: line 1" in done.stderr
    (project / ".sandkeepignore").write_text("x\n" * 40_000)
    assert b"shorten it" in shared_daemon.cli("image", "create", str(project)).stderr
    (project / ".sandkeepignore").write_text("x\n" * 1001)
    assert b"more than 1000 patterns" in shared_daemon.cli("image", "create", str(project)).stderr
    (project / ".sandkeepignore").unlink()
    assert refused("invalid", client.image.create, str(project), patterns=["[a"]).message.startswith("patterns: ")


def test_the_sdk(client: Any, project: Path) -> None:
    (project / ".dockerignore").write_text("docs\n")
    image = client.image.create(str(project), patterns=["src/*.pyc"], ignore=[".git"])
    box = client.sandbox.create(image.image_id).sandbox_id
    listed = client.sandbox.exec(box, ["find", ".", "-type", "f"]).stdout.decode().split()
    assert sorted(listed) == ["./.dockerignore", "./.venv/pyvenv.cfg", "./src/main.py", "./sub/.venv/x"]
    client.sandbox.terminate(box)


@pytest.mark.needs("root")
def test_it_is_read_with_the_callers_rights(shared_daemon: Any, project: Path) -> None:
    """A directory that is left out need not be readable, and a link leads only to what the caller may read."""
    (project / "data").mkdir(mode=0o700)
    (project / ".dockerignore").write_text("data\n")

    def make() -> Any:
        with connect(shared_daemon.socket) as client:
            try:
                return client.image.create(str(project)).file_count
            except SandkeepError as error:
                return str(error)

    assert isinstance(as_user(NOBODY, make), int)
    (project / ".dockerignore").unlink()
    assert "permission_denied" in as_user(NOBODY, make)
    (project / "secret").write_text("hunter2[")
    (project / "secret").chmod(0o600)
    (project / ".dockerignore").symlink_to("secret")
    message = as_user(NOBODY, make)
    assert "permission_denied" in message
    assert f"you may not read {project}/.dockerignore" in message
    assert "hunter2" not in message
