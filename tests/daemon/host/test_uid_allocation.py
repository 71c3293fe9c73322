"""Host uids are claimed in a registry that all root daemons share, and nobody gets another's."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.support import disks
from tests.support.patience import patient

from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeepd.host.uids import allocation, processes, registry
from sandkeepd.host.uids.accounts import Accounts
from sandkeepd.host.uids.allocation import REST_S, Claims
from sandkeepd.host.uids.registry import Registry

pytestmark = pytest.mark.needs("root")

BASE = 1_700_000_000 + os.getpid() * 100


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only 40 uids, so that two who choose at random meet."""
    monkeypatch.setattr(allocation, "UID_RANGE", 41)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the time."""
    past = [0]

    def move(seconds: int) -> None:
        past[0] += seconds

    def later(now: Callable[[], int] = registry.now) -> int:
        return now() + past[0]

    monkeypatch.setattr(registry, "now", later)
    monkeypatch.setattr(allocation, "now", later)
    return move


Begin = Callable[[int], "subprocess.Popen[bytes]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Starts a process of a uid, which is gone afterwards."""
    begun: list[subprocess.Popen[bytes]] = []

    def make(uid: int) -> "subprocess.Popen[bytes]":
        begun.append(subprocess.Popen(["sleep", "1000"], user=uid, group=uid, extra_groups=[]))
        return begun[-1]

    yield make
    for child in begun:
        child.kill()
        child.wait()


