"""The units: systemd understands them, they expose no more than they say, and what hardens them hinders nobody."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.service import LAUNCHER, Service
from tests.support.unit import directives

from sandkeep.settings import daemon as settings

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "systemd"
SERVICE = UNITS / "system" / "sandkeepd.service"

EXPOSURE = {"system": 69, "user": 92}
"""The most that `systemd-analyze security` may find, in tenths. The reasons are in the units, line by line."""

HARDENING = [
    "NoNewPrivileges", "CapabilityBoundingSet", "RestrictAddressFamilies", "SystemCallFilter", "RestrictRealtime",
    "LimitNOFILE",
]  # fmt: skip
"""What is applied to a real daemon below; any other directive that restricts must be added here to be shipped."""

MOUNT_NAMESPACE = {
    "ProtectSystem", "ProtectHome", "ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectProc",
    "ProtectControlGroups", "ProcSubset", "PrivateTmp", "PrivateDevices", "PrivateMounts", "PrivateIPC", "BindPaths",
    "RootDirectory", "RootImage", "ReadOnlyPaths", "ReadWritePaths", "InaccessiblePaths", "ExecPaths", "NoExecPaths",
    "BindReadOnlyPaths", "TemporaryFileSystem", "MountAPIVFS", "MountFlags", "MountImages", "ExtensionImages",
    "DynamicUser", "LoadCredential", "SetCredential",
}  # fmt: skip
"""What would give the daemon a mount namespace of its own, in which a successor's sandboxes could not be seen."""

NO_RESTRICTION = {
    "Type", "NotifyAccess", "ExecStart", "ExecReload", "Environment", "EnvironmentFile", "StateDirectory",
    "StateDirectoryMode", "RuntimeDirectory", "RuntimeDirectoryMode", "RuntimeDirectoryPreserve", "KillMode",
    "TimeoutStopSec", "TimeoutStartSec", "WatchdogSec", "Restart", "RestartSec", "Delegate", "OOMPolicy", "TasksMax",
    "SystemCallErrorNumber", "KeyringMode", "RemainAfterExit",
}  # fmt: skip


def services() -> list[Path]:
    return sorted(UNITS.glob("*/*.service"))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as they are installed, with a daemon that exists."""
    daemon = tmp_path / "sandkeepd"
    daemon.touch()
    daemon.chmod(0o755)
    subprocess.run([UNITS / "install", str(tmp_path), "/lib/systemd", "/lib", str(daemon)], check=True)
    return tmp_path / "lib"


def test_a_user_installs_for_oneself(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    subprocess.run([UNITS / "install", "--user", "/opt/sandkeep/bin/sandkeepd"], env=env, check=True)
    assert [path.name for path in tmp_path.iterdir()] == [".config"]
    service = tmp_path / ".config" / "systemd" / "user" / "sandkeepd.service"
    assert "\nExecStart=/opt/sandkeep/bin/sandkeepd\n" in service.read_text()


@pytest.mark.parametrize("daemon", ["sandkeepd", "/a b", "/a|b", "/a\nExecStartPre=/bin/true"])
def test_a_path_that_would_change_the_unit_is_refused(tmp_path: Path, daemon: str) -> None:
    words = [UNITS / "install", str(tmp_path), "/lib/systemd", "/lib", daemon]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "absolute path" in done.stderr


def analyze(place: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "XDG_RUNTIME_DIR": str(place), "SYSTEMD_COLORS": "0", "SYSTEMD_EMOJI": "0"}
    return subprocess.run(["systemd-analyze", *words], env=env, capture_output=True, text=True, check=False)


@pytest.mark.needs("systemd")
@pytest.mark.parametrize("kind", ["system", "user"])
def test_systemd_has_nothing_to_say_about_them(installed: Path, kind: str) -> None:
    units = [str(path) for path in sorted((installed / "systemd" / kind).iterdir())]
    assert len(units) == 3
    done = analyze(installed, f"--{kind}", "verify", "--man=no", *units)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs("systemd")
@pytest.mark.parametrize("kind", ["system", "user"])
def test_exposure_is_what_is_said(installed: Path, kind: str) -> None:
    unit = str(installed / "systemd" / kind / "sandkeepd.service")
    words = [f"--{kind}", "security", "--offline=true", "--no-pager"]
    assert analyze(installed, *words, f"--threshold={EXPOSURE[kind]}", unit).returncode == 0
    assert analyze(installed, *words, "--threshold=20", unit).returncode != 0  # that a threshold is heeded at all


@pytest.mark.needs("systemd")
def test_groups_and_directories_are_understood(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    for file in ("passwd", "group"):
        (tmp_path / "etc" / file).write_text("root:x:0:0::/root:/bin/sh\n" if file == "passwd" else "root:x:0:\n")
    made = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", installed / "sysusers.d" / "sandkeep.conf"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    groups = (tmp_path / "etc" / "group").read_text()
    assert {"sandkeep", "sandkeep-admin"} <= {line.split(":")[0] for line in groups.splitlines()}
    made = subprocess.run(
        ["systemd-tmpfiles", "--create", f"--root={tmp_path}", installed / "tmpfiles.d" / "sandkeep.conf"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "run" / "sandkeep").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "var" / "lib" / "sandkeep").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("unit", services(), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_directive_is_unknown_to_these_tests(unit: Path) -> None:
    """One that makes a mount namespace is forbidden; one that restricts must be proven harmless below."""
    found = set(directives(unit))
    assert not found & MOUNT_NAMESPACE
    assert found <= NO_RESTRICTION | set(HARDENING)


def test_what_a_restart_needs_is_set() -> None:
    for unit in (SERVICE, UNITS / "user" / "sandkeepd.service"):
        found = directives(unit)
        assert found["Type"] == ["notify"]
        assert found["KillMode"] == ["process"]
        assert found["Delegate"] == ["yes"]
        assert found["OOMPolicy"] == ["continue"]
        assert found["RuntimeDirectoryPreserve"] == ["yes"]


@pytest.mark.parametrize("word", ["CapabilityBoundingSet", "NoNewPrivileges", "RestrictAddressFamilies"])
def test_each_hardening_line_has_a_reason(word: str) -> None:
    lines = SERVICE.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{word}="))
    assert lines[first - 1].startswith("#")


def test_the_capabilities_are_explained_one_by_one() -> None:
    text = SERVICE.read_text()
    for name in directives(SERVICE)["CapabilityBoundingSet"]:
        assert re.search(rf"^# .*\b{name.removeprefix('CAP_')}\b", text, re.MULTILINE), name


def test_the_sockets_are_where_the_daemon_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in one unit and have one name, so the daemon knows them by their paths."""
    environment = dict(word.split("=", 1) for word in directives(SERVICE)["Environment"])
    text = (UNITS / "system" / "sandkeepd.socket").read_text()
    paths = re.findall(r"^ListenStream=(.+)$", text, re.MULTILINE)
    monkeypatch.delenv("SANDKEEP_STREAM", raising=False)
    monkeypatch.setenv("SANDKEEP_SOCKET", environment["SANDKEEP_SOCKET"])
    assert paths == [settings.SOCKET(), *(address.removeprefix("unix:") for address in settings.STREAM())]
    user = (UNITS / "user" / "sandkeepd.socket").read_text()
    assert re.findall(r"^ListenStream=(.+)$", user, re.MULTILINE) == [path.replace("/run/", "%t/") for path in paths]


