"""Commits of branches to directories of the host, with a real daemon."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused
from tests.support.snapshots import sh
from tests.support.users import command_as, let_in

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory of a project, with what no branch gets."""
    made = tmp_path / "project"
    (made / ".git" / "hooks").mkdir(parents=True)
    (made / ".git" / "config").write_text("[core]\n")
    (made / "node_modules").mkdir()
    (made / "node_modules" / "kept").write_text("kept\n")
    (made / "src").mkdir()
    (made / "src" / "main").write_text("one\ntwo\nthree\n")
    (made / "gone").write_text("gone\n")
    let_in(made)
    return made


@pytest.fixture
def branch(client: Any, project: Path) -> Any:
    made = client.branch.create(source=str(project), ignore=[".git", "node_modules"])
    yield made.sandboxes[0].sandbox_id
    for sandbox in client.sandbox.list().sandboxes:
        client.branch.remove(sandbox.sandbox_id)


def seen(root: Path) -> dict[str, str]:
    """All files of a directory."""
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def statuses(plan: Any) -> dict[str, str]:
    return {path.path: path.status for path in plan.paths}


def test_only_the_difference_is_applied(client: Any, project: Path, branch: str) -> None:
    sh(client, branch, "echo four >>src/main; rm gone; echo new >src/new; ln -s main src/link; chmod 755 src/new")
    before = seen(project)
    plan = client.branch.plan(branch, str(project))
    assert (seen(project), plan.counts) == (before, {"apply": 4})
    done = client.branch.commit(branch, f"{project}/")
    assert (done.status, done.added, done.changed, done.deleted) == ("ready", 2, 1, 1)
    del before["gone"]
    assert seen(project) == before | {
        "src/main": "one\ntwo\nthree\nfour\n", "src/new": "new\n", "src/link": "one\ntwo\nthree\nfour\n",
    }  # fmt: skip
    assert os.readlink(project / "src" / "link") == "main"
    assert os.stat(project / "src" / "new").st_mode & 0o777 == 0o755
    assert not any(name.startswith(".sandkeep") for name in os.listdir(project))
    assert client.branch.plan(branch, str(project)).counts == {}
    told = client.branch.blame(commit_id=done.commit_id).paths
    assert {(path.path, path.change, path.how) for path in told} == {
        ("src/main", "changed", "branch"), ("gone", "deleted", "branch"), ("src/new", "added", "branch"),
        ("src/link", "added", "branch"),
    }  # fmt: skip
    assert client.event.list(type="branch.committed").events[-1].stream == done.commit_id


def test_a_branch_goes_on_after_a_commit(client: Any, project: Path, branch: str) -> None:
    """An earlier commit of its own is not taken for a change of the host's, also if the branch takes that back."""
    sh(client, branch, "echo four >>src/main; echo new >new")
    client.branch.commit(branch, str(project))
    [child] = client.branch.create(sandbox_id=branch, names=["child"]).sandboxes
    sh(client, child.sandbox_id, "echo five >>src/main; rm new; mkdir empty")
    done = client.branch.commit("child", str(project))
    assert (done.added, done.changed, done.deleted) == (1, 1, 1)
    assert (project / "src" / "main").read_text() == "one\ntwo\nthree\nfour\nfive\n"
    assert not (project / "new").exists()
    assert (project / "empty").is_dir()
    sh(client, "child", "sed -i '$d' src/main; sed -i '$d' src/main")  # as it was in the base
    client.branch.commit("child", str(project))
    assert (project / "src" / "main").read_text() == "one\ntwo\nthree\n"


def test_a_commit_after_a_branch_was_kept_is_not_its_past(client: Any, project: Path, branch: str) -> None:
    """A branch of an older snapshot takes nothing back of what was committed since."""
    kept = client.snapshot.create(branch).snapshot_id
    sh(client, branch, "echo nine >gone")
    client.branch.commit(branch, str(project))
    [older] = client.branch.create(snapshot_id=kept).sandboxes
    sh(client, older.sandbox_id, "echo new >new")
    assert statuses(client.branch.plan(older.sandbox_id, str(project))) == {"new": "apply"}
    client.branch.commit(older.sandbox_id, f"{project}/./")
    assert (project / "gone").read_text() == "nine\n"
    client.sandbox.restore(branch, kept)
    assert statuses(client.branch.plan(branch, str(project))) == {}
    client.snapshot.delete(kept)