class Machine:
    """A registry, and daemons that come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = root / "run" / "uids"
        self.registry = Registry(str(self.path))
        (root / "etc").mkdir(parents=True)

    def daemon(self, name: str = "one", base: int = BASE) -> Claims:
        """One that is started, again if there was one of that name."""
        home = self.root / name
        home.mkdir(exist_ok=True)
        log_id = "log_" + name.ljust(26, "0")
        accounts = Accounts(str(self.root / "etc"))
        return Claims(self.registry, base=base, log_id=log_id, home=str(home), accounts=accounts)

    def states(self) -> dict[str, int]:
        """How many entries there are of each state, but for that of the images."""
        found: dict[str, int] = {}
        for entry in self.registry.entries().values():
            found[entry.state] = found.get(entry.state, 0) + 1
        found.pop("images", None)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def everything(claims: Claims) -> list[int]:
    """Claim until nothing is left."""
    found = list[int]()

    def claim_all() -> None:
        for number in count():
            found.append(claims.claim(f"sbx{number}"))

    with pytest.raises(ProviderError, match="terminate sandboxes"):
        claim_all()
    return found


@pytest.mark.usefixtures("few")
def test_many_at_once_share_none(machine: Machine) -> None:
    daemons = [machine.daemon(f"d{number}") for number in range(4)]
    found: list[list[int]] = [[] for _ in daemons]
    together = threading.Barrier(len(daemons))

    def work(number: int) -> None:
        together.wait()
        for _ in range(10):
            found[number].append(daemons[number].claim("box"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(daemons))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    uids = [uid for some in found for uid in some]
    assert sorted(uids) == list(range(BASE + 1, BASE + 41))
    with pytest.raises(ProviderError, match="none is free"):
        machine.daemon().claim("box")


def test_what_a_caller_chooses_decides_nothing(tmp_path: Path) -> None:
    machines = [Machine(tmp_path / str(number)) for number in range(20)]
    assert len({machine.daemon().claim("same") for machine in machines}) > 15


@pytest.mark.usefixtures("few")
def test_uids_of_accounts_are_not_given(machine: Machine) -> None:
    etc = machine.root / "etc"
    (etc / "passwd").write_text(f"# no line\n\nmary:x:{BASE + 1}:5:,,,:/:/bin/sh\n")
    (etc / "group").write_text(f"staff:x:{BASE + 2}:mary\n")
    (etc / "subuid").write_text(f"mary:{BASE + 3}:10\nbroken:x:y\n")
    (etc / "subgid").write_text(f"mary:{BASE + 20}:19\n")
    daemon = machine.daemon()
    given = everything(daemon)
    assert sorted(given) == [*range(BASE + 13, BASE + 20), BASE + 39, BASE + 40]
    daemon.withdraw(BASE + 13)
    with (etc / "passwd").open("a") as passwd:
        passwd.write(f"joe:x:{BASE + 13}:5::/:/bin/sh\n")
    with pytest.raises(ProviderError):
        daemon.claim("box")
    assert not daemon.reclaim("box", BASE + 1), "nor is it taken because it is on record"


@pytest.mark.usefixtures("few")
def test_a_uid_of_which_there_is_a_process_is_not_given(machine: Machine, begin: Begin) -> None:
    victim = BASE + 7
    begin(victim)
    assert victim not in everything(machine.daemon())


def test_a_uid_rests_after_use(machine: Machine, few: None, clock: Callable[[int], None]) -> None:
    daemon = machine.daemon()
    uids = everything(daemon)
    daemon.release("not its sandbox", uids[0])
    assert machine.states() == {"claimed": 40}
    for uid in uids[:2]:
        daemon.release(machine.registry.entries()[uid].sandbox_id, uid)
    assert machine.states() == {"claimed": 38, "resting": 2}
    for another in (machine.daemon(), machine.daemon("two")):
        with pytest.raises(ProviderError):
            another.claim("box")
    clock(REST_S - 10)
    with pytest.raises(ProviderError):
        machine.daemon("two").claim("box")
    clock(20)
    assert sorted(everything(machine.daemon("two"))) == sorted(uids[:2])


def test_nothing_is_ended_but_what_is_claimed(machine: Machine, begin: Begin) -> None:
    mine, theirs = machine.daemon("one"), machine.daemon("two")
    uid = theirs.claim("box")
    child = begin(uid)
    assert not mine.reclaim("box", uid)
    mine.end("box", uid)
    mine.release("box", uid)
    mine.withdraw(uid)
    mine.reconcile({uid: "box"})
    mine.reconcile({})
    mine.sweep()
    assert child.poll() is None
    assert machine.states() == {"claimed": 1}
    theirs.release("box", uid)
    assert child.wait(patient(60)) == -9
    assert machine.states() == {"resting": 1}
    child = begin(uid)
    theirs.release("box", uid)  # it rests: whatever has it now is not the sandbox's
    assert child.poll() is None


def test_a_daemon_that_died_before_the_record(machine: Machine) -> None:
    before = machine.daemon()
    kept, lost = before.claim("kept"), before.claim("lost")
    after = machine.daemon()
    planned = after.claim("planned")  # not on record yet, and not to be given back
    assert after.reconcile({kept: "kept"}) == []
    found = machine.registry.entries()
    assert [found[uid].state for uid in (kept, lost, planned)] == ["claimed", "resting", "claimed"]
    after.withdraw(planned)
    assert planned not in machine.registry.entries()


def test_a_sandbox_that_is_made_after_all_has_its_uid_again(machine: Machine) -> None:
    daemon = machine.daemon()
    uid = daemon.claim("box")
    daemon.release("box", uid)
    assert not machine.daemon("two").reclaim("box", uid)
    assert machine.daemon().reclaim("box", uid)
    assert machine.states() == {"claimed": 1}


def test_a_registry_that_is_removed_is_made_anew(machine: Machine, begin: Begin, few: None) -> None:
    living, away = machine.daemon("living"), machine.daemon("away")
    mine, theirs = living.claim("mine"), away.claim("theirs")
    running = begin(theirs)
    shutil.rmtree(machine.path)
    living.renew()
    assert set(machine.registry.entries()) == {BASE, mine}
    given = everything(living)
    assert mine not in given
    assert theirs not in given, "its sandbox runs"
    again = machine.daemon("away")
    assert again.reclaim("theirs", theirs)
    shutil.rmtree(machine.path)
    again.release("theirs", theirs)
    assert running.wait(patient(60)) == -9
    assert machine.states() == {"resting": 1}


def test_who_comes_too_late_is_told(machine: Machine, few: None) -> None:
    daemon = machine.daemon("first")
    uid = daemon.claim("box")
    shutil.rmtree(machine.path)
    assert uid in everything(machine.daemon("second"))
    daemon.renew()
    assert not daemon.reclaim("box", uid)
    daemon.release("box", uid)
    assert machine.states() == {"claimed": 40}


def test_after_a_boot_nothing_is_claimed(machine: Machine, monkeypatch: pytest.MonkeyPatch, few: None) -> None:
    daemon = machine.daemon()
    uid = daemon.claim("box")
    everything(daemon)
    monkeypatch.setattr(registry, "this_boot", lambda: "another-boot")
    assert len(everything(machine.daemon("two"))) == 40
    assert not machine.daemon().reclaim("box", uid)
    monkeypatch.setattr(registry, "this_boot", lambda: "one-more-boot")
    assert machine.daemon().reconcile({uid: "box"}) == []
    found = machine.registry.entries()[uid]
    assert (found.state, found.sandbox_id, found.boot) == ("claimed", "box", "one-more-boot")


def test_uids_of_a_log_that_is_gone(machine: Machine, begin: Begin, few: None, clock: Callable[[int], None]) -> None:
    uids = everything(machine.daemon("gone"))
    runs = uids[0]
    begin(runs)
    shutil.rmtree(machine.root / "gone")
    clock(REST_S + 1)
    machine.daemon().sweep()
    assert machine.states() == {"claimed": 1, "resting": 39}
    clock(REST_S + 1)
    assert sorted(everything(machine.daemon())) == sorted(uids[1:])


def test_a_log_that_only_seemed_to_be_gone(machine: Machine, clock: Callable[[int], None]) -> None:
    """As to a daemon in a mount namespace of its own."""
    daemon = machine.daemon("hidden")
    uid = daemon.claim("box")
    (machine.root / "hidden").rename(machine.root / "elsewhere")
    clock(REST_S + 1)
    machine.daemon().sweep()
    assert machine.states() == {"resting": 1}
    (machine.root / "elsewhere").rename(machine.root / "hidden")
    daemon.renew()
    assert machine.registry.read(uid) is not None
    assert machine.states() == {"claimed": 1}


def test_a_copy_of_a_state_directory_has_not_its_claims(machine: Machine) -> None:
    original = machine.daemon()
    uid = original.claim("box")
    copy = Claims(machine.registry, base=BASE, log_id="log_" + "one".ljust(26, "0"), home=str(machine.root / "copy"))
    assert not copy.reclaim("box", uid)
    copy.reconcile({})
    assert machine.states() == {"claimed": 1}


def test_one_that_cannot_be_ended_is_never_given_again(
    machine: Machine, few: None, clock: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = machine.daemon()
    uid = daemon.claim("box")
    monkeypatch.setattr(processes, "kill_all_of", lambda _: False)  # see `test_uid_processes` for one that is so
    daemon.release("box", uid)
    monkeypatch.undo()
    clock(10 * REST_S)
    assert machine.states() == {"stuck": 1}
    machine.daemon().sweep()
    [sentence] = machine.daemon().reconcile({})
    assert sentence.startswith(f"host uid {uid} of sandbox box: processes of it could not be ended")
    monkeypatch.setattr(allocation, "UID_RANGE", 41)
    assert uid not in everything(machine.daemon("two"))


# -- what others put there --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
def test_what_is_planted_in_the_registry_is_left_and_not_given(machine: Machine) -> None:
    daemon = machine.daemon()
    daemon.withdraw(daemon.claim("box"))
    precious = machine.root / "precious"
    precious.write_text("kept")
    (machine.path / str(BASE + 1)).write_text("claimed")
    (machine.path / str(BASE + 2)).mkdir()
    (machine.path / str(BASE + 3)).symlink_to(precious)
    (machine.path / str(BASE + 4)).symlink_to("claimed x y log box home")
    (machine.path / str(BASE + 5)).symlink_to("claimed")
    os.mkfifo(machine.path / str(BASE + 6))
    for name in ("lock", "-1", "0" * 5, "१२३", "9" * 200, f".{BASE}.1"):
        (machine.path / name).symlink_to("nowhere")
    planted = set(os.listdir(machine.path))
    given = everything(daemon)
    assert sorted(given) == list(range(BASE + 7, BASE + 41))
    for uid in range(BASE + 1, BASE + 7):
        assert not daemon.reclaim("box", uid)
        daemon.release("box", uid)
    daemon.reconcile({})
    daemon.sweep()
    daemon.renew()
    assert planted <= set(os.listdir(machine.path))
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("what", ["others may enter", "another's", "a link", "a file"])
def test_a_registry_that_is_not_roots_alone_is_refused(machine: Machine, what: str) -> None:
    machine.path.parent.mkdir()
    if what == "a link":
        (machine.root / "theirs").mkdir(mode=0o700)
        machine.path.symlink_to(machine.root / "theirs")
    elif what == "a file":
        machine.path.touch()
    else:
        machine.path.mkdir(mode=0o755 if what == "others may enter" else 0o700)
        os.chown(machine.path, 0 if what == "others may enter" else 1000, 0)
    with pytest.raises(SandkeepError, match=str(machine.path)):
        machine.daemon().claim("box")
    daemon = machine.daemon()
    daemon.release("box", BASE + 1)  # a sandbox ends all the same


def test_a_full_disk(machine: Machine) -> None:
    machine.path.mkdir(mode=0o700, parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "nr_inodes=4,size=64k,mode=0700", "few", str(machine.path)], check=True
    )
    try:
        daemon = machine.daemon()
        given = {daemon.claim(name): name for name in ("box1", "box2")}
        with pytest.raises(ProviderError, match=r"cannot be used: No space left.*SANDKEEP_UID_REGISTRY"):
            daemon.claim("box3")
        for uid, sandbox_id in given.items():
            daemon.release(sandbox_id, uid)  # for which it takes room
        assert machine.states() == {"claimed": 2}
        subprocess.run(["mount", "-o", "remount,nr_inodes=20", str(machine.path)], check=True)
        machine.daemon().reconcile({})
        assert machine.states() == {"resting": 2}
    finally:
        disks.umount(str(machine.path))


def test_ranges_that_overlap(machine: Machine, few: None) -> None:
    """The owner of one daemon's images is no sandbox of another's."""
    first, second = machine.daemon("one"), machine.daemon("two", BASE + 20)
    second.withdraw(second.claim("box"))
    given = everything(first)
    assert BASE + 20 not in given
    with pytest.raises(SetupError, match="SANDKEEP_UID_BASE"):
        machine.daemon("three", given[0]).claim("box")


def test_who_holds_the_lock_hinders_no_claim(machine: Machine) -> None:
    daemon = machine.daemon()
    with machine.registry.locked(0):
        uid = daemon.claim("box")
        daemon.release("box", uid)
        with pytest.raises(ProviderError, match="locked by another process"), Registry(str(machine.path)).locked(0.05):
            pass
    assert machine.states() == {"resting": 1}
