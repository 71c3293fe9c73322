"""Programs that do their worst inside a sandbox, and what must be true of everybody else meanwhile and afterwards.

Each is a program of the shell or of Python. `$P` is where the journals are, `$EXITS` the file of answers, `$CANARY` a
file of the host that no link may lead to. They begin when there is a file `go` in `$P`, so that they have been seen to
start, and say by `busy` that the harm is being done; most go on with it for ever.
"""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.crash.story import environments

from sandkeep.demo import traces
from sandkeepd.host import processes as hostprocess
from sandkeepd.host.processes import owned_by, pids_where
from sandkeepd.providers.kubernetes.manifests import PROGRAM

BEGIN = """
P=/run/sandkeep/out/p EXITS=/run/sandkeep/out/exits IN=/run/sandkeep/in
T=/run/sandkeep/tty; [ -d $T ] || T=$P
busy() { : >$P/busy; }
stay() { busy; while :; do sleep 1000; done; }
until [ -e $P/go ]; do sleep 0.01; done
"""

PYTHON = """
import os, signal, socket, sys, time
P, EXITS = "/run/sandkeep/out/p", "/run/sandkeep/out/exits"
def busy(): open(P + "/busy", "w").close()
def stay():
    busy()
    while True: time.sleep(1000)
while not os.path.exists(P + "/go"): time.sleep(0.01)
"""

SH = ["sh", "-c"]
SNAKE = ["python3", "-c"]


class Enemy(NamedTuple):
    """One program. `options` are those of its sandbox; with `tty` it has a terminal."""

    name: str
    program: list[str]
    options: dict[str, Any]
    tty: bool = False

    @property
    def is_snake(self) -> bool:
        """Whether it needs Python inside."""
        return self.program[0] == SNAKE[0]


def shell(name: str, script: str, **options: Any) -> Enemy:
    return Enemy(name, [*SH, BEGIN + script], options)


def python(name: str, script: str, **options: Any) -> Enemy:
    return Enemy(name, [*SNAKE, PYTHON + script], options)


def terminal(name: str, script: str, **options: Any) -> Enemy:
    return Enemy(name, [*SH, BEGIN + script], options, tty=True)


_REPLACE = "for f in $P/*.stdout $P/*.stderr; do rm -rf $f; %s || exit 1; done; stay"
"""One that cannot do it ends, and is never seen to do its harm."""

SMALL_SCRATCH = {"SANDKEEP_SCRATCH_LIMIT": "8M"}
"""Settings of a daemon whose file systems in memory are soon full, before the sandbox's memory is."""