def test_holes_stay_holes_and_a_fifo_is_no_files_end(client: Any, project: Path, branch: str) -> None:
    sh(client, branch, "truncate -s 300M sparse; echo end >>sparse; rm gone; mkfifo gone")
    plan = client.branch.plan(branch, str(project))
    assert statuses(plan) == {"sparse": "apply", "gone": "forbidden"}
    client.branch.commit(branch, str(project))
    status = os.stat(project / "sparse")
    assert status.st_size == 300 * 2**20 + 4
    assert status.st_blocks < 4096
    assert (project / "gone").read_text() == "gone\n"


def test_what_the_host_changed_is_refused(client: Any, project: Path, branch: str) -> None:
    sh(client, branch, "echo four >>src/main; echo new >new; rm gone")
    (project / "src" / "main").write_text("the user's own\n")
    (project / "new").write_text("the user's, too\n")
    before = seen(project)
    plan = client.branch.plan(branch, str(project))
    assert statuses(plan) == {"src/main": "host_changed", "new": "host_changed", "gone": "apply"}
    error = refused("host_changed", client.branch.commit, branch, str(project))
    assert "src/main" in error.message or "new" in error.message
    assert seen(project) == before
    client.branch.commit(branch, str(project), force=True)
    assert (project / "src" / "main").read_text() == "one\ntwo\nthree\nfour\n"
    assert not (project / "gone").exists()


def test_nothing_below_git_is_committed(client: Any, project: Path) -> None:
    """Not even if the branch was given what is there."""
    branch = client.branch.create(source=str(project)).sandboxes[0].sandbox_id
    sh(
        client, branch,
        "mkdir -p .git/hooks sub/.GIT; echo evil >.git/hooks/post-commit; echo evil >.git/config; echo x >sub/.GIT/x;"
        "echo fine >fine",
    )  # fmt: skip
    plan = client.branch.plan(branch, str(project))
    assert {path for path, status in statuses(plan).items() if status == "forbidden"} == {
        ".git/config", ".git/hooks/post-commit", "sub/.GIT", "sub/.GIT/x"
    }  # fmt: skip
    client.branch.commit(branch, str(project))
    assert (project / "fine").exists()
    assert (project / ".git" / "config").read_text() == "[core]\n"
    assert os.listdir(project / ".git" / "hooks") == []
    assert os.listdir(project / "sub") == []
    client.branch.remove(branch)


CONFIG = "[core]\\nrepositoryformatversion = 0\\nbare = false\\nworktree = ..\\nfsmonitor = touch {1}\\n"
BARE = f"mkdir -p {{0}}/objects {{0}}/refs; echo ref: refs/heads/main >{{0}}/HEAD;printf '{CONFIG}' >{{0}}/config;"
"""Makes a bare repository, whose configuration names a program."""


def git_obeys(directory: Path, evil: Path) -> bool:
    """Return True if git runs what the configuration of a repository there names."""
    subprocess.run(["git", "status"], cwd=directory, capture_output=True, check=False)
    return evil.exists()


def test_no_bare_repository_is_committed(client: Any, project: Path, branch: str, tmp_path: Path) -> None:
    """Whoever runs git there would run what its configuration names."""
    evil = tmp_path / "evil"
    subprocess.run(["sh", "-c", BARE.format("like", evil)], cwd=tmp_path, check=True)
    assert git_obeys(tmp_path / "like", evil)
    evil.unlink()
    sh(client, branch, BARE.format("sub/bare", evil) + "echo fine >sub/fine; echo x >sub/bare/refs/x")
    sh(client, branch, "mkdir -p work; echo ref: refs/heads/main >work/HEAD; echo ../sub/bare >work/commondir")
    plan = client.branch.plan(branch, str(project))
    assert {path.path for path in plan.paths if (path.status, path.why) == ("forbidden", "git")} == {
        "sub/bare/HEAD", "sub/bare/config", "sub/bare/objects", "sub/bare/refs", "sub/bare/refs/x", "work/HEAD",
        "work/commondir",
    }  # fmt: skip
    client.branch.commit(branch, str(project))
    assert (project / "sub" / "fine").exists()
    assert os.listdir(project / "sub" / "bare") == []
    assert os.listdir(project / "work") == []
    assert not git_obeys(project / "sub" / "bare", evil)


def test_no_bare_repository_is_completed(client: Any, project: Path, branch: str, tmp_path: Path) -> None:
    """One branch brings what the other has not: the target has both."""
    evil = tmp_path / "evil"
    sh(client, branch, BARE.format("sub", evil) + "rm sub/HEAD")
    client.branch.commit(branch, str(project))
    other = client.branch.create(source=str(tmp_path / "project"), ignore=["objects", "refs", ".git"]).sandboxes[0]
    sh(client, other.sandbox_id, "echo ref: refs/heads/main >sub/HEAD")
    assert statuses(client.branch.plan(other.sandbox_id, str(project))) == {"sub/HEAD": "forbidden"}
    for force in (False, True):
        refused("invalid", client.branch.commit, other.sandbox_id, str(project), force=force)
    assert not git_obeys(project / "sub", evil)


