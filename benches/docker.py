"""Sandboxes in containers, beside the engine's own ways, and SWE-ReX's server, in the same run and in turns.

Ours is a whole request of the Python client, with two durable commits. The engine is asked by its CLI, and over HTTP on
its socket, as plainly as that goes. SWE-ReX keeps a server in the container and puts nothing on record, so beside it
the fsyncs of two commits are taken off: two of as many bytes, on the disk of the log, measured in each round.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

from benches import fair
from benches.daemon import daemon, per_cent, seconds
from benches.engines import Rex, ask, docker, engine, rex, run_by_http
from benches.table import Row, show
from tests.support.engine import PrivateEngine

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

ROUNDS = 60
QUICK = 8
"""So many of ours and of SWE-ReX's come on each of the engine's, which take ten times as long."""

CREATES = 15
WRITES = 3
GB = 1_000_000_000
CROWD, AT_ONCE = 100, 16
MOST_MIB = 150
FRAME = b"x" * 4120
"""What a small commit adds to the log."""


def ms(values: list[float]) -> str:
    return f"p50 {median(values) * 1e3:.2f}, p99 {per_cent(values, 0.99) * 1e3:.1f} ms"


# -- a command --------------------------------------------------------------------------------------------------------


class Commits:
    """The fsyncs of two commits: bytes put where a log already has room for them, each time on the disk."""

    def __init__(self, directory: str) -> None:
        self._file = os.open(f"{directory}/commits", os.O_RDWR | os.O_CREAT, 0o600)
        os.write(self._file, bytes(1 << 20))
        os.fsync(self._file)
        self._at = 0

    def __call__(self) -> None:
        for _ in range(2):
            os.pwrite(self._file, FRAME, self._at)
            os.fdatasync(self._file)
            self._at = (self._at + len(FRAME)) % (1 << 19)


def exec_times(client: Any, box: str, made: PrivateEngine, server: Rex, root: str) -> dict[str, list[float]]:
    container = f"sandbox-{box}"
    quick: dict[str, Callable[[], Any]] = {
        "ours": lambda: client.sandbox.exec(box, ["echo", "hello"]),
        "commits": Commits(root),
        "execute": server.execute,
    }
    slow: dict[str, Callable[[], Any]] = {
        "cli": lambda: docker(made, "exec", container, "echo", "hello"),
        "http": lambda: run_by_http(made, container, ["echo", "hello"]),
        "session": server.run_in_session,
    }
    times: dict[str, list[float]] = {name: [] for name in (*quick, *slow)}
    for _ in range(ROUNDS):
        for _ in range(QUICK):
            for name, work in quick.items():
                times[name].append(seconds(work))
        for name, work in slow.items():
            times[name].append(seconds(work))
    return times


def exec_rows(client: Any, box: str, made: PrivateEngine, root: str) -> list[Row]:
    with rex(made) as server:
        times = exec_times(client, box, made, server, root)
    ours, commits = median(times["ours"]), median(times["commits"])
    spread = per_cent(times["ours"], 0.99) / ours
    rows = [Row("exec echo in a container, p99", ms(times["ours"]), "its own p50", spread, "<= 4", spread <= 4)]
    for name, what, most in (("cli", "`docker exec`", 1 / 15), ("http", "the exec API over HTTP", 1 / 10)):
        ratio = ours / median(times[name])
        target = f"<= 1/{round(1 / most)}"
        rows.append(
            Row(
                "exec echo in a container", ms(times["ours"]), f"{what} {ms(times[name])}", ratio, target, ratio <= most
            )
        )
    net = (ours - commits) / median(times["execute"])
    figure = f"p50 {ours * 1e3:.2f} - {commits * 1e3:.2f} ms of fsyncs"
    beside = f"SWE-ReX execute {ms(times['execute'])}"
    rows.append(Row("exec echo in a container, without its commits' fsyncs", figure, beside, net, "<= 1.3", net <= 1.3))
    faster = median(times["session"]) / ours
    beside = f"SWE-ReX run_in_session {ms(times['session'])}"
    rows.append(
        Row("exec echo in a container, commits included", ms(times["ours"]), beside, faster, ">= 20", faster >= 20)
    )
    return rows


# -- a container ------------------------------------------------------------------------------------------------------


def same_again(made: PrivateEngine, box: str, name: str, root: str) -> dict[str, Any]:
    """The configuration of a sandbox's container, for another with directories and a volume of its own."""
    found = made.container_of(box)
    place = f"{root}/by-hand/{name}"
    subprocess.run(["cp", "-a", f"{root}/state/sandboxes/{box}", place], check=True)  # the FIFO as well
    os.chmod(f"{place}/in/.control", 0o666)
    config, host = found["Config"], found["HostConfig"]
    for mount in host["Mounts"]:
        if mount["Type"] == "volume":
            mount["Source"] = f"by-hand-{name}"
        else:
            mount["Source"] = mount["Source"].replace(f"{root}/state/sandboxes/{box}", place)
    wanted = ("Image", "User", "Env", "WorkingDir", "Entrypoint", "Cmd", "Healthcheck", "Labels")
    return {**{field: config[field] for field in wanted}, "Labels": {}, "HostConfig": host}