ENEMIES = [
    # what lies where a journal should be
    shell("links", _REPLACE % "ln -s $CANARY $f"),
    shell("links to itself", _REPLACE % "ln -s $f $f"),
    shell("links to devices", _REPLACE % "ln -s /dev/zero $f"),
    shell("links to its input", _REPLACE % "ln -s /proc/1/fd/0 $f"),
    shell("pipes", _REPLACE % "mkfifo $f"),
    shell("directories", _REPLACE % "mkdir -p $f/deep/down"),
    shell("devices", _REPLACE % "{ mknod $f c 1 5 || :; }"),
    shell("holes", _REPLACE % "truncate -s 32M $f"),
    shell("hard links to its answers", _REPLACE % "{ ln $EXITS $f || :; }"),
    python("sockets", """
for name in os.listdir(P):
    os.unlink(P + "/" + name)
    os.chdir(P)
    socket.socket(socket.AF_UNIX).bind(name)
stay()"""),
    python("ever others", """
kinds = [lambda p: os.symlink(os.environ["CANARY"], p), os.mkfifo, os.mkdir, lambda p: open(p, "w").write("x" * 10),
         lambda p: os.truncate(os.open(p, os.O_CREAT | os.O_RDWR), 1 << 20), lambda p: os.symlink("/dev/tty", p)]
busy()
for turn in range(10 ** 9):
    for name in os.listdir(P):
        if name.startswith(("prc", "hlp", "vwr")) and "." in name:
            try:
                new = P + "/new"
                kinds[turn % len(kinds)](new)
                if turn % 3: os.rename(new, P + "/" + name)
                else: os.rename(P + "/" + name, P + "/gone"); os.rename(new, P + "/" + name)
            except OSError:
                os.system("rm -rf " + P + "/new " + P + "/gone " + P + "/" + name)"""),
    # the keeper's answers
    shell("forged ends", "busy; while :; do for f in $P/*.stdout; do f=${f##*/}; echo ${f%.*} 3 >>$EXITS; done; done"),
    shell("forged beginnings", "busy; while :; do echo prc_x +1; echo hlp_x none; echo vwr_x 0; done >>$EXITS"),
    shell("no answers", "busy; while :; do : >$EXITS; done"),
    shell("one long answer", "head -c 30M /dev/zero | tr '\\0' x >>$EXITS; stay"),
    shell("answers with holes", "truncate -s 32M $EXITS; stay"),
    shell("answers for ever", "busy; yes 'a 1' >>$EXITS; while :; do : >$EXITS; yes 'a 1' >>$EXITS; done"),
    shell("answers in drops", "busy; while :; do printf x; done >>$EXITS"),
    shell("answers opened and closed", "busy; while :; do : >>$EXITS; done"),
    shell("locked answers", "chmod 0 $EXITS $P; chmod 0 $P; chmod 700 $P; busy; chmod 0 $P; sleep 1000"),
    # what it may use
    shell("disk", "busy; i=0; while :; do head -c 4M /dev/zero >f$i; i=$((i + 1)); done"),
    shell("memory's disks", "busy; for d in /tmp $HOME /dev/shm; do cat /dev/zero >$d/f; done; stay"),
    shell("output", "busy; yes 'as much as it can'; stay"),
    shell("output in drops", "busy; while :; do printf x; done"),
    shell("forks", "busy; f() { f & f & wait; }; f"),
    shell("forks that leave", "busy; while :; do setsid sh -c 'sleep 1000 & sleep 1000 &' & done"),
    python("memory", "busy()\nhoard = []\nwhile True: hoard.append(bytearray(1 << 20))", memory_bytes=64 << 20),
    python("open files", """
held = []
try:
    while len(held) < 900:
        held.append(os.open("x", os.O_CREAT | os.O_RDWR)); os.unlink("x")
except OSError: os.close(held.pop())
stay()"""),
    # how it goes, and how it does not
    shell("deaf", """
trap '' TERM INT HUP QUIT USR1
(exec setsid sh -c 'while :; do sleep 9; done') &
stay"""),
    shell("closed", "busy; exec <&- >&- 2>&-; while :; do sleep 1000; done"),
    python("gone into the background", """
for _ in range(2):
    if os.fork(): os._exit(0)
    os.setsid()
for fd in range(64):
    try: os.close(fd)
    except OSError: pass
signal.signal(signal.SIGTERM, signal.SIG_IGN)
stay()"""),
    shell("kills", "busy; trap '' TERM HUP; setsid sh -c 'while :; do kill -9 -1; done'"),
    shell("stops", "busy; while :; do kill -STOP -1; done"),
    shell("at the first process", """
busy
for n in 1 2 3 4; do
    s=1
    while [ $s -le 64 ]; do kill -$s 1; s=$((s + 1)); done
done
stay"""),
    python("as a tracer", """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace(16, 1, 0, 0)  # attach
stay()"""),
    # what it makes
    python("names", """
for place in (P, "."):
    for n in range(300):
        open(os.fsencode(place) + b"/\\xff\\n\\x1b[2J" + str(n).encode() + b"\\xfe" * 200, "w").close()
        os.makedirs(os.fsencode(place) + b"/" + b"d" * 255, exist_ok=True)
stay()"""),
    python("files that come and go", """
busy()
while True:
    for n in range(1000):
        open(f"{P}/{n}", "w").close(); os.rename(f"{P}/{n}", f"{P}/x")
        os.link(f"{P}/x", f"{P}/y"); os.unlink(f"{P}/y")"""),
    python("many files", """
for place in (P, ".", "/tmp"):
    for n in range(500): open(f"{place}/prc_{n}.stdout", "w").close()
stay()"""),
    python("depth", """
for place in (P, "."):
    os.chdir(place)
    for n in range(300):
        os.mkdir("d"); os.chdir("d")
    os.chdir("/workspace")
stay()"""),
    shell("locked doors", "mkdir -p a/b $P/a/b; : >a/b/c; chmod 0 a/b $P/a/b; chmod 0 a $P/a . ; stay"),
    shell("held places", """
mkdir -p d; cd d; exec 9>held 8<. 7<$P
unshare -Urm sh -c 'mount -t tmpfs t /tmp; sleep 1000' &
stay"""),
    shell("other keepers", """
for f in $IN/.keeper $IN/.control $IN; do
    timeout 1 sh -c 'echo "run x none" >"$0"' $f; rm -rf $f; mv $f $f.old; ln -sf /bin/true $f
done
stay"""),
    # what it does to its terminal
    terminal("terminal without a server", "busy; tmux -S $T/*.tmux kill-server; stay"),
    terminal("terminal of another kind", "for f in $T/*.tmux; do rm $f && mkfifo $f || exit 1; done; stay"),
    terminal("terminal full of nonsense", "busy; cat /dev/urandom"),
]  # fmt: skip