def test_nothing_is_committed_to_a_bare_repository(client: Any, project: Path, branch: str) -> None:
    sh(client, branch, "mkdir -p hooks; echo evil >hooks/post-commit")
    bare = project / "bare.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(bare)], check=True)
    for target in (bare, bare / "refs"):
        refused("invalid", client.branch.commit, branch, str(target), force=True)
    assert not (bare / "hooks" / "post-commit").exists()
    (bare / "tree").mkdir()
    (bare / "tree" / ".git").write_text(f"gitdir: {bare}/worktrees/tree\n")
    client.branch.commit(branch, str(bare / "tree"))
    assert (bare / "tree" / "hooks" / "post-commit").exists()


def test_no_link_leads_out_of_the_directory(client: Any, project: Path, branch: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "main").write_text("one\ntwo\nthree\n")
    sh(client, branch, "echo four >>src/main")
    shutil.rmtree(project / "src")
    os.symlink(outside, project / "src")
    refused("host_changed", client.branch.commit, branch, str(project))
    refused("host_changed", client.branch.commit, branch, str(project), force=True)
    assert (outside / "main").read_text() == "one\ntwo\nthree\n"


def test_targets_that_are_none(client: Any, project: Path, branch: str, tmp_path: Path) -> None:
    sh(client, branch, "echo new >new")
    for target in ("relative", str(tmp_path / "absent"), str(project / "gone"), f"{project}\n"):
        assert refused("invalid", client.branch.commit, branch, target).data.get("field", "target") == "target"
        refused("invalid", client.branch.plan, branch, target)
    refused("not_found", client.branch.commit, "absent", str(project))


@pytest.mark.needs("root")
def test_with_the_rights_of_the_caller_alone(shared_daemon: Any, tmp_path: Path) -> None:
    """A user's branch goes into his own directory, as his, and into nobody else's."""
    own, others = tmp_path / "own", tmp_path / "others"
    for place in (own, others):
        place.mkdir(mode=0o755)
        (place / "file").write_text("file\n")
    for place in (own, own / "file"):
        os.chown(place, 65534, 65534)
    let_in(tmp_path)
    script = f"""
from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError
with connect({shared_daemon.socket!r}) as client:
    made = client.branch.create(source={str(own)!r}).sandboxes[0].sandbox_id
    client.sandbox.exec(made, "echo mine >>file; echo new >new")
    client.branch.commit(made, {str(own)!r})
    try:
        client.branch.commit(made, {str(others)!r}, force=True)
    except SandkeepError as error:
        assert error.code == "permission_denied", error
    else:
        raise AssertionError("it was done")
    client.branch.remove(made)
"""
    done = subprocess.run(command_as(65534, [sys.executable, "-c", script]), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert (own / "new").stat().st_uid == (own / "file").stat().st_uid == 65534
    assert (own / "file").read_text() == "file\nmine\n"
    assert seen(others) == {"file": "file\n"}


def test_blame_of_a_branch(client: Any, project: Path, branch: str) -> None:
    other = client.branch.create(source=str(project), ignore=[".git", "node_modules"]).sandboxes[0].sandbox_id
    sh(client, branch, "sed -i 1s/one/ONE/ src/main; echo a >a")
    sh(client, other, "sed -i 3s/three/THREE/ src/main; echo b >b")
    made = client.branch.merge([branch, other], name="merged")
    sh(client, "merged", "echo own >own; echo more >>b")
    told = {path.path: path for path in client.branch.blame(sandbox_id="merged").paths}
    assert (told["src/main"].branches, told["src/main"].how) == (sorted([branch, other]), "merged")
    assert (told["a"].branches, told["a"].how, told["a"].merge_id) == ([branch], "taken", made.merge.merge_id)
    assert (told["own"].branches, told["own"].how, told["own"].merge_id) == (["merged"], "branch", None)
    assert (told["b"].branches, told["b"].how) == (["merged"], "branch")
    assert [path.path for path in client.branch.blame(sandbox_id="merged", paths=["src"]).paths] == ["src/main"]
    done = client.branch.commit("merged", str(project))
    committed = {path.path: path.branches for path in client.branch.blame(commit_id=done.commit_id).paths}
    assert committed == {path: told[path].branches for path in told}
    refused("invalid", client.branch.blame)
    refused("invalid", client.branch.blame, sandbox_id="merged", commit_id=done.commit_id)