def by_hand(made: PrivateEngine, body: dict[str, Any]) -> str:
    container: str = ask(made, "POST", "/containers/create", body)["Id"]
    ask(made, "POST", f"/containers/{container}/start")
    return container


def to_first_output(client: Any, image: str) -> str:
    box: str = client.sandbox.create(image, provider="docker").sandbox_id
    assert client.sandbox.exec(box, ["echo", "hello"]).stdout == b"hello\n"
    return box


def create_row(client: Any, image: str, box: str, made: PrivateEngine, root: str) -> Row:
    ours, raw = [], []
    os.makedirs(f"{root}/by-hand")
    for number in range(CREATES):
        body = same_again(made, box, str(number), root)
        begun = time.perf_counter()
        container = by_hand(made, body)
        raw.append(time.perf_counter() - begun)
        assert made.get(f"/containers/{container}/json")["State"]["Running"]
        ask(made, "DELETE", f"/containers/{container}?force=1&v=1")
        begun = time.perf_counter()
        another = to_first_output(client, image)
        ours.append(time.perf_counter() - begun)
        client.sandbox.terminate(another)
    ratio = median(ours) / median(raw)
    case = "sandbox.create in a container, and the first output of an exec"
    return Row(case, ms(ours), f"create and start over HTTP, the same {ms(raw)}", ratio, "<= 1.15", ratio <= 1.15)


CHANGE = "for n in 0 1 2 3 4 5 6 7 8 9; do head -c 20000 /dev/urandom >changed-$n; done"


def forked_by_hand(made: PrivateEngine, box: str, body: dict[str, Any]) -> tuple[str, str]:
    """Commit, create, copy what is on the volume, which no commit holds, and start."""
    image = ask(made, "POST", f"/commit?container=sandbox-{box}&pause=1")["Id"]
    container = ask(made, "POST", "/containers/create", {**body, "Image": image})["Id"]
    places = [
        next(mount["Source"] for mount in made.get(f"/containers/{one}/json")["Mounts"] if mount["Type"] == "volume")
        for one in (f"sandbox-{box}", container)
    ]
    subprocess.run(["cp", "-a", "-T", *places], check=True)
    ask(made, "POST", f"/containers/{container}/start")
    return container, image


def fork_row(client: Any, image: str, made: PrivateEngine, root: str) -> Row:
    box = client.sandbox.create(image, provider="docker").sandbox_id
    assert client.sandbox.exec(box, CHANGE).exit_code == 0
    ours, raw = [], []
    for number in range(CREATES):
        body = same_again(made, box, f"fork-{number}", root)
        begun = time.perf_counter()
        container, committed = forked_by_hand(made, box, body)
        raw.append(time.perf_counter() - begun)
        ask(made, "DELETE", f"/containers/{container}?force=1&v=1")
        ask(made, "DELETE", f"/images/{committed}")
        begun = time.perf_counter()
        [fork] = client.sandbox.fork(box).sandboxes
        ours.append(time.perf_counter() - begun)
        client.sandbox.terminate(fork.sandbox_id)
    ratio = median(ours) / median(raw)
    beside = f"commit, create, cp -a, start over HTTP {ms(raw)}"
    return Row("fork of a container, 10 files changed", ms(ours), beside, ratio, "<= 1.5", ratio <= 1.5)


# -- output -----------------------------------------------------------------------------------------------------------

WRITER = "yes 'a line of output, as long as lines of output of programs usually are' | head -c {}"


def ours_written(client: Any, box: str, number: int) -> float:
    name = f"writer-{number}"
    begun = time.perf_counter()
    client.process.launch(box, ["sh", "-c", WRITER.format(GB)], name=name)
    assert client.process.wait(box, name).stdout_bytes == GB
    return GB / (time.perf_counter() - begun)