# -- what hardens hinders nobody --------------------------------------------------------------------------------------


@pytest.fixture
def hardened(new_service: Callable[[], Service]) -> Service:
    """A real daemon under what the unit sets, as far as it can be set without systemd."""
    found = directives(SERVICE)
    daemon = new_service()
    daemon.directives = {name: found[name] for name in HARDENING} | {"UMask": ["0077"]}  # an administrator's own
    daemon.start()
    return daemon


@pytest.mark.needs("systemd", "bwrap", "root")
def test_a_daemon_under_the_units_hardening_does_its_work(hardened: Service, tmp_path: Path) -> None:
    assert hardened.process is not None
    status = Path(f"/proc/{hardened.process.pid}/status").read_text()
    assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
    assert re.search(r"^Seccomp:\t2$", status, re.MULTILINE)
    bounding = re.search(r"^CapBnd:\t([0-9a-f]+)$", status, re.MULTILINE)
    assert bounding is not None
    ours = int(re.findall(r"^CapBnd:\t(.*)$", Path("/proc/self/status").read_text(), re.MULTILINE)[0], 16)
    lacking = 0 if ours >> 24 & 1 else 1  # not every machine's root has SYS_RESOURCE
    assert int(bounding[1], 16).bit_count() == len(directives(SERVICE)["CapabilityBoundingSet"]) - lacking
    (tmp_path / "hello").write_text("hello\n")
    with hardened.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        sandbox = client.sandbox.create(image, memory_bytes=1 << 28, pids=100, disk_bytes=1 << 24).sandbox_id
        isolation = client.sandbox.get(sandbox).isolation
        assert (isolation.files, isolation.limits["disk"]) == ("overlay", "file system")
        script = "cat hello; rm hello; echo new >hello; chmod 700 hello; umask; exec true"
        done = client.sandbox.exec(sandbox, ["sh", "-c", script])
        assert (done.exit_code, done.stdout) == (0, b"hello\n0022\n")
        client.process.launch(sandbox, ["cat"], name="cat", stdin=True)
    hardened.stop()
    hardened.start()  # adoption, too
    with hardened.connect() as client:
        client.process.write_stdin(sandbox, "cat", b"still here\n", eof=True)
        assert client.process.wait(sandbox, "cat").exit_code == 0
        assert client.sandbox.exec(sandbox, ["cat", "hello"]).stdout == b"new\n"
        client.sandbox.exec(sandbox, ["sh", "-c", "echo closed >closed; chmod 0 closed"])
        for incremental in (False, True):
            client.snapshot.create(sandbox, incremental=incremental)
        unisolated = client.sandbox.create(image, isolation="none").sandbox_id
        bounds = client.sandbox.exec(unisolated, ["grep", "CapBnd", "/proc/self/status"]).stdout
        assert int(bounds.split()[1], 16) == 0  # without SETPCAP it keeps what there was, and nothing tells
        for each in (sandbox, unisolated):
            client.sandbox.terminate(each)
        client.image.remove(image)


@pytest.mark.needs("systemd", "root")
@pytest.mark.parametrize(
    ("attempt", "allowed"),
    [
        ("socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()", False),
        ("socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()", False),
        ("socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()", True),
        ("socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()", True),
        ("time.clock_settime(time.CLOCK_REALTIME, time.time())", False),
        ("os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))", False),
        ("os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))", True),
        ("os.chroot('/')", True),
        ("os.setpriority(os.PRIO_PROCESS, 0, -20)", True),
    ],
)
def test_the_launcher_hardens_as_systemd_does(attempt: str, allowed: bool) -> None:
    """What the test above proves is worth as much as this launcher is like systemd."""
    wanted = {name: value for name, value in directives(SERVICE).items() if name in HARDENING}
    command = [sys.executable, "-c", f"import os, socket, time; {attempt}"]
    done = subprocess.run(
        [sys.executable, LAUNCHER, json.dumps({"directives": wanted}), *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if allowed else 1), done.stderr
    assert allowed or re.search(r"^(PermissionError|OSError): ", done.stderr, re.MULTILINE), done.stderr
