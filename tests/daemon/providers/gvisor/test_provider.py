"""The gVisor provider on the real `runsc`: what sandboxes begin with, what they see, settings, limits, and refusals."""

import json
import os
import shutil
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.conftest import RunningDaemon
from tests.support.boxes import group_of
from tests.support.expect import refused, until
from tests.support.snapshots import sh
from tests.support.users import let_in

from sandkeep import archives, transfer
from sandkeep.ids import new_id
from sandkeep.settings.gvisor import PLATFORM
from sandkeep_store.archives.tar.depth import MOST_LEVELS
from sandkeepd.host.cgroups.groups import Limits
from sandkeepd.host.processes import OOM_SCORE_ADJ
from sandkeepd.providers.gvisor import plan, runsc
from sandkeepd.providers.gvisor import start as gvisor_start

pytestmark = [pytest.mark.needs("runsc"), pytest.mark.needs("busybox")]

APPLETS = "sh ls cat echo id mkdir tar stat find dd env sleep readlink mv rm head chmod wc tr"


@pytest.fixture(scope="module")
def root_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole root file system, as a container's that was exported."""
    root = tmp_path_factory.mktemp("rootfs")
    let_in(root)
    for name in ("bin", "etc", "srv"):
        (root / name).mkdir()
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for applet in APPLETS.split():
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nnobody:x:1000:1000::/:/bin/sh\n")
    (root / "srv" / "data").write_text("of the image\n")
    return root