QUICK = (
    "links", "ever others", "one long answer", "locked answers", "disk", "forks", "kills", "at the first process",
    "as a tracer", "names", "locked doors", "other keepers", "terminal of another kind",
)  # fmt: skip
"""Of each class some, for where trying all would take too long."""

# -- what is there of a sandbox, and what is left of it ----------------------------------------------------------------


class Traces(NamedTuple):
    """What a sandbox that runs has on this machine: processes, by pid and start, the control groups that they are in
    and we are not, and its uid, if that is nobody else's.
    """

    processes: set[tuple[int, int | None]]
    groups: set[str]
    uid: int | None

    def remaining(self) -> list[str]:
        """What of it is still there."""
        alive = {pid for pid, started in self.processes if started and hostprocess.start_time(pid) == started}
        alive |= set() if self.uid is None else set(pids_where(owned_by(self.uid)))
        return [f"process {pid}" for pid in alive] + [group for group in sorted(self.groups) if os.path.exists(group)]


def traces_of(sandbox_id: str, uid: int | None) -> Traces:
    """Find them. That there are some is what makes their absence mean something later."""
    mark = f"SANDKEEP_SANDBOX={sandbox_id}".encode()
    host = f"HOSTNAME={_pod(sandbox_id)}".encode()  # the container of a pod is marked by that alone
    found = {int(pid) for pid, env in environments() if (mark in env or host in env) and not _is_runsc(int(pid))}
    spaces = {space for pid in found if (space := _pid_namespace(pid)) not in (None, _pid_namespace(os.getpid()))}
    found |= set(pids_where(lambda pid: _pid_namespace(pid) in spaces))
    found |= set(pids_where(lambda pid: _is_runsc(pid) and sandbox_id.encode() in _read(pid, "cmdline")))
    assert found, f"nothing was found of {sandbox_id}: is it still known by what we look for?"
    groups = {group for pid in found for group in _groups(pid)} - set(_groups(os.getpid()))
    return Traces({(pid, hostprocess.start_time(pid)) for pid in found}, groups, uid)


def _pod(sandbox_id: str) -> str:
    return f"sandbox-{sandbox_id.removeprefix('sbx_')}"


