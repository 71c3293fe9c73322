"""Checkpoints when `runsc` fails, or the disk, or what was saved: a real daemon, the real runsc behind a wrapper."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from tests.conftest import RunningDaemon, daemon_in
from tests.daemon.checkpoints.test_checkpoints import LATE, House, own_house, source_tree  # noqa: F401  # fixtures
from tests.daemon.providers.gvisor.test_provider import end_kernel, processes_of
from tests.support.disks import mount, umount
from tests.support.expect import refused, refused_async, until
from tests.support.inside import inside
from tests.support.patience import patient

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.eventlog.log import NewEvent
from sandkeepd.checkpoints import restoration
from sandkeepd.host.digests import BLAKE3, Digest
from sandkeepd.providers.gvisor import digest as gvisor_digest
from sandkeepd.providers.gvisor import disk_space, runsc, start
from sandkeepd.providers.gvisor.digest import Follower
from sandkeepd.providers.gvisor.provider import GvisorProvider, open_gvisor

pytestmark = [pytest.mark.needs("runsc"), pytest.mark.needs("root")]

WRAPPER = """#!/bin/sh
runsc={runsc} command=none image= pid_file= last=
for word; do
    case $word in
    checkpoint | restore) command=$word ;;
    --image-path=*) image=${{word#*=}} ;;
    esac
    [ "$last" = --pid-file ] && pid_file=$word
    last=$word
done
fault={faults}/$command
[ -f "$fault" ] && . "$fault"
exec "$runsc" "$@"
"""
"""A `runsc` that does for a subcommand what a file says that is called like it."""

REFUSES = "echo 'error: a test' >&2; exit 1"
DAMAGED = """
mv "$image/checkpoint.img" "$image/.whole"
head -c 5000 "$image/.whole" >"$image/checkpoint.img"
"""
SAYS_NO_BUT_RUNS = '"$runsc" "$@"; exit 1'
DIES = """
"$runsc" "$@"
pid=$(cat "$pid_file")
kill -9 "$pid"
while [ -n "$(tr -d '\\0' 2>/dev/null <"/proc/$pid/cmdline")" ]; do :; done
exit 0
"""
ONCE = 'rm "$fault"\n'


class Faulty(House):
    """One whose `runsc` fails when a test says so."""

    def __init__(self, daemon: RunningDaemon, source: Path, *, directly: bool = False) -> None:
        """`directly`: a kernel is asked to save itself as it always is, and not by `runsc` alone."""
        self.faults = f"{daemon.root}/faults"
        os.mkdir(self.faults)
        bin_ = f"{daemon.root}/bin"
        os.mkdir(bin_)
        Path(bin_, "runsc").write_text(WRAPPER.format(runsc=runsc.program(), faults=self.faults))
        os.chmod(f"{bin_}/runsc", 0o755)
        words = f"import sandkeepd.providers.gvisor.runsc as r; r.PROGRAM_PATH = '{bin_}:' + r.PROGRAM_PATH"
        words += "" if directly else "; r.KNOWN_KERNELS = ()"
        daemon.program = [daemon.program[0], "-c", f"{words}; from sandkeepd.main import main; main()"]
        daemon.start()
        super().__init__(daemon, source)

    @contextmanager
    def fault(self, command: str, script: str) -> Iterator[None]:
        """Have `runsc` do something else, for the length of a block."""
        path = Path(self.faults, command)
        path.write_text(script)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def again(self) -> None:
        """Another daemon, after this one was killed."""
        self.daemon.kill()
        self.daemon.start()

    def status(self, box: str) -> str:
        return str(self.client.sandbox.get(box).status)

    def types(self, box: str) -> list[str]:
        return [event.type for event in self.client.sandbox.history(box).events]

    def bundle(self, box: str) -> str:
        return f"{self.daemon.state_dir}/gvisor/runsc_bundle_{box}"

    def kept(self, box: str) -> list[str]:
        """What is kept of a sandbox to be brought back from."""
        names = os.listdir(self.bundle(box))
        return sorted(name for name in names if name in ("saving", "saved", "aside") or name.startswith("from-"))

    def kernels(self, box: str) -> int:
        return [words[0] for words in processes_of(box).values()].count("runsc-sandbox")

    def goes_on_whole(self, box: str) -> None:
        """See the counter go on from where it was, in one kernel that answers, and nothing that is kept for the case
        that it does not. Its journal may have what was written meanwhile by one that was brought back in vain.
        """
        values = self.goes_on(box)
        assert sorted(set(values)) == list(range(1, values[-1] + 1))
        assert self.status(box) == "running"
        assert self.kept(box) == []
        assert self.kernels(box) == 1
        self.sh(box, "true")

    def stands_still(self, box: str) -> None:
        """See that it is suspended, and that this is told."""
        until(lambda: (one := self.client.sandbox.get(box)).status == "suspended" and one.note is None)
        assert (self.kept(box), self.kernels(box)) == (["saved"], 0)

    def nothing_came_of_it(self, box: str) -> None:
        """See that the last checkpoint of a sandbox has failed, and that nothing of it is on the disk."""
        failed = self.client.checkpoint.list(sandbox_id=box, all=True).checkpoints[-1]
        assert (failed.status, failed.files) == ("failed", [])
        folder = f"{self.daemon.state_dir}/archives/sandbox_checkpoints"
        assert [name for name in os.listdir(folder) if failed.checkpoint_id in name] == []


@pytest.fixture(scope="module")
def house(places: str, source_tree: Path) -> Iterator[Faulty]:  # noqa: F811
    with daemon_in(places) as daemon, closing(Faulty(daemon, source_tree)) as made:
        yield made


@pytest.fixture
def box(house: Faulty) -> Iterator[str]:
    made = house.box()
    house.counting(made)
    yield made
    house.end(made)


# -- going back -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gone_on(house: Faulty) -> Iterator[tuple[str, str]]:
    """A sandbox that has a checkpoint, and in which a lot has happened since."""
    box = house.box()
    house.counting(box)
    house.client.process.launch(box, "read x; exit 3", name="gone", stdin=True)
    checkpoint = house.checkpoint(box)
    house.client.process.write_stdin(box, "gone", b"once\n", eof=True)
    assert house.client.process.wait(box, "gone").exit_code == 3
    house.client.process.launch(box, ["cat"], name="later", stdin=True)
    house.sh(box, "echo new >new")
    yield box, checkpoint.checkpoint_id
    house.end(box)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)


@pytest.mark.parametrize(
    ("command", "script", "code"),
    [
        ("checkpoint", REFUSES, "provider_unavailable"),
        ("restore", REFUSES, "snapshot_corrupt"),
        ("restore", DAMAGED, "snapshot_corrupt"),
        ("restore", SAYS_NO_BUT_RUNS, "snapshot_corrupt"),
        ("restore", DIES, "snapshot_corrupt"),
    ],
    ids=["not saved", "refused", "damaged", "said to have failed", "died"],
)
def test_who_cannot_go_back_is_what_he_was(
    house: Faulty, gone_on: tuple[str, str], command: str, script: str, code: str
) -> None:
    box, checkpoint_id = gone_on
    before = house.types(box).count("sandbox.restore_failed")
    answers = Path(house.daemon.state_dir, "sandboxes", box, "out", "exits")
    answered = answers.read_bytes()
    with house.fault(command, ONCE + script):
        refused(code, house.client.sandbox.restore, box, checkpoint_id=checkpoint_id)
    house.goes_on_whole(box)
    assert house.sh(box, "cat new") == "new\n"
    assert answers.read_bytes().startswith(answered)
    assert house.client.process.get(box, "gone").exit_code == 3
    typed = len(bytes(house.client.process.read(box, "later").stdout))
    house.client.process.write_stdin(box, "later", b"typed\n")
    until(lambda: len(bytes(house.client.process.read(box, "later").stdout)) == typed + 6)
    types = house.types(box)
    assert (types.count("sandbox.restore_failed"), "sandbox.restored" in types) == (before + 1, False)


def test_what_can_go_neither_back_nor_on_stands_still(house: Faulty, gone_on: tuple[str, str]) -> None:
    """Also in the eyes of the next daemon; and a second failure does not make it worse."""
    box, checkpoint_id = gone_on
    with house.fault("restore", REFUSES):
        for _ in range(2):
            refused("snapshot_corrupt", house.client.sandbox.restore, box, checkpoint_id=checkpoint_id)
            house.stands_still(box)
        house.again()
        house.stands_still(box)
    with house.fault("restore", ONCE + REFUSES):
        refused("snapshot_corrupt", house.client.sandbox.restore, box, checkpoint_id=checkpoint_id)
    house.stands_still(box)
    house.client.sandbox.resume(box)
    house.goes_on_whole(box)
    assert house.sh(box, "cat new") == "new\n"


def test_what_cannot_be_put_back_has_failed_and_is_aside(house: Faulty, box: str) -> None:
    """What it was stays there until it is ended. It can be brought back from a checkpoint."""
    checkpoint = house.checkpoint(box)
    out = f"{house.daemon.state_dir}/sandboxes/{box}/out"
    in_the_way = f'rm "{out}/exits"; mkdir -p "{out}/exits/in-the-way"\n'
    with house.fault("restore", ONCE + in_the_way + REFUSES):
        refused("snapshot_corrupt", house.client.sandbox.restore, box, checkpoint_id=checkpoint.checkpoint_id)
    until(lambda: house.status(box) == "failed")
    assert "could not be restored" in house.client.sandbox.get(box).error
    assert house.kept(box) == ["aside"]
    refused("not_ready", house.client.sandbox.exec, box, ["true"])
    house.again()
    assert (house.status(box), house.kept(box), house.kernels(box)) == ("failed", ["aside"], 0)
    shutil.rmtree(f"{out}/exits")
    house.client.sandbox.restore(box, checkpoint_id=checkpoint.checkpoint_id)
    assert house.goes_on(box)
    assert (house.status(box), house.kept(box)) == ("running", [])
    house.client.checkpoint.delete(checkpoint.checkpoint_id)


async def test_one_that_does_not_answer_makes_way_for_what_was_there(
    state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs, but nothing of it can be found. If it cannot make way, the sandbox has failed."""

    async def silent(*_: object) -> list[NewEvent]:
        raise ProviderError("provider_unavailable", "a test")

    def cannot(*_: object) -> None:
        raise OSError(errno.EIO, "a test")

    monkeypatch.setattr(restoration, "_found", silent)
    async with inside(state_dir, opened=opened) as daemon:
        image = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image, name="box")).sandbox_id
        checkpoint = await daemon.call("checkpoint.create", sandbox_id="box", leave_running=True)
        back = {"sandbox_id": "box", "checkpoint_id": checkpoint.checkpoint_id}
        await daemon.call("sandbox.exec", sandbox_id="box", command="echo new >new")
        with pytest.raises(ProviderError):
            await daemon.call("sandbox.restore", **back)
        assert (await daemon.call("sandbox.get", sandbox_id="box")).status == "running"
        assert (await daemon.call("sandbox.exec", sandbox_id="box", command="cat new")).stdout == b"new\n"
        monkeypatch.setattr(start, "_replace_answers", cannot)
        with pytest.raises(ProviderError):
            await daemon.call("sandbox.restore", **back)
        assert (await daemon.call("sandbox.get", sandbox_id="box")).status == "failed"
        assert os.path.exists(f"{state_dir}/gvisor/runsc_bundle_{box}/aside/{start.IMAGE}")
        assert (await daemon.types(box))[-1] == "sandbox.restore_failed"
        assert runsc.processes(f"{state_dir}/gvisor/runsc_root_{box}") == []
        await daemon.call("sandbox.terminate", sandbox_id="box")


