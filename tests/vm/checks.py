"""Checks of Sandkeep in a whole machine: run as root by `trial.service` in the Debian that `scripts/vm` boots.

Each check is a function whose docstring is the line that is printed; it asserts what should be so. They run in order,
one upon the other; the machine is rebooted between those of `FIRST` and those of `SECOND`, and is switched off after
the last. Python's standard library is all there is.
"""

import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

PROJECT = Path("/root/sandkeep")
RECORD = Path("/var/lib/trial.json")
INSTALLED = f"/opt/sandkeep/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
HOW_TO = PROJECT / "docs" / "how-to" / "install-as-a-service.md"
ENVIRONMENT = Path("/etc/sandkeep/sandkeepd.env")
GROUPS = Path("/sys/fs/cgroup")
DEADLINE_S = 120
"""Patience with whatever should come about; qemu without KVM is slow."""

ALICE = "alice"
DOCKER_IMAGE = "trial/busybox:1"

ALLOCATE = "bytearray(256 << 20)"
FORK = """
import os, time
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
        count += 1
except BlockingIOError:
    print("refused after", count)
"""
SPIN = """
import time
end = time.monotonic() + 5
while time.monotonic() < end: pass
"""
FILL = """
import errno
with open("filler", "ab", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 16))
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
"""
COUNT = "n=0; while [ ! -e enough ]; do n=$((n + 1)); echo $n; sleep 0.1; done"

MIB = 1 << 20
SYSTEMS_SOCKET = ("--socket", "/run/sandkeep/sandkeep.sock")
"""For a user who has a daemon, too."""

kept: dict[str, str] = {}
"""Ids of images and sandboxes, for later checks. They are kept across the reboot."""


# -- tools ------------------------------------------------------------------------------------------------------------


def run(command: str | list[str], *, user: str = "", code: int | None = 0, cwd: Path = Path("/root")) -> str:
    """Run a command, as a user if one is named; return its output, of both streams. `code` None takes any exit code."""
    argv = ["sh", "-euc", command] if isinstance(command, str) else command
    if user:
        found = pwd.getpwnam(user)
        cwd = Path(found.pw_dir)
        runtime = f"XDG_RUNTIME_DIR=/run/user/{found.pw_uid}"
        argv = ["runuser", "-u", user, "--", "env", f"HOME={found.pw_dir}", runtime, *argv]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
        timeout=600, check=False, errors="replace",
    )  # fmt: skip
    assert code is None or done.returncode == code, f"{shlex.join(argv)} exited with {done.returncode}: {done.stdout}"
    return done.stdout.strip()


def sandkeep(*words: str, user: str = "", code: int | None = 0) -> str:
    """Run the command in a fork of this process: most of its time, when all is emulated, is its import."""
    if INSTALLED not in sys.path:
        sys.path.append(INSTALLED)
    from sandkeep.cli import root  # noqa: F401 - what `main` takes

    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _be_the_command(words, user, output.fileno())
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        said = output.read().decode(errors="replace").strip()
    assert code is None or exit_code == code, f"sandkeep {shlex.join(words)} exited with {exit_code}: {said}"
    return said


def _be_the_command(words: Sequence[str], user: str, output: int) -> NoReturn:
    from sandkeep.cli import main

    try:
        for number in (1, 2):
            os.dup2(output, number)
        sys.argv = ["sandkeep", *words]
        if user:
            found = pwd.getpwnam(user)
            os.initgroups(user, found.pw_gid)
            os.setgid(found.pw_gid)
            os.setuid(found.pw_uid)
            os.environ |= {"HOME": found.pw_dir, "XDG_RUNTIME_DIR": f"/run/user/{found.pw_uid}"}
        main()
    finally:
        traceback.print_exc()
        os._exit(125)


def inside(sandbox: str, *argv: str, user: str = "", code: int | None = 0) -> str:
    return sandkeep("exec", sandbox, "--", *argv, user=user, code=code)