def keeper_of_pod(sandbox_id: str) -> int:
    """Return the first process of a pod, whose nodes are this machine."""
    pids = (pid for pid, _ in traces_of(sandbox_id, None).processes)
    return next(pid for pid in pids if _read(pid, "cmdline").split(b"\0")[:2] == [PROGRAM.encode(), b"-p"])


def _is_runsc(pid: int) -> bool:
    return _read(pid, "cmdline").startswith(b"runsc")


def _pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _groups(pid: int) -> Iterator[str]:
    """The control groups of a process, as directories."""
    for line in _read(pid, "cgroup").decode().splitlines():
        _, names, path = line.split(":", 2)
        base = "/sys/fs/cgroup/" + (names.removeprefix("name=") or "unified")
        if path != "/" and os.path.isdir(base + path):
            yield base + path


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def remains(state_dir: str, sandbox_id: str, before: Traces, engine: Any = None) -> list[str]:
    """What is left of a sandbox that has ended: processes, mounts, control groups, containers, volumes, files that are
    no journals.
    """
    found = before.remaining()
    mark = f"SANDKEEP_SANDBOX={sandbox_id}".encode()
    found += [f"process {pid}" for pid, env in environments() if mark in env]
    found += [f"mount {path}" for path in traces.mounts(sandbox_id)]
    place = f"{state_dir}/sandboxes/{sandbox_id}"
    found += [
        f"{place}/{name}" for name in os.listdir(place) if name not in ("out", "metadata.json", ".metadata.json.new")
    ]
    found += [f"{place}/out/{name}" for name in os.listdir(f"{place}/out") if name not in ("p", "exits")]
    found += [
        f"{place}/out/p/{name}" for name in os.listdir(f"{place}/out/p") if not _is_journal(f"{place}/out/p/{name}")
    ]
    found += [name for name in os.listdir(f"{state_dir}/disks") if name == sandbox_id]
    trash = os.listdir(f"{state_dir}/trash")
    found += [f"trash/{name}" for name in trash if not name.startswith("probe-")]  # the daemon tries things
    kernels = f"{state_dir}/gvisor"
    found += [name for name in os.listdir(kernels) if sandbox_id in name] if os.path.isdir(kernels) else []
    return found + (_left_in(engine, sandbox_id) if engine is not None else [])


def _left_in(engine: Any, sandbox_id: str) -> list[str]:
    volumes = engine.get("/volumes")["Volumes"] or ()
    return [name for one in engine.containers() for name in one["Names"] if sandbox_id in name] + [
        volume["Name"] for volume in volumes if sandbox_id in volume["Name"]
    ]


def _is_journal(path: str) -> bool:
    return path.endswith((".stdout", ".stderr")) and os.path.isfile(path) and not os.path.islink(path)


class Burden:
    """What a process has open, and how much memory it took at most since this was made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        with open(f"/proc/{pid}/clear_refs", "w") as file:
            file.write("5")  # the peak is measured anew
        self._began = self._peak()
        self._descriptors = self.descriptors()

    def descriptors(self) -> list[str]:
        """What its open descriptors are, apart from those of readers of its log, of which there may be a few more."""
        found = []
        for name in os.listdir(f"/proc/{self._pid}/fd"):
            try:
                found.append(os.readlink(f"/proc/{self._pid}/fd/{name}"))
            except OSError:
                continue
        return sorted(what for what in found if not what.rpartition("/")[2].startswith("events.db"))

    def more_descriptors(self) -> list[str]:
        """What is open that was not."""
        before = list(self._descriptors)
        return [what for what in self.descriptors() if what not in before or before.remove(what)]  # type: ignore[func-returns-value]

    def more_sockets(self) -> int:
        """How many more sockets are open than were, whichever they are."""
        before, now = (
            sum(what.startswith("socket:") for what in found) for found in (self._descriptors, self.descriptors())
        )
        return now - before

    def bytes_more(self) -> int:
        """By how much its memory has grown at its peak."""
        return self._peak() - self._began

    def _peak(self) -> int:
        with open(f"/proc/{self._pid}/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
