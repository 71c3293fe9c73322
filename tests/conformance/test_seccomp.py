"""System calls that code in sandboxes has no business with are refused, by whichever way they are made."""

import errno
import platform
import signal
import subprocess
from pathlib import Path

import pytest
from tests.conformance.conftest import KUBERNETES, World, run, sh

from sandkeepd.host import seccomp

pytestmark = [
    pytest.mark.needs("bwrap", "cc"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers here are those of x86_64"),
]

with_a_filter = pytest.mark.parametrize(
    "world", ["local", pytest.param("docker", marks=pytest.mark.needs("docker"))], indirect=True
)
only_gvisor = pytest.mark.parametrize(
    "world", [pytest.param("gvisor", marks=pytest.mark.needs("runsc"))], indirect=True
)
only_local = pytest.mark.parametrize("world", ["local"], indirect=True)

SOURCE = Path(__file__).parent.parent / "calls.c"

NEWUSER, NEWNET, NEWNS, SIGCHLD = 0x10000000, 0x40000000, 0x00020000, 17
REFUSED = (
    "io_uring_setup:425:1", "io_uring_enter:426:-1", "io_uring_register:427:-1", "AF_VSOCK:41:40:1", "AF_ALG:41:38:5",
    f"AF_VSOCK-and-high-bits:41:{2**32 + 40}:1", "userfaultfd:323:1", "keyctl:250:0:-3", "add_key:248:suser:sx:sy:1:-3",
    "request_key:249:suser:sx:0:-3", "bpf:321", "perf_event_open:298:0:0:-1:-1", "mount:165:sx:s/tmp:stmpfs",
    "umount2:166:s/proc", "move_mount:429:-1:s:-1:s", "open_tree:428:-1:s/", "fsopen:430:stmpfs",
    "mount_setattr:442:-1:s/", "open_by_handle_at:304:-1", "pivot_root:155:s/:s/", "chroot:161:s/",
    f"unshare-user:272:{NEWUSER}", "unshare:272:0", "setns:308:-1", f"clone-user:56:{NEWUSER | SIGCHLD}",
    f"clone-net:56:{NEWNET | SIGCHLD}", f"clone-mounts:56:{NEWNS | SIGCHLD}", "clone3:435", "kexec_load:246",
    "init_module:175:0:0:s", "quotactl:179", "syslog:103:10", "acct:163:s/", "swapon:167:s/", "reboot:169", "iopl:172",
    "pidfd_getfd:438:-1", "kcmp:312:1:1", "settimeofday:164", "READ_IMPLIES_EXEC:135:0x0400000", "fanotify_init:300",
    "process_madvise:440:-1", "io_setup:206:1:s", "what-no-kernel-has:1000",
)  # fmt: skip
I386 = (
    "AF_VSOCK:i359:40:1", "AF_ALG:i359:38:5", "socketcall:i102:1", "socketcall-of-bind:i102:2",
    "io_uring_setup:i425:1", "keyctl:i288:0:-3",
    "add_key:i286", f"unshare:i310:{NEWUSER}", f"clone:i120:{NEWUSER | SIGCHLD}", "clone3:i435", "mount:i21",
    "userfaultfd:i374:1", "bpf:i357", "perf_event_open:i336", "chroot:i61", "open_by_handle_at:i342:-1",
    "setns:i346:-1", "io_setup:i245:1",
)  # fmt: skip
ORDINARY = (
    "socket-unix:41:1:1", "socket-inet:41:2:1", "socket-netlink:41:16:3", f"clone:56:{SIGCHLD}", "memfd_create:319:sx",
    "inotify_init1:294", "epoll_create1:291", "ADDR_NO_RANDOMIZE:135:0x40000", "ptrace:101:16:999999", "getrandom:318",
    "vfork-less-fork:57", "eventfd2:290", "timerfd_create:283", "sched_yield:24", "landlock-version:444:0:0:1",
)  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    built = tmp_path_factory.mktemp("calls") / "calls"
    subprocess.run(["cc", "-static", "-Os", "-s", "-o", str(built), str(SOURCE)], check=True)
    return built.read_bytes()


async def ask(world: World, program: bytes, calls: tuple[str, ...], user: str | None = None) -> dict[str, int]:
    """What each of the calls is answered inside, and nowhere else: as root they would change this machine."""
    instance = await world.sandbox(user=user)
    script = 'cat >/tmp/calls; chmod 755 /tmp/calls; exec /tmp/calls "$@"'
    code, stdout, stderr = await run(instance, "sh", "-c", script, "sh", *calls, stdin=program)
    if code == -signal.SIGSEGV or code == 128 + signal.SIGSEGV:
        pytest.skip("this kernel has no 32-bit system calls")
    assert code == 0, stderr
    said = [line.split() for line in stdout.decode().splitlines()]
    assert len(said) == len(calls)
    return {name: int(number) for name, number in said}


def allowed(answers: dict[str, int]) -> dict[str, int]:
    refusals = (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)
    return {name: number for name, number in answers.items() if number not in refusals}


@with_a_filter
@pytest.mark.parametrize("user", [None, "0"])
async def test_what_is_refused(world: World, program: bytes, user: str | None) -> None:
    """Also to root inside."""
    answers = await ask(world, program, REFUSED, user)
    assert allowed(answers) == {}
    assert len(answers) == len(REFUSED)


@with_a_filter
async def test_the_32_bit_ways_are_no_way_around(world: World, program: bytes) -> None:
    answers = await ask(world, program, ("getpid:i20", "socket-unix:i359:1:1", *I386))
    assert (answers.pop("getpid"), answers.pop("socket-unix")) == (0, 0)
    assert allowed(answers) == {}
    assert len(answers) == len(I386)


@with_a_filter
async def test_what_programs_need_is_allowed(world: World, program: bytes) -> None:
    answers = await ask(world, program, ORDINARY)
    assert answers.pop("ptrace") == errno.ESRCH
    assert {name: number for name, number in answers.items() if number} == {}
    assert "Seccomp:\t2" in await sh(await world.sandbox(), "cat /proc/self/status")


@only_gvisor
async def test_gvisor_answers_the_worst_of_them_itself(world: World, program: bytes) -> None:
    """There all calls are its own kernel's. Of these it has none, so none comes to the host."""
    worst = ("io_uring", "AF_VSOCK", "AF_ALG", "userfaultfd", "bpf", "perf_event", "open_by_handle", "kexec")
    answers = await ask(world, program, tuple(call for call in REFUSED if call.startswith(worst)))
    assert 0 not in answers.values(), answers


@only_local
async def test_the_filter_costs_the_sandbox_no_descriptor(world: World) -> None:
    assert "filter.x86_64" not in await sh(await world.sandbox(), "ls -l /proc/1/fd")


@pytest.mark.parametrize(
    "world",
    [
        "local",
        pytest.param("docker", marks=pytest.mark.needs("docker")),
        pytest.param("gvisor", marks=pytest.mark.needs("runsc")),
        KUBERNETES,
    ],
    indirect=True,
)
async def test_capabilities_tell_of_it(world: World) -> None:
    assert (await world.provider.capabilities()).features["seccomp"].works


@only_local
async def test_without_a_filter_that_is_told_of_each_sandbox(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a machine for which none is made."""
    monkeypatch.setattr(seccomp, "_PROGRAM", str(tmp_path / "filter.none"))
    told = (await world.provider.capabilities()).features["seccomp"]
    assert not told.works
    assert told.why is not None
    assert "there is no filter for" in told.why
    instance = await world.sandbox()
    assert told.why in instance.isolation.notes
    assert "Seccomp:\t0" in await sh(instance, "cat /proc/self/status")