def run_written(made: PrivateEngine, place: str) -> float:
    """From the start of the container's program to its end: `docker run` itself takes longer."""
    host = {"Binds": [f"{place}:/out"], "NetworkMode": "none", "LogConfig": {"Type": "none"}}
    body = {"Image": made.tools(), "Cmd": ["sh", "-c", f"{WRITER.format(GB)} >/out/file"], "HostConfig": host}
    container = ask(made, "POST", "/containers/create", body)["Id"]
    begun = time.perf_counter()
    ask(made, "POST", f"/containers/{container}/start")
    started = time.perf_counter()
    ask(made, "POST", f"/containers/{container}/wait")
    took = time.perf_counter() - (begun + started) / 2
    assert os.path.getsize(f"{place}/file") == GB
    os.unlink(f"{place}/file")
    ask(made, "DELETE", f"/containers/{container}")
    return GB / took


def logs_delivered(made: PrivateEngine) -> float:
    """What `docker logs -f` brings of a fifth of that, from the beginning to the end, into nothing."""
    size = GB // 5
    body = {"Image": made.tools(), "Cmd": ["sh", "-c", WRITER.format(size)], "HostConfig": {"NetworkMode": "none"}}
    container = ask(made, "POST", "/containers/create", body)["Id"]
    ask(made, "POST", f"/containers/{container}/start")
    begun = time.perf_counter()
    counted = docker(made, "logs", "-f", container, capture_output=False, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - begun
    assert counted.returncode == 0
    ask(made, "DELETE", f"/containers/{container}")
    return size / took


def output_rows(client: Any, image: str, made: PrivateEngine, root: str) -> list[Row]:
    box = client.sandbox.create(image, provider="docker", disk_bytes=64 * GB).sandbox_id
    place = f"{root}/plain"
    os.mkdir(place)
    ours, run, logs = [], [], []
    for number in range(WRITES):
        run.append(run_written(made, place))
        ours.append(ours_written(client, box, number))
        logs.append(logs_delivered(made))
    client.sandbox.terminate(box)
    rows = []
    for what, beside, least in (("docker run, to a file in a bind mount", run, 0.7), ("docker logs -f", logs, 5.0)):
        ratio = median(ours) / median(beside)
        case, figure = "a process that writes 1 GB in a container", f"{median(ours) / 1e6:.0f} MB/s"
        rows.append(
            Row(case, figure, f"{what} {median(beside) / 1e6:.0f} MB/s", ratio, f">= {least:g}", ratio >= least)
        )
    return rows


# -- a crowd ----------------------------------------------------------------------------------------------------------


def peak_mib(pid: int) -> float:
    """The most memory that it ever had."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def crowd_rows(image: str, socket: str) -> list[Row]:
    failures: list[str] = []
    boxes: list[str] = []
    mine = threading.local()

    def one(number: int) -> None:
        if not hasattr(mine, "client"):
            mine.client = connect(socket)
        try:
            box = mine.client.sandbox.create(image, provider="docker").sandbox_id
            boxes.append(box)
            assert mine.client.sandbox.exec(box, ["echo", str(number)]).stdout == f"{number}\n".encode()
        except (SandkeepError, AssertionError) as error:
            failures.append(str(error))

    begun = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(CROWD)))
    took = time.perf_counter() - begun
    with connect(socket) as client:
        memory = peak_mib(client.daemon.status().pid)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda box: mine_of(mine, socket).sandbox.terminate(box), boxes))
    what = f"{CROWD} containers made, {AT_ONCE} at a time"
    told = f"{failures[0][:60]}" if failures else "-"
    return [
        Row(f"{what}: failures", str(len(failures)), told, f"{took:.1f} s", "0", not failures),
        Row(
            f"{what}: the daemon's memory",
            f"{memory:.0f} MiB",
            "-",
            memory / MOST_MIB,
            f"<= {MOST_MIB} MiB",
            memory <= MOST_MIB,
        ),
    ]


def mine_of(mine: Any, socket: str) -> Any:
    if not hasattr(mine, "client"):
        mine.client = connect(socket)
    return mine.client


@fair.conditions()
def run() -> list[Row]:
    with engine() as made, daemon() as (client, root):
        image = client.image.create(made.tools(), provider="docker").image_id
        crowd = crowd_rows(image, f"{root}/sock")
        box = to_first_output(client, image)
        return [
            *exec_rows(client, box, made, root),
            create_row(client, image, box, made, root),
            fork_row(client, image, made, root),
            *output_rows(client, image, made, root),
            *crowd,
        ]


if __name__ == "__main__":
    show(run())