@pytest.fixture(scope="module")
def image(client: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a workspace."""
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    (source / "file").write_text("content\n")
    (source / "sub").mkdir()
    (source / "sub" / "inner").write_text("inner\n")
    return str(client.image.create(str(source), provider="gvisor").image_id)


def end_kernel(box: str) -> None:
    """Kill what a sandbox runs in."""
    [pid] = [pid for pid, words in processes_of(box).items() if words[0] == "runsc-sandbox"]
    os.kill(pid, signal.SIGKILL)


def processes_of(box: str) -> dict[int, list[str]]:
    """The words of the processes of runsc on the host that are a sandbox's."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "runsc" in words[0] and any(word.endswith(f"runsc_root_{box}") for word in words):
            found[int(pid)] = words
    return found


# -- what it begins with ----------------------------------------------------------------------------------------------


def test_a_workspace_with_the_programs_of_the_host(client: Any, box: str) -> None:
    assert sh(client, box, "pwd; cat file sub/inner; id -u; hostname") == f"/workspace\ncontent\ninner\n1000\n{box}\n"
    assert sh(client, box, "ls / | tr '\\n' ' '").split() == [
        "bin", "dev", "etc", "home", "lib", *(["lib64"] if os.path.islink("/lib64") else []), "proc", "root", "run",
        "sbin", "sys", "tmp", "usr", "var", "workspace",
    ]  # fmt: skip
    assert (
        sh(client, box, "echo x >>file; rm -r sub; mkdir new; echo y >/tmp/y; ls; stat -c %s file") == "file\nnew\n10\n"
    )
    assert client.sandbox.exec(box, ["sh", "-c", "echo x >/usr/x"]).exit_code != 0
    assert not os.path.exists("/usr/x")
    assert "gvisor" in client.sandbox.get(box).isolation.mechanism


def test_nothing_of_the_image_is_changed(client: Any, image: str, box: str) -> None:
    sh(client, box, "echo changed >file; rm -r sub")
    other = client.sandbox.create(image).sandbox_id
    assert sh(client, other, "cat file sub/inner") == "content\ninner\n"
    client.sandbox.terminate(other)


def test_a_whole_root_file_system(client: Any, root_tree: Path) -> None:
    image = client.image.create(str(root_tree), provider="gvisor").image_id
    box = client.sandbox.create(image, user="0").sandbox_id
    assert client.sandbox.get(box).isolation.workspace == "/"
    assert (
        sh(client, box, "pwd; id -u; cat /srv/data; echo new >/srv/new; ls /srv") == "/\n0\nof the image\ndata\nnew\n"
    )
    assert client.sandbox.exec(box, ["/usr/bin/python3", "-c", "1"]).exit_code == 127
    data = client.sandbox.read_file(box, path="/srv/data").data
    assert data == b"of the image\n"
    client.sandbox.terminate(box)
    assert not (root_tree / "srv" / "new").exists()
    client.image.remove(image)


def archive_of(root: Path, target: Path) -> Path:
    with tarfile.open(target, "w:gz") as archive:
        archive.add(root, ".")
    return target


def test_a_root_file_system_from_an_archive_of_this_machine(client: Any, root_tree: Path, tmp_path: Path) -> None:
    """A local path is copied, then extracted into a new root directory."""
    image = client.image.create(str(root_tree), provider="gvisor").image_id
    (root_tree / "srv" / "data").write_text("of the archive\n")
    snapshot = archives.import_from(client, str(archive_of(root_tree, tmp_path / "a.tar.gz")), image_id=image)
    (root_tree / "srv" / "data").write_text("of the image\n")
    one, other = (client.snapshot.restore(snapshot.snapshot_id).sandbox_id for _ in range(2))
    for box in (one, other):
        assert sh(client, box, "cat /srv/data; echo x >>/srv/data; wc -l </srv/data") == "of the archive\n2\n"
    checkpoint = client.checkpoint.create(one)
    client.snapshot.delete(snapshot.snapshot_id)
    for box in (one, other):
        client.sandbox.terminate(box)
    [made] = client.checkpoint.restore(checkpoint.checkpoint_id).sandboxes
    assert sh(client, made.sandbox_id, "wc -l </srv/data") == "2\n"
    client.sandbox.terminate(made.sandbox_id)
    client.checkpoint.delete(checkpoint.checkpoint_id)
    client.image.remove(image)


@pytest.mark.needs("gcs")
def test_a_root_file_system_from_an_archive_in_a_bucket(
    new_daemon: Callable[[], RunningDaemon], root_tree: Path, tmp_path: Path, gcs: Any, gcs_bucket: str
) -> None:
    """It is downloaded, then extracted."""
    daemon = new_daemon()
    daemon.env |= {"FILESYSTEM_SNAPSHOT_BUCKET": gcs_bucket, "STORAGE_EMULATOR_HOST": gcs.url}
    daemon.start()
    with daemon.connect() as client:
        image = client.image.create(str(root_tree), provider="gvisor").image_id
        path = str(archive_of(root_tree, tmp_path / "a.tar.gz"))
        snapshot = archives.import_from(client, path, image_id=image, archive="bucket")
        assert snapshot.places[0].uri.startswith(f"gs://{gcs_bucket}/")
        box = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
        assert sh(client, box, "cat /srv/data") == "of the image\n"


def test_deeper_directories_than_a_tree_may_have_are_refused(client: Any, box: str, tmp_path: Path) -> None:
    sh(client, box, f"mkdir -p top && cd top && mkdir -p $(printf 'a/%.0s' $(seq {MOST_LEVELS + 1}))")
    refused("tree_too_deep", client.snapshot.create, box)
    refused("tree_too_deep", client.sandbox.diff, box)
    refused("tree_too_deep", transfer.copy_out, client, box, "top", str(tmp_path / "top"))
    sh(client, box, "rm -r top")
    client.snapshot.delete(client.snapshot.create(box).snapshot_id)


def test_a_snapshot_of_a_workspace(client: Any, box: str) -> None:
    sh(client, box, "echo new >new; rm file; ln -s new link; chmod 700 new; mkdir -p a/b; echo deep >a/b/c")
    snapshot = client.snapshot.create(box)
    assert (snapshot.kind, snapshot.pause_ms) == ("full", None)
    made = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
    look = "find . | LC_ALL=C sort; cat new link a/b/c; stat -c '%a %u' new"
    assert sh(client, made, look) == sh(client, box, look)
    refused("not_supported", client.snapshot.create, box, incremental=True)
    refused("not_supported", client.snapshot.create, box, include=["new"])
    refused("not_supported", client.sandbox.restore, box, snapshot_id=snapshot.snapshot_id)
    before = client.daemon.status().position
    refused("not_supported", client.sandbox.fork, box)
    assert client.daemon.status().position == before
    client.sandbox.terminate(made)
    client.snapshot.delete(snapshot.snapshot_id)


def test_trees_are_copied_in_and_out(client: Any, box: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "large").write_bytes(os.urandom(3 << 20))
    (tree / "deep" / "small").write_text("small\n")
    for _ in range(2):
        transfer.copy_in(client, str(tree), box, "copied")
        assert sh(client, box, "cat copied/deep/small; stat -c %s copied/large") == f"small\n{3 << 20}\n"
    transfer.copy_out(client, box, "copied", str(tmp_path / "back"))
    assert (tmp_path / "back" / "large").read_bytes() == (tree / "large").read_bytes()
    done = client.sandbox.exec(box, ["cat"], stdin=b"typed\n")  # whatever was opened for that is closed
    assert bytes(done.stdout) == b"typed\n"


def test_input_waits_for_whoever_reads_it(client: Any, box: str) -> None:
    """More than fits: what was taken is known, and all of it arrives."""
    data = os.urandom(1 << 20)
    client.process.launch(box, ["sh", "-c", "read go; sleep 0.2; exec wc -c"], name="slow", stdin=True)
    client.process.write_stdin(box, "slow", b"go\n")
    for start in range(0, len(data), 1 << 18):
        client.process.write_stdin(box, "slow", data[start : start + (1 << 18)], eof=start + (1 << 18) >= len(data))
    assert client.process.wait(box, "slow").exit_code == 0
    assert bytes(client.process.read(box, "slow").stdout).split() == [b"%d" % len(data)]
    refused("not_ready", client.process.write_stdin, box, "slow", b"more")


# -- limits and refusals ----------------------------------------------------------------------------------------------


def test_memory_that_is_used_up_ends_the_sandbox_and_says_so(client: Any, image: str) -> None:
    box = client.sandbox.create(image, memory_bytes=96 << 20).sandbox_id
    client.process.launch(box, ["python3", "-c", "x = bytearray(400 << 20)"], name="greedy")
    until(lambda: client.sandbox.get(box).status == "failed")
    assert "memory" in client.sandbox.get(box).error
    assert client.process.get(box, "greedy").error == f"its sandbox ended: {client.sandbox.get(box).error}"
    assert "used up its memory): resume it" in refused("not_ready", client.sandbox.exec, box, "true").message
    until(lambda: not processes_of(box))
    client.sandbox.terminate(box)


def test_it_is_killed_before_the_daemon_when_memory_ends(client: Any, box: str) -> None:
    scores = {int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in processes_of(box)}
    assert scores == {OOM_SCORE_ADJ}


@pytest.mark.needs("root")
def test_threads_of_the_host_are_bounded(client: Any, image: str) -> None:
    """The limit is made lower for one of two sandboxes: the machine's own is never near."""
    greedy, other = (client.sandbox.create(image).sandbox_id for _ in range(2))
    group = group_of(greedy)
    assert (group / "pids.max").read_text() == f"{plan.HOST_THREADS}\n"
    (group / "pids.max").write_text("120")
    client.process.launch(greedy, ["sh", "-c", "while :; do sleep 600 & done"], name="bomb")
    until(lambda: client.sandbox.get(greedy).status == "failed")
    assert sh(client, other, "echo served") == "served\n"
    for box in (greedy, other):
        client.sandbox.terminate(box)
    assert not group.exists()


def test_each_trap_is_told_in_a_sentence(client: Any) -> None:
    [told] = [p for p in client.daemon.capabilities().providers if p.provider == "gvisor"]
    features = {name: feature for name, feature in told.features.items() if not feature.works}
    assert {"limit_pids", "network_bridge", "forks", "incremental_snapshots"} <= set(features)
    assert all(len(feature.why) > 20 for feature in features.values())


# -- the words of runsc -----------------------------------------------------------------------------------------------


def test_its_settings_are_those_of_the_words(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan.Plan(
        uid=0, gid=0, network="none", rootless=False, writable=True, limits=Limits(), disk_bytes=1 << 30
    )  # fmt: skip
    base = runsc.command("/root", planned, "box")
    assert base[1:] == [
        "--root=/root",
        "--platform=ptrace",
        "--network=none",
        "--ignore-cgroups",
        "--overlay2=root:memory",
    ]
    for name, value in {
        "RUNSC_PLATFORM": "systrap", "RUNSC_IGNORE_CGROUPS": "0", "RUNSC_DEBUG_LOG_DIR": "/var/log/runsc",
        "RUNSC_STRACE": "1", "GVISOR_LOG_PACKETS": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    planned = msgspec.structs.replace(planned, network="host", writable=False, rootless=True)
    assert runsc.command("/root", planned, "box")[1:] == [
        "--root=/root", "--platform=systrap", "--network=host", "--rootless", "--debug",
        "--debug-log=/var/log/runsc/box/", "--strace", "--log-packets",
    ]  # fmt: skip
    monkeypatch.setenv("RUNSC_PLATFORM", "../x")
    error = refused("not_configured", PLATFORM)
    assert error.data["setting"] == "RUNSC_PLATFORM"


def test_settings_of_places_and_of_what_is_allowed(new_daemon: Callable[[], RunningDaemon], tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("x\n")
    daemon = new_daemon()
    roots, bundles = f"{daemon.root}/roots", f"{daemon.root}/bundles"
    daemon.env |= {
        "RUNSC_ROOT_DIR_BASE": roots, "RUNSC_BUNDLE_DIR_BASE": bundles, "RUNSC_READONLY_FILESYSTEM": "1",
        "RUNSC_DISABLE_NETWORKING": "1",
    }  # fmt: skip
    daemon.start()
    with daemon.connect() as client:
        image = client.image.create(str(source), provider="gvisor").image_id
        box = client.sandbox.create(image).sandbox_id
        assert os.listdir(roots) == [f"runsc_root_{box}"]
        assert os.listdir(bundles) == [f"runsc_bundle_{box}"]
        configuration = json.loads(Path(bundles, f"runsc_bundle_{box}", "config.json").read_text())
        assert configuration["root"]["readonly"] is True
        assert all(configuration["process"]["capabilities"][kind] == [] for kind in ("bounding", "effective"))
        assert client.sandbox.exec(box, ["sh", "-c", "echo x >new"]).exit_code != 0
        assert client.sandbox.exec(box, ["sh", "-c", "echo x >/tmp/new"]).exit_code == 0
        assert (
            "RUNSC_DISABLE_NETWORKING" in refused("not_supported", client.sandbox.create, image, network="host").message
        )
        client.sandbox.terminate(box)
        assert (os.listdir(roots), os.listdir(bundles)) == ([], [])


def test_what_a_rootless_runsc_cannot_restore_is_not_saved(
    new_daemon: Callable[[], RunningDaemon], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    daemon = new_daemon()
    daemon.env["RUNSC_ROOTLESS"] = "1"
    daemon.start()
    with daemon.connect() as client:
        (gvisor,) = [each for each in client.daemon.capabilities().providers if each.provider == "gvisor"]
        assert not gvisor.features["suspend"].works
        assert not gvisor.features["checkpoints"].works
        image = client.image.create(str(source), provider="gvisor").image_id
        box = client.sandbox.create(image).sandbox_id
        for save in (client.sandbox.suspend, client.checkpoint.create):
            assert "rootless" in refused("not_supported", save, box).message
        assert client.sandbox.exec(box, ["echo", "goes on"]).stdout == b"goes on\n"
        client.sandbox.terminate(box)


def test_daemons_that_share_a_place_leave_each_others_sandboxes(
    new_daemon: Callable[[], RunningDaemon], tmp_path: Path
) -> None:
    """The settings are variables, which two daemons of one machine may well have in common."""
    source, base = tmp_path / "source", tmp_path / "base"
    source.mkdir()
    base.mkdir()
    first, second = new_daemon(), new_daemon()
    for daemon in (first, second):
        daemon.env |= {"RUNSC_ROOT_DIR_BASE": str(base), "RUNSC_BUNDLE_DIR_BASE": str(base)}
    first.start()
    with first.connect() as client:
        image = client.image.create(str(source), provider="gvisor").image_id
        client.sandbox.create(image, name="box")
        standing = client.sandbox.create(image).sandbox_id
        client.sandbox.suspend(standing)
        second.start()
        with second.connect() as other:
            until(lambda: f"{base}/runsc_bundle_{standing}" in "".join(other.daemon.status().foreign))
            theirs = other.image.create(str(source), provider="gvisor").image_id
            own = other.sandbox.create(theirs, name="box").sandbox_id
            assert other.sandbox.exec(own, "echo hi").stdout == b"hi\n"
            other.sandbox.terminate(own)
        assert client.sandbox.exec("box", "echo hi").stdout == b"hi\n"
        assert client.sandbox.resume(standing).status == "running"
        client.sandbox.terminate("box")
        client.sandbox.terminate(standing)


def test_a_bundle_of_another_log_is_not_taken(tmp_path: Path) -> None:
    """Sandboxes of older logs have the ids that callers chose, which two daemons may have in common."""
    bundle = str(tmp_path / "runsc_bundle_box")
    ours: Any = SimpleNamespace(bundle=bundle, log_id=new_id("log"))
    theirs: Any = SimpleNamespace(bundle=bundle, log_id=new_id("log"))
    gvisor_start.claim(ours)
    gvisor_start.claim(ours)
    assert "another daemon" in refused("not_configured", gvisor_start.claim, theirs).message


def test_secrets_are_in_no_configuration(client: Any, image: str, shared_daemon: RunningDaemon) -> None:
    box = client.sandbox.create(image, secrets={"TOKEN": "hush-71aa"}, env={"PLAIN": "seen"}).sandbox_id
    assert sh(client, box, "echo ${#TOKEN} $PLAIN") == "9 seen\n"
    for root, _, names in os.walk(f"{shared_daemon.state_dir}/gvisor"):
        for name in names:
            assert b"hush-71aa" not in Path(root, name).read_bytes()
    assert not any("hush-71aa" in word for words in processes_of(box).values() for word in words)
    client.sandbox.terminate(box)


def test_a_sandbox_that_is_ended_from_outside_has_failed(client: Any, image: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    client.process.launch(box, ["sleep", "1000"], name="sleeper")
    end_kernel(box)
    until(lambda: client.sandbox.get(box).status == "failed")
    assert client.process.get(box, "sleeper").status == "lost"
    refused("not_ready", client.sandbox.exec, box, ["true"])
    until(lambda: processes_of(box) == {})
    client.sandbox.terminate(box)


def test_a_failed_sandbox_comes_back_from_its_checkpoint(client: Any, image: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    sh(client, box, "echo kept >kept")
    client.process.launch(box, ["sh", "-c", "read x; echo $x"], name="reader", stdin=True)
    checkpoint = client.checkpoint.create(box, leave_running=True)
    end_kernel(box)
    until(lambda: client.sandbox.get(box).status == "failed")
    assert client.sandbox.restore(box, checkpoint_id=checkpoint.checkpoint_id).status == "running"
    assert sh(client, box, "cat kept") == "kept\n"
    client.process.write_stdin(box, "reader", b"again\n", eof=True)
    assert client.process.wait(box, "reader").exit_code == 0
    client.sandbox.terminate(box)
    client.checkpoint.delete(checkpoint.checkpoint_id)