async def test_an_end_waits_for_what_makes_way(state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox is not ended while it is being put back, or what was put back would stay."""
    overlapped = list[bool]()

    async def silent(*_: object) -> list[NewEvent]:
        raise ProviderError("provider_unavailable", "a test")

    monkeypatch.setattr(restoration, "_found", silent)
    async with inside(state_dir, opened=opened) as daemon, trio.open_nursery() as nursery:
        terminate, at_it = daemon.provider.terminate, trio.Event()
        under_way = list[object]()

        async def put_back(*asked: object) -> bool:
            under_way.append(asked)
            at_it.set()
            try:
                await trio.sleep_forever()
            finally:
                under_way.pop()
            return False

        async def ended(*asked: object) -> None:
            overlapped.append(bool(under_way))
            await terminate(*asked)

        image = await daemon.image(source)
        await daemon.call("sandbox.create", image_id=image, name="box")
        checkpoint = await daemon.call("checkpoint.create", sandbox_id="box", leave_running=True)
        monkeypatch.setattr(daemon.provider.replacement, "put_back", put_back)
        monkeypatch.setattr(daemon.provider, "terminate", ended)
        back = partial(daemon.call, "sandbox.restore", sandbox_id="box", checkpoint_id=checkpoint.checkpoint_id)
        nursery.start_soon(lambda: refused_async("not_ready", back()))
        await at_it.wait()
        with trio.fail_after(patient(30)):
            await daemon.call("sandbox.terminate", sandbox_id="box")
        nursery.cancel_scope.cancel()
    assert overlapped == [False]


def opened(state_dir: str, log_id: str) -> AbstractAsyncContextManager[GvisorProvider]:
    return open_gvisor(state_dir, uid_base=1_900_000_000, disk_limit=1 << 30, log_id=log_id)


# -- going on ---------------------------------------------------------------------------------------------------------


def test_one_that_cannot_be_resumed_stays_suspended(house: Faulty, box: str) -> None:
    house.client.sandbox.suspend(box)
    with house.fault("restore", REFUSES):
        refused("snapshot_corrupt", house.client.sandbox.resume, box)
        house.stands_still(box)
        house.again()
        refused("snapshot_corrupt", house.client.sandbox.resume, box)
        house.stands_still(box)
    house.client.sandbox.resume(box)
    house.goes_on_whole(box)


def test_one_that_was_to_stand_still_for_a_moment_and_cannot_go_on(house: Faulty, box: str) -> None:
    """It is suspended, by its own word and by that of the next daemon, and can be ended."""
    with house.fault("restore", SAYS_NO_BUT_RUNS):
        refused("snapshot_corrupt", house.checkpoint, box)
        house.stands_still(box)
        house.nothing_came_of_it(box)
        house.again()
        house.stands_still(box)
        refused("snapshot_corrupt", house.client.sandbox.resume, box)
        house.end(box)
    assert house.status(box) == "stopped"
    assert not os.path.exists(house.bundle(box))


def test_what_the_next_daemon_cannot_bring_back_is_suspended(house: Faulty, box: str) -> None:
    house.daemon.stop()
    house.daemon.start(**{failpoints.SETTING: "checkpoint.saved"})
    with house.daemon.connect(patience_s=0) as client, pytest.raises(SandkeepError):
        client.checkpoint.create(box, leave_running=True)
    assert house.daemon.process is not None
    house.daemon.process.wait(LATE)
    with house.fault("restore", REFUSES):
        house.daemon.start()
        house.stands_still(box)
    house.nothing_came_of_it(box)
    house.client.sandbox.resume(box)
    house.goes_on_whole(box)


# -- saving -----------------------------------------------------------------------------------------------------------

NO_FILE = '"$runsc" "$@" && ln -s nowhere "$image/extra"; exit\n'
IN_THE_WAY = """
for making in {state}/archives/sandbox_checkpoints/*.making; do mkdir -p "${{making%.making}}/in-the-way"; done
"""
NO_PLACE = "rm -r {state}/archives/sandbox_checkpoints/*.making\n"


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        (REFUSES, ("provider_unavailable", "provider_unavailable")),
        (NO_FILE, ("storage_unavailable", "storage_unavailable")),
        (NO_PLACE, ("storage_unavailable", "storage_unavailable")),
        (IN_THE_WAY, ("storage_unavailable", "storage_unavailable")),
    ],
    ids=["not saved", "not written", "not kept", "not published"],
)
@pytest.mark.parametrize("leave_running", [True, False])
def test_what_is_not_kept_goes_on(
    house: Faulty, gone_on: tuple[str, str], script: str, codes: tuple[str, str], leave_running: bool
) -> None:
    """Also after it was saved, and has ended with that."""
    box = gone_on[0]
    before = house.types(box).count("sandbox.suspend_failed")
    with house.fault("checkpoint", ONCE + script.format(state=house.daemon.state_dir)):
        refused(codes[leave_running], house.checkpoint, box, leave_running=leave_running)
    house.goes_on_whole(box)
    house.nothing_came_of_it(box)
    assert house.types(box).count("sandbox.suspend_failed") - before == (not leave_running)


def test_one_that_was_not_saved_is_looked_after_still(house: Faulty, box: str) -> None:
    with house.fault("checkpoint", REFUSES):
        refused("provider_unavailable", house.checkpoint, box)
        refused("provider_unavailable", house.client.sandbox.suspend, box)
    end_kernel(box)
    until(lambda: house.status(box) == "failed")


def test_what_runsc_ends_without_saving_it_has_failed(house: Faulty, box: str) -> None:
    with house.fault("checkpoint", ONCE + SAYS_NO_BUT_RUNS):
        refused("provider_unavailable", house.checkpoint, box)
    until(lambda: house.status(box) == "failed")
    house.nothing_came_of_it(box)
    assert "its kernel" in house.client.sandbox.get(box).error
    assert house.client.process.get(box, "counter").status == "lost"


def test_a_kernel_that_is_known_is_not_asked_by_runsc(places: str, source_tree: Path) -> None:  # noqa: F811
    """Neither to be suspended, nor for a checkpoint."""
    if runsc.version() not in runsc.KNOWN_KERNELS:
        pytest.skip("this runsc is another")
    with daemon_in(places) as daemon, closing(Faulty(daemon, source_tree, directly=True)) as house:
        box = house.box()
        house.counting(box)
        with house.fault("checkpoint", REFUSES):
            house.checkpoint(box, leave_running=True)
            house.client.sandbox.suspend(box)
            house.client.sandbox.resume(box)
        house.goes_on_whole(box)


# -- room -------------------------------------------------------------------------------------------------------------

FILL = "import os, time; x = os.urandom(120 << 20); print(1, flush=True); time.sleep(1000)"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[str]:
    """A small disk."""
    place = tmp_path / "small"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=64m", "none", str(place))
    try:
        yield str(place)
    finally:
        umount(str(place))


def test_what_fits_just_so_is_saved(own_house: Callable[..., House], small: str) -> None:  # noqa: F811
    """The room that was taken before is given to what is written, as it is written."""
    house = own_house(RUNSC_BUNDLE_DIR_BASE=small)
    box = house.box()
    house.counting(box)
    house.client.process.launch(box, ["python3", "-c", FILL], name="full")
    until(lambda: bytes(house.client.process.read(box, "full").stdout))
    most = runsc.max_saved_bytes(f"{small}/runsc_bundle_{box}")
    mount("-o", f"remount,size={most - (1 << 20)}", small)
    assert "room" in refused("storage_unavailable", house.checkpoint, box).message
    house.goes_on(box)
    mount("-o", f"remount,size={most + (4 << 20)}", small)
    checkpoint = house.checkpoint(box)
    house.goes_on(box)
    size = {file.name: file.size_bytes for file in checkpoint.files}["checkpoint.img"]
    assert size > disk_space.AHEAD_BYTES + (8 << 20)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)
    house.end(box)


# -- the digest -------------------------------------------------------------------------------------------------------


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[tuple[Path, Follower]]:
    """A file that is being written, and who follows it."""
    path = tmp_path / "image"
    follower = Follower(str(path))
    assert not follower.advance()
    path.write_bytes(bytes(5) + os.urandom(2 * gvisor_digest._AT_ONCE_BYTES))
    yield path, follower
    follower.close()


def test_who_follows_a_file_gives_others_their_turn(growing: tuple[Path, Follower]) -> None:
    """However much is there already: meanwhile room is made for more."""
    path, follower = growing
    assert [follower.advance() for _ in range(4)] == [True, True, False, False]
    with path.open("ab") as file:
        file.write(b"more")
    content, digest = path.read_bytes(), Digest(BLAKE3)
    digest.update(content)
    assert follower.result() == (digest.text(), len(content))


def test_no_digest_is_told_of_a_file_that_was_changed(growing: tuple[Path, Follower]) -> None:
    path, follower = growing
    follower.advance()
    assert follower.result() is not None
    os.truncate(path, 2 * gvisor_digest._AT_ONCE_BYTES)
    assert follower.result() is None
    with path.open("r+b") as file:
        file.truncate(5 + 2 * gvisor_digest._AT_ONCE_BYTES)
        file.write(b"head!")
    assert follower.result() is None


def test_what_cannot_be_read_has_no_digest_and_fails_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for name in (".", "link", "none"):
        follower = Follower(str(tmp_path / name))
        assert not follower.advance()
        assert follower.result() is None
        follower.close()