def of(sandbox: str, user: str = "") -> dict:
    return json.loads(sandkeep("get", sandbox, "--json", user=user))


def until(holds: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"{what} has not come about in {DEADLINE_S} s"
        time.sleep(2)


def property_of(unit: str, name: str) -> str:
    return run(["systemctl", "show", "--property", name, "--value", unit])


def start_with(settings: str = "") -> None:
    """Start the daemon again with these settings, or with the defaults."""
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    ENVIRONMENT.write_text(settings)
    run("systemctl restart sandkeepd")
    run("systemctl reset-failed sandkeepd.service")  # its count of starts, which the unit limits


def is_active(unit: str) -> bool:
    return property_of(unit, "ActiveState") == "active"


def main_pid() -> int:
    return int(property_of("sandkeepd.service", "MainPID"))


def group_of(sandbox: str) -> Path:
    """The control group of a local sandbox, which is below the sandboxes' unit."""
    (found,) = GROUPS.glob(f"**/sandkeep-sandboxes.service/sandboxes/*.{sandbox}")
    return found


def value(group: Path, name: str, key: str = "") -> str:
    text = (group / name).read_text().strip()
    return dict(line.split() for line in text.splitlines())[key] if key else text


def how_to(section: str) -> list[str]:
    """The commands that the how-to has the reader type in a section, up to the next heading."""
    text = HOW_TO.read_text().split(f"\n## {section}\n")[1]
    text = re.split(r"^##", text, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```console\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith(("# ", "$ "))]


def limits_hold(sandbox: str, group: Path, memory: Callable[[], str], forks: Callable[[], str]) -> None:
    """Attack the limits of a sandbox of 64 MiB and 20 processes, and look at what its control group counted."""
    assert value(group, "memory.max") == str(64 << 20)
    assert value(group, "pids.max") == "20"
    said = memory()
    assert int(value(group, "memory.events", "oom_kill")) >= 1, said
    assert int(value(group, "memory.peak")) <= 64 << 20, said
    said = forks()
    assert int(value(group, "pids.events", "max")) >= 1, said
    until(lambda: int(value(group, "pids.current")) < 10, "an end of what was forked")


def cpu_is_throttled(group: Path, spin: Callable[[], object]) -> None:
    """Have a sandbox of half a core take all it gets: by the kernel's own periods it got no more than its share."""
    quota_us, period_us = map(int, value(group, "cpu.max").split())
    assert quota_us * 2 == period_us

    def counted() -> tuple[int, int, int]:
        return tuple(int(value(group, "cpu.stat", key)) for key in ("usage_usec", "nr_periods", "nr_throttled"))

    before = counted()
    spin()
    usage_us, periods, throttled = (after - first for after, first in zip(counted(), before, strict=True))
    assert throttled > 0
    # A slice of 5 ms may be taken beyond the quota on each processor, and the last period may not be over.
    assert usage_us <= (periods + 1) * (quota_us + 5_000 * (os.cpu_count() or 1)), (usage_us, periods)


def stands_still(sandbox: str, group: Path, frozen: tuple[str, str, str], user: str = "") -> None:
    """Suspend and resume a sandbox, and see it frozen meanwhile. `frozen` is where that is read."""
    name, key, yes = frozen
    sandkeep("suspend", sandbox, user=user)
    assert value(group, name, key) == yes
    sandkeep("resume", sandbox, user=user)
    assert value(group, name, key) != yes


def count_in(sandbox: str, user: str = "") -> None:
    """Start a process that counts until it is told that it is enough."""
    sandkeep("run", sandbox, "count", "--detach", "--", "sh", "-c", COUNT, user=user)
    until(lambda: len(counted_by(sandbox, user)) > 2, "a count")


def counted_by(sandbox: str, user: str = "") -> list[str]:
    numbers = sandkeep("logs", sandbox, "count", user=user).split()
    assert all(number.isdigit() for number in numbers), numbers
    return numbers


def still_counts(sandbox: str, user: str = "") -> None:
    before = len(counted_by(sandbox, user))
    until(lambda: len(counted_by(sandbox, user)) > before, "a further count")


def counted_all(sandbox: str, user: str = "") -> None:
    """End the process that counts: it exits with 0 and no number is missing."""
    inside(sandbox, "touch", "enough", user=user)
    assert sandkeep("wait", sandbox, "count", user=user, code=None) is not None
    numbers = counted_by(sandbox, user)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert len(numbers) > 10


# -- installing -------------------------------------------------------------------------------------------------------


def platform() -> None:
    """systemd is the first process, and control groups are version 2's alone"""
    assert Path("/proc/1/comm").read_text() == "systemd\n"
    assert run(["stat", "--file-system", "--format=%T", str(GROUPS)]) == "cgroup2fs"


def install() -> None:
    """it is installed by the commands of the how-to, and `systemctl status` and `sandkeep status` say that it runs"""
    shutil.copytree("/mnt", PROJECT, ignore=shutil.ignore_patterns("lost+found"))
    (wheel,) = PROJECT.glob("dist/sandkeep-*.whl")
    for command in how_to("For the machine"):
        if not command.startswith(("apt-get install ", "python3 -m venv ")):  # the disk was made with these
            run(command.replace("'.[all]'", f"'{wheel}[all]'"), cwd=PROJECT)
    said = run(["systemctl", "status", "sandkeepd"])
    assert "active (running)" in said
    assert "0 sandboxes, 0 processes running" in said
    assert "running" in run(["sandkeep", "status"])


def manual() -> None:
    """`man sandkeep` finds its page"""
    assert run(["man", "--where", "sandkeep"]).endswith("/man1/sandkeep.1")


def own_place() -> None:
    """the daemon is in a leaf of its own unit, sandboxes are made in the other unit"""
    assert Path(f"/proc/{main_pid()}/cgroup").read_text() == "0::/system.slice/sandkeepd.service/daemon\n"
    make_project("/root/project")
    kept["image"] = sandkeep("image", "create", "/root/project")
    kept["box"] = sandkeep("create", kept["image"], "--memory", "64M", "--pids", "20", "--cpus", "0.5")
    assert group_of(kept["box"]).parent == GROUPS / "system.slice/sandkeep-sandboxes.service/sandboxes"


def make_project(directory: str) -> None:
    Path(directory).mkdir(exist_ok=True)
    Path(directory, "main.txt").write_text("first\n")


# -- limits -----------------------------------------------------------------------------------------------------------


def local_limits() -> None:
    """memory and processes of a local sandbox end at its limits, and the sandbox and the daemon go on"""
    box = kept["box"]
    limits_hold(
        box, group_of(box),
        lambda: inside(box, "python3", "-c", ALLOCATE, code=137),
        lambda: inside(box, "python3", "-c", FORK),
    )  # fmt: skip
    assert inside(box, "cat", "main.txt") == "first"
    assert is_active("sandkeepd.service")


def local_cpu() -> None:
    """a local sandbox gets no more than its share of the processors"""
    box = kept["box"]
    cpu_is_throttled(group_of(box), lambda: inside(box, "python3", "-c", SPIN))


def local_freezer() -> None:
    """a local sandbox is frozen by the kernel while it is suspended"""
    stands_still(kept["box"], group_of(kept["box"]), ("cgroup.events", "frozen", "1"))


# -- the service's life -----------------------------------------------------------------------------------------------


def restart() -> None:
    """a restart of the service leaves a process running"""
    count_in(kept["box"])
    before = main_pid()
    run("systemctl restart sandkeepd")
    assert main_pid() != before
    still_counts(kept["box"])


def sigkill() -> None:
    """SIGKILL of the daemon leaves a process running, and systemd starts the next daemon"""
    before = main_pid()
    os.kill(before, 9)
    until(lambda: main_pid() not in (0, before) and is_active("sandkeepd.service"), "another daemon")
    still_counts(kept["box"])


def watchdog() -> None:
    """a daemon that hangs (SIGSTOP) is ended by systemd's watchdog, and the next one is started"""
    before = main_pid()
    os.kill(before, 19)
    until(lambda: main_pid() not in (0, before) and is_active("sandkeepd.service"), "another daemon")
    assert "Watchdog timeout" in run(["journalctl", "--boot", "--unit=sandkeepd"])
    still_counts(kept["box"])


def complete() -> None:
    """the process's output is complete after all of these, and was adopted each time"""
    counted_all(kept["box"])
    assert sandkeep("history", kept["box"]).count("sandbox.adopted") >= 3


def socket_starts_place() -> None:
    """a client starts the daemon through its socket, and with it the sandboxes' unit: limits and suspending work"""
    run("systemctl stop sandkeepd.service sandkeep-sandboxes.service")
    sandboxes_work()


def place_stopped() -> None:
    """when the sandboxes' unit is stopped its sandboxes end, and new ones can be made at once"""
    run("systemctl stop sandkeep-sandboxes.service")
    sandboxes_work()


def sandboxes_work() -> None:
    box = sandkeep("create", kept["image"], "--memory", "64M", "--cpus", "0.5")
    assert value(group_of(box), "cpu.max") == "50000 100000"
    stands_still(box, group_of(box), ("cgroup.events", "frozen", "1"))
    sandkeep("rm", box)


def bad_setting() -> None:
    """with a setting that cannot be used systemd gives up after 5 starts, and `sandkeep status` says why"""
    run("systemctl reset-failed sandkeepd.socket sandkeepd.service")
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    ENVIRONMENT.write_text("SANDKEEP_LOG_LEVEL=loud\n")
    run("systemctl restart sandkeepd", code=None)
    began = time.monotonic()
    said = sandkeep("status", code=1)
    kept["status_s"] = f"{time.monotonic() - began:.0f}"
    assert "SANDKEEP_LOG_LEVEL" in said, said
    assert len(said.splitlines()) == 1, said
    until(lambda: property_of("sandkeepd.service", "ActiveState") == "failed", "an end of the restarts")
    assert int(property_of("sandkeepd.service", "NRestarts")) <= 5
    assert "SANDKEEP_LOG_LEVEL" in sandkeep("status", code=1)
    ENVIRONMENT.unlink()
    run("systemctl reset-failed sandkeepd.socket sandkeepd.service")
    run("systemctl start sandkeepd.socket sandkeepd.service")
    sandkeep("status")


def no_docker() -> None:
    """without a Docker engine the journal has no warnings of it"""
    assert not is_active("docker.service")
    said = run(["journalctl", "--boot", "--unit=sandkeepd"])
    assert "ready" in said
    assert "docker" not in said.lower(), [line for line in said.splitlines() if "docker" in line.lower()][:3]


# -- disks ------------------------------------------------------------------------------------------------------------


def disk_limit() -> None:
    """a disk of 64 MiB takes no more than its size; commands go on, and write again when there is room"""
    found = json.loads(sandkeep("capabilities", "--json"))["providers"]
    (local,) = (provider for provider in found if provider["provider"] == "local")
    for name in ("limit_disk", "grow_disk"):
        assert local["features"][name]["works"], local["features"][name]
    kept["disk"] = box = sandkeep("create", kept["image"], "--disk", "64M")
    is_full_at(box, 64 * MIB)
    inside(box, "truncate", "--size=-8M", "filler")
    inside(box, "sh", "-c", "echo after >after")
    assert inside(box, "cat", "after") == "after"


def is_full_at(sandbox: str, size: int) -> None:
    """Fill a sandbox's disk: its file system is of exactly that size, and nine tenths of it were for files."""
    inside(sandbox, "python3", "-c", FILL)
    image = Path("/var/lib/sandkeep/disks", sandbox)
    assert image.stat().st_size == size
    assert image.stat().st_blocks * 512 >= size
    found = os.statvfs(f"/proc/{main_pid()}/root/var/lib/sandkeep/sandboxes/{sandbox}")
    assert found.f_bavail * found.f_frsize < 1 << 16, found  # what was written at once
    assert size * 9 // 10 < found.f_blocks * found.f_frsize < size, found
    said = run(["dumpe2fs", "-h", str(image)])
    (blocks,) = re.findall(r"^Block count: +(\d+)$", said, flags=re.MULTILINE)
    assert int(blocks) * 4096 == size, said


def disk_grows() -> None:
    """a full disk grows while a process waits for room on it, and is full exactly at its new size"""
    box = kept["disk"]
    is_full_at(box, 64 * MIB)
    waits = "until head -c 20000000 /dev/zero >waited 2>/dev/null; do sleep 0.1; done"
    sandkeep("run", box, "waits", "--detach", "--", "sh", "-c", waits)
    sandkeep("update", box, "--disk", "160M")  # more than one block group holds
    sandkeep("wait", box, "waits")
    is_full_at(box, 160 * MIB)
    start_with()
    inside(box, "truncate", "--size=-8M", "filler")
    inside(box, "sh", "-c", "echo work >work; sync")


# -- quotas -----------------------------------------------------------------------------------------------------------


def quotas() -> None:
    """`sandkeep quota` shows a user the quotas of `SANDKEEP_QUOTA`, and what exceeds one of them is refused"""
    start_with("SANDKEEP_QUOTA=sandboxes=2,disk=100M\n")
    make_project(f"/home/{ALICE}/small")

    def hers(*words: str, code: int = 0) -> str:
        return sandkeep(*words, *SYSTEMS_SOCKET, user=ALICE, code=code)

    image = hers("image", "create", f"/home/{ALICE}/small")
    first = hers("create", image, "--disk", "64M")
    assert "quota of disk" in hers("create", image, "--disk", "64M", code=1)
    second = hers("create", image)
    assert "quota of sandboxes" in hers("create", image, code=1)
    shown = {found["quota"]: found for found in json.loads(hers("quota", "--json"))["quotas"]}
    assert (shown["sandboxes"]["used"], shown["sandboxes"]["limit"]) == (2, 2)
    hers("rm", first, second)
    start_with()


# -- Docker -----------------------------------------------------------------------------------------------------------


def docker_engine() -> None:
    """Docker has the systemd cgroup driver, version 2 of control groups, and overlay2"""
    run("systemctl start docker")
    said = run(["docker", "info", "--format", "{{.CgroupDriver}} {{.CgroupVersion}} {{.Driver}}"])
    assert said == "systemd 2 overlay2", said
    run(
        "mkdir -p image/bin image/tmp image/etc; cd image;"
        " for name in $(busybox --list); do ln -sf busybox bin/$name; done;"
        " cp --remove-destination /bin/busybox bin;"
        f" tar --create . | docker import --change 'ENV PATH=/bin' --change 'CMD [\"/bin/sh\"]' - {DOCKER_IMAGE}"
    )
    kept["docker_image"] = sandkeep("image", "create", DOCKER_IMAGE)
    kept["container"] = sandkeep("create", kept["docker_image"], "--memory", "64M", "--pids", "20", "--cpus", "0.5")


def docker_group() -> Path:
    (found,) = GROUPS.glob("system.slice/docker-*.scope")
    return found


def docker_limits() -> None:
    """memory and processes of a Docker sandbox end at its limits, and the sandbox goes on"""
    box = kept["container"]
    grow = "x=0123456789abcdef; while :; do x=$x$x; done"
    forks = "for n in $(seq 60); do sleep 3 & done"
    limits_hold(
        box,
        docker_group(),
        lambda: inside(box, "sh", "-c", grow, code=137),
        lambda: inside(box, "sh", "-c", forks, code=None),
    )
    inside(box, "true")


def docker_cpu() -> None:
    """a Docker sandbox gets no more than its share of the processors"""
    box = kept["container"]
    cpu_is_throttled(docker_group(), lambda: inside(box, "timeout", "5", "sh", "-c", "while :; do :; done", code=None))


def docker_freezer() -> None:
    """a Docker sandbox is frozen by the kernel while it is suspended"""
    stands_still(kept["container"], docker_group(), ("cgroup.events", "frozen", "1"))


def docker_snapshot() -> None:
    """files of a Docker sandbox are kept by a snapshot, and restored and forked from it"""
    box = kept["container"]
    inside(box, "sh", "-c", "echo kept >kept; chmod 640 kept; mkdir more; echo 1 >more/one")
    snapshot = sandkeep("snapshot", "create", box)
    sandkeep("snapshot", "create", box, "--incremental")
    inside(box, "rm", "kept")
    for made in (sandkeep("snapshot", "restore", snapshot), sandkeep("fork", box)):
        assert inside(made, "cat", "more/one") == "1"
        sandkeep("rm", made)


def docker_restarts() -> None:
    """restarts of Sandkeep and SIGKILL leave a process in a Docker sandbox running, its output complete"""
    box = kept["container"]
    count_in(box)
    run("systemctl restart sandkeepd")
    still_counts(box)
    before = main_pid()
    os.kill(before, 9)
    until(lambda: main_pid() not in (0, before) and is_active("sandkeepd.service"), "another daemon")
    counted_all(box)
    sandkeep("rm", box)


def docker_builds() -> None:
    """a build has no more processes than its limit, which is named, and leaves no control group"""
    start_with("SANDKEEP_BUILD_PIDS=40\n")
    directory = Path("/root/forks")
    directory.mkdir()
    forks = "i=0; while [ $((i += 1)) -lt 200 ]; do sleep 1000 & done"
    Path(directory, "Dockerfile").write_text(f"FROM {DOCKER_IMAGE}\nRUN {forks}\n")
    said = sandkeep("image", "create", str(directory), code=1)
    assert "at its limit of 40 processes (SANDKEEP_BUILD_PIDS)" in said, said
    until(lambda: not list(GROUPS.glob("sandkeep_builds.slice/*.slice")), "an end of the build's slice")
    start_with()


# -- one user's -------------------------------------------------------------------------------------------------------


def user_install() -> None:
    """a user's own units are installed and started, and the user's daemon answers the user"""
    run(["loginctl", "enable-linger", ALICE])
    until(lambda: is_active(f"user@{pwd.getpwnam(ALICE).pw_uid}.service"), "the user's manager")
    run(["cp", "-r", str(PROJECT / "systemd"), f"/home/{ALICE}"])
    run([f"/home/{ALICE}/systemd/install", "--user", "/opt/sandkeep/bin/sandkeepd"], user=ALICE)
    for command in how_to("For yourself"):
        if command.startswith("systemctl"):
            run(command, user=ALICE)
    said = sandkeep("status", user=ALICE)
    assert f"/home/{ALICE}/.local/state/sandkeep" in said, said


def user_limits() -> None:
    """memory and processes of a user's sandbox end at its limits, and it is frozen while it is suspended"""
    run("mkdir project; echo first >project/main.txt", user=ALICE)
    image = sandkeep("image", "create", f"/home/{ALICE}/project", user=ALICE)
    kept["hers"] = box = sandkeep("create", image, "--memory", "64M", "--pids", "20", "--cpus", "0.5", user=ALICE)
    group = group_of(box)
    limits_hold(
        box, group,
        lambda: inside(box, "python3", "-c", ALLOCATE, user=ALICE, code=137),
        lambda: inside(box, "python3", "-c", FORK, user=ALICE),
    )  # fmt: skip
    stands_still(box, group, ("cgroup.events", "frozen", "1"), user=ALICE)


def user_cpu() -> None:
    """a user's sandbox gets no more than its share of the processors"""
    box = kept["hers"]
    cpu_is_throttled(group_of(box), lambda: inside(box, "python3", "-c", SPIN, user=ALICE))


def user_restart() -> None:
    """a restart of the user's service leaves a process running, its output complete"""
    count_in(kept["hers"], ALICE)
    run("systemctl --user restart sandkeepd", user=ALICE)
    still_counts(kept["hers"], ALICE)
    counted_all(kept["hers"], ALICE)


# -- the reboot -------------------------------------------------------------------------------------------------------


def before_the_reboot() -> None:
    """a process runs when the machine is rebooted"""
    kept["box"] = sandkeep("create", kept["image"], "--memory", "64M")
    inside(kept["box"], "sh", "-c", "echo work >work; sync")
    count_in(kept["box"])


def after_the_reboot() -> None:
    """after it the service runs, tells the sandbox as lost, and starts it anew on its files"""
    until(lambda: is_active("sandkeepd.service"), "the service")
    until(lambda: of(kept["box"])["status"] == "lost", "the end of the sandbox")
    assert counted_by(kept["box"])[:3] == ["1", "2", "3"]
    sandkeep("resume", kept["box"])
    assert inside(kept["box"], "cat", "work") == "work"


def disk_after_the_reboot() -> None:
    """a sandbox with a disk starts anew on its files, and the disk has its grown size"""
    box = kept["disk"]
    assert of(box)["status"] == "lost"
    sandkeep("resume", box)
    assert inside(box, "cat", "work") == "work"
    is_full_at(box, 160 * MIB)
    sandkeep("rm", box)
    assert not Path("/var/lib/sandkeep/disks", box).exists()
    until(lambda: not run(["losetup", "--noheadings", "--list"]), "an end of the loop devices")


def user_after_the_reboot() -> None:
    """the user's service runs without anybody having logged in"""
    unit = f"user@{pwd.getpwnam(ALICE).pw_uid}.service"
    until(lambda: is_active(unit), "the user's manager")
    until(lambda: run("systemctl --user is-active sandkeepd", user=ALICE, code=None) == "active", "the user's service")
    assert of(kept["hers"], ALICE)["status"] == "lost"


def verified() -> None:
    """the event log is verified"""
    sandkeep("store", "verify")


FIRST = [
    platform, install, manual, own_place, local_limits, local_cpu, local_freezer, restart, sigkill, watchdog, complete,
    socket_starts_place, place_stopped, bad_setting, no_docker, disk_limit, disk_grows, quotas, docker_engine,
    docker_limits, docker_cpu, docker_freezer, docker_snapshot, docker_restarts, docker_builds, user_install,
    user_limits, user_cpu, user_restart, before_the_reboot,
]  # fmt: skip
SECOND = [after_the_reboot, disk_after_the_reboot, user_after_the_reboot, verified]


def attempt(check: Callable[[], None]) -> bool:
    """Run a check and print a line about it, and under one that failed where, and the end of the daemon's log."""
    began, why = time.monotonic(), ""
    try:
        check()
    except Exception:
        since = int(time.time() - (time.monotonic() - began))
        journal = f"journalctl --boot --unit=sandkeepd --no-hostname --since=@{since} | tail -n 25"
        why = traceback.format_exc() + run(journal, code=None)
    passed_s = time.monotonic() - began
    print(f"{'FAILED' if why else 'ok':6} {check.__doc__} ({check.__name__}, {passed_s:.0f} s)")
    if why:
        print("       " + why.replace("\n", "\n       "))
    return not why


def main() -> None:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else None
    if record is None:
        versions = "; ".join([
            run(". /etc/os-release; echo $PRETTY_NAME"), "Linux " + os.uname().release,
            run("systemctl --version | head -n 1"), run("docker --version"),
        ])  # fmt: skip
        print(versions)
    else:
        kept.update(record["kept"])
    outcomes = [attempt(check) for check in (FIRST if record is None else SECOND)]
    if record is None:
        RECORD.write_text(json.dumps({"kept": kept, "outcomes": outcomes}))
        run("systemctl reboot")
        return
    outcomes = record["outcomes"] + outcomes
    print(f"{outcomes.count(True)} passed, {outcomes.count(False)} failed", flush=True)
    run("systemctl poweroff")


if __name__ == "__main__":
    main()
