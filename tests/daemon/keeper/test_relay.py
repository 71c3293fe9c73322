"""The relay between a pod's keeper and the daemon: processes as anywhere else, and connections that break."""

import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio
from tests.support.expect import until, until_async
from tests.support.patience import patient
from tests.support.relayed import Pod, connected, keep_connecting

from sandkeepd.contract.processes import Launch, Terminal
from sandkeepd.keeper import journal_trimming, program, relay_frames, requests
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.watcher import Watcher


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def watcher() -> AsyncIterator[Watcher]:
    with Watcher() as made:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()


async def run(instance: KeeperInstance, name: str, script: str) -> int | None:
    await instance.launch(Launch(process_id=name, command=["sh", "-c", script]))
    return (await instance.wait(name)).exit_code


def output(instance: KeeperInstance, name: str, stream: str = "stdout") -> bytes:
    return instance.read(name, stream, 0, 1 << 24).data


async def test_processes(pod: Pod, watcher: Watcher) -> None:
    relay, instance = pod.relay(), pod.instance(watcher)
    async with connected(pod, relay):
        assert await run(instance, "p1", "echo out; echo err >&2; exit 7") == 7
        assert (output(instance, "p1"), output(instance, "p1", "stderr")) == (b"out\n", b"err\n")
        await instance.launch(Launch(process_id="p2", command=["cat"], stdin=True))
        await instance.write_stdin("p2", b"x" * 1_000_000, eof=True)
        assert (await instance.wait("p2")).exit_code == 0
        assert output(instance, "p2") == b"x" * 1_000_000
        await instance.launch(Launch(process_id="p3", command=["sh", "-c", "echo; exec sleep 1000"]))
        await instance.wait_output("p3", 0, 0)
        await instance.signal("p3", 15, order=3)
        assert (await instance.wait("p3")).exit_code == 143
        secret = Launch(process_id="p4", command=["sh", "-c", 'printf %s "$S"'], secrets={"S": "\\ \n" * 9000})
        await instance.launch(secret)
        await instance.wait("p4")
        assert output(instance, "p4") == b"\\ \n" * 9000
        await instance.launch(Launch(process_id="p5", command=["wc", "-c"], stdin=b"y" * 3_000_000))
        await instance.wait("p5")
        assert output(instance, "p5") == b"3000000\n"
        assert await instance.run_command(["sh", "-c", "cat; echo no >&2; exit 3"], b"in") == (3, b"in", b"no\n")
        assert await instance.is_alive()
        await instance.write_whole(str(pod.directory / "file"), b"z" * 200_000)
        assert (pod.directory / "file").read_bytes() == b"z" * 200_000
        await until_async(lambda: not relay._unconfirmed)
    relay.close()


@pytest.mark.needs("tmux")
async def test_a_terminal(pod: Pod, watcher: Watcher) -> None:
    relay, instance = pod.relay(), pod.instance(watcher)
    async with connected(pod, relay):
        terminal = Terminal(rows=24, cols=80, session="t")
        await instance.launch(Launch(process_id="t1", command=["sh", "-c", "tty; exit 9"], terminal=terminal))
        assert (await instance.wait("t1")).exit_code == 9
        assert output(instance, "t1").startswith(b"/dev/pts/")
    relay.close()


async def test_all_output_is_there_when_the_end_is(pod: Pod, watcher: Watcher) -> None:
    """Also over a slow connection, beside one that writes without end."""
    relay, instance = pod.relay(most_bytes=1 << 30), pod.instance(watcher)

    async def one(number: int) -> None:
        await instance.launch(
            Launch(process_id=f"n{number}", command=["head", "-c", f"{number * 20_000}", "/dev/zero"])
        )
        await instance.wait(f"n{number}")
        assert instance.sizes(f"n{number}") == (number * 20_000, 0)

    async with connected(pod, relay) as stream:
        stream.pause_s = 0.001
        await instance.launch(Launch(process_id="endless", command=["sh", "-c", "while :; do echo line; done"]))
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(one, number)
        await instance.signal("endless", signal.SIGKILL)
    relay.close()


@pytest.mark.parametrize("seed", range(4))
async def test_a_connection_that_breaks_at_any_moment(seed: int, pod: Pod, watcher: Watcher, tmp_path: Path) -> None:
    """Each process runs once and is told of; in the end all is in the mirror."""
    chance = random.Random(seed)
    relay, instance = pod.relay(), pod.instance(watcher)
    few = trio.CapacityLimiter(8)

    async def one(number: int) -> None:
        async with few:
            name, size = f"n{number}", chance.randrange(3000)
            script = f"echo {number} >>{tmp_path}/ran; head -c {size} /dev/urandom; cat; exit {number % 100}"
            await instance.launch(Launch(process_id=name, command=["sh", "-c", script], stdin=True))
            await instance.write_stdin(name, b"s" * number, eof=True)
            assert (await instance.wait(name)).exit_code == number % 100
            for inside, mirrored in pod.journals(name):
                assert inside == mirrored
            assert instance.sizes(name) == (size + number, 0)
            assert output(instance, name)[size:] == b"s" * number

    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_connecting, pod, relay, chance)
        async with trio.open_nursery() as ones:
            for number in range(150):
                ones.start_soon(one, number)
        nursery.cancel_scope.cancel()
    assert sorted(map(int, (tmp_path / "ran").read_text().split())) == list(range(150))
    async with connected(pod, relay):
        assert (pod.mirror / "out/exits").read_bytes() == (pod.directory / "out/exits").read_bytes()
    relay.close()


async def test_a_new_daemon_goes_on_at_the_byte(pod: Pod, watcher: Watcher, tmp_path: Path) -> None:
    """Also with input that the one before had put there, and could not tell of."""
    first, instance = pod.relay(), pod.instance(watcher)
    script = f"echo early; until [ -e {tmp_path}/go ]; do sleep 0.01; done; cat; echo late"
    async with connected(pod, first):
        await instance.launch(Launch(process_id="p1", command=["sh", "-c", script], stdin=True))
        await instance.wait_output("p1", 0, 0)
        await instance.signal("p1", 0, order=5)
        await until_async(lambda: b"~5" in (pod.mirror / "out/exits").read_bytes())
    first.close()
    with (pod.mirror / "in/p1.stdin").open("ab") as file:
        file.write(b"input\n")
    (pod.mirror / "in/p1.stdin").chmod(0o444)
    await instance.aclose()
    (tmp_path / "go").touch()
    await until_async(lambda: (pod.directory / "out/p/p1.stdout").stat().st_size >= 6)
    second, instance = pod.relay(), pod.instance(watcher)
    await instance.remember_earlier()  # at once, as a provider does: what is read before that is remembered by nobody
    async with connected(pod, second):
        assert await instance.find("p1") is not None
        assert await instance.find("p2") is None
        assert await instance.was_signalled("p1", 5)
        assert (await instance.wait("p1")).exit_code == 0
        assert output(instance, "p1") == b"early\ninput\nlate\n"
        assert await run(instance, "p3", "exit 4") == 4
    second.close()


async def test_connected_is_when_all_is_here(pod: Pod, watcher: Watcher) -> None:
    relay, instance = pod.relay(), pod.instance(watcher)
    script = f"until [ -e {pod.directory}/in/.go ]; do sleep 0.01; done; head -c 9000000 /dev/urandom"
    async with connected(pod, relay):
        await instance.launch(Launch(process_id="p1", command=["sh", "-c", script]))
    (pod.directory / "in/.go").touch()
    await until_async(lambda: b"p1 0\n" in (pod.directory / "out/exits").read_bytes())
    async with connected(pod, relay):
        ((inside, mirrored), _), exits = pod.journals("p1"), (pod.mirror / "out/exits").read_bytes()
        is_whole = inside == mirrored  # pytest would compare nine million bytes
        assert is_whole
        assert exits.endswith(b"p1 0\n")
    relay.close()


async def test_a_second_relay_takes_over(pod: Pod, watcher: Watcher) -> None:
    """From one whose connection is half open, and that was stopped."""
    relay, instance = pod.relay(), pod.instance(watcher)
    async with pod.connection() as old, trio.open_nursery() as nursery:
        nursery.start_soon(relay.run, old)
        await relay.connected.wait()
        old.process.send_signal(signal.SIGSTOP)
        nursery.cancel_scope.cancel()
    async with pod.connection() as old:
        other = pod.relay()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other.run, old)
            await other.connected.wait()
            nursery.cancel_scope.cancel()
        async with connected(pod, relay):
            assert await old.process.wait() == -signal.SIGTERM
            assert await run(instance, "p1", "exit 4") == 4
    other.close()
    relay.close()


async def test_a_name_that_changes(pod: Pod, watcher: Watcher) -> None:
    relay, instance = pod.relay(), pod.instance(watcher)
    async with connected(pod, relay):
        await instance.launch(Launch(process_id="old", command=["sh", "-c", "echo one; read x; echo two"], stdin=True))
        await instance.wait_output("old", 0, 0)
        await instance._channel.send(requests.rename("old", "new"))
        assert await instance.find("new") is not None
        assert output(instance, "new") == b"one\n"
        assert not (pod.mirror / "out/p/old.stdout").exists()
        await instance._channel.send(requests.read_more("new", "stdin", over=True))
        await instance.wait("new")
        assert output(instance, "new") == b"one\ntwo\n"
    relay.close()


async def test_files_go_in_the_pod_as_they_go_here(pod: Pod, watcher: Watcher) -> None:
    relay, instance = pod.relay(), pod.instance(watcher)
    async with connected(pod, relay):
        await instance.run_command(["cat"], b"in")
        await instance.launch(Launch(process_id="p1", command=["true"], stdin=b"in"))
        await instance.wait("p1")
        instance.forget("p1")
        await until_async(lambda: not [name for name in os.listdir(pod.directory / "in") if not name.startswith(".")])
        await until_async(lambda: sorted(os.listdir(pod.directory / "out/p")) == ["p1.stderr", "p1.stdout"])
        journal_trimming.drop(instance._shared.out, ["p1"])
        await relay.trimmed()
        await until_async(lambda: not os.listdir(pod.directory / "out/p"))
    relay.close()


async def test_trimming_frees_the_pod(pod: Pod, watcher: Watcher) -> None:
    relay, instance = pod.relay(), pod.instance(watcher)
    journal = pod.directory / "out/p/prc_1.stdout"
    async with connected(pod, relay):
        script = "head -c 8000000 /dev/zero | tr '\\0' x; exec sleep 1000"
        await instance.launch(Launch(process_id="prc_1", command=["sh", "-c", script]))
        await until_async(lambda: instance.sizes("prc_1")[0] == 8_000_000)
        journal_trimming.trim(instance._shared.out, ["prc_1"], 2_000_000)
        await relay.trimmed()
        await until_async(lambda: journal.stat().st_blocks * 512 < 2_000_000)
        assert journal.stat().st_size == 8_000_000
        await instance.signal("prc_1", 9)
    relay.close()
    again = pod.relay()
    async with connected(pod, again):
        assert (pod.mirror / "out/p/prc_1.stdout").stat().st_blocks * 512 < 2_000_000
    again.close()


async def test_input_for_which_the_pod_has_no_room(pod: Pod, watcher: Watcher) -> None:
    """It is not lost, and comes when there is room."""
    relay, instance = pod.relay(), pod.instance(watcher)
    data = os.urandom(5000)
    async with connected(pod, relay, ["prlimit", "--fsize=1000:unlimited"]) as stream:
        await instance.launch(Launch(process_id="p1", command=["cat"], stdin=True))
        await instance.write_stdin("p1", data, eof=False)
        await until_async(lambda: instance.sizes("p1")[0] == 1000)
        resource.prlimit(stream.process.pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        await until_async(lambda: instance.sizes("p1")[0] == 2000)
    async with connected(pod, relay):
        await instance.write_stdin("p1", b"", eof=True)
        await instance.wait("p1")
        assert output(instance, "p1") == data
    relay.close()


async def test_without_inotify(pod: Pod, watcher: Watcher) -> None:
    if subprocess.run(["unshare", "-Ur", "true"], check=False).returncode:
        pytest.skip("there are no user namespaces")
    relay, instance = pod.relay(), pod.instance(watcher)
    none = ["unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances && exec "$@"', "sh"]
    script = f"echo a; until [ -e {pod.directory}/in/.go ]; do sleep 0.01; done; echo b; read x; exit 5"
    async with connected(pod, relay, none):
        await instance.launch(Launch(process_id="p1", command=["sh", "-c", script], stdin=True))
        await until_async(lambda: output(instance, "p1") == b"a\n")
        (pod.directory / "in/.go").touch()
        await until_async(lambda: output(instance, "p1") == b"a\nb\n")
        await instance.write_stdin("p1", b"\n", eof=True)
        assert (await instance.wait("p1")).exit_code == 5
    relay.close()


async def test_answers_that_the_code_inside_cuts(pod: Pod, watcher: Watcher) -> None:
    """Whoever waits for one hears it all the same."""
    relay, instance = pod.relay(), pod.instance(watcher)
    async with connected(pod, relay):
        await run(instance, "p0", "exit 0")
        await instance.launch(Launch(process_id="p1", command=["sh", "-c", "read x; exit 5"], stdin=True))
        os.truncate(pod.directory / "out/exits", 0)
        assert await run(instance, "p2", "exit 6") == 6
        await instance.write_stdin("p1", b"", eof=True)
        assert (await instance.wait("p1")).exit_code == 5
        with (pod.directory / "out/exits").open("ab") as file:
            file.write(b"garbage" * 10_000 + b"\n\0\n p3 0\n\xff 1\np9 1")
        assert await run(instance, "p3", "echo; exit 7") == 7
    relay.close()


@pytest.mark.parametrize("plant", ["link", "fifo", "directory", "nothing", "shorter", "hole"])
async def test_journals_that_the_code_inside_replaces(plant: str, pod: Pod, watcher: Watcher) -> None:
    """The mirror keeps what came before, gets nothing from elsewhere, and others are not disturbed."""
    relay, instance = pod.relay(), pod.instance(watcher)
    place = pod.directory / "out/p/p1.stdout"
    plants = {
        "link": f"rm {place}; ln -s /etc/passwd {place}", "fifo": f"rm {place}; mkfifo {place}",
        "directory": f"rm {place}; mkdir {place}", "nothing": f"rm {place}", "shorter": f": >{place}",
        "hole": f"truncate -s 1T {place}",
    }  # fmt: skip
    async with connected(pod, relay):
        await instance.launch(
            Launch(process_id="p1", command=["sh", "-c", "echo early; read x; " + plants[plant]], stdin=True)
        )
        await instance.wait_output("p1", 0, 0)
        await instance.write_stdin("p1", b"", eof=True)
        assert (await instance.wait("p1")).exit_code == 0
        size = 1 << 40 if plant == "hole" else 6
        assert instance.sizes("p1") == (size, 0)
        assert plant == "hole" or output(instance, "p1") == b"early\n"
        assert (pod.mirror / "out/p/p1.stdout").stat().st_blocks * 512 <= 8192
        assert await run(instance, "p2", "echo; exit 7") == 7
    relay.close()


async def test_thousands_of_journals_that_nobody_asked_for(pod: Pod, watcher: Watcher) -> None:
    relay, instance = pod.relay(most_bytes=8 << 20), pod.instance(watcher)
    async with connected(pod, relay):
        script = f"cd {pod.directory}/out/p; i=0; while [ $i -lt 5000 ]; do echo x >x$i.stdout; i=$((i+1)); done"
        assert await run(instance, "p1", script) == 0
        assert await run(instance, "p2", "echo; exit 7") == 7
        assert len(os.listdir(pod.mirror / "out/p")) <= (8 << 20) // 4096 * 5 // 4
    relay.close()


# -- the program by itself --------------------------------------------------------------------------------------------


def test_one_keeper_for_a_directory(pod: Pod) -> None:
    behind = subprocess.run(
        [pod.program, "-d", str(pod.directory)], check=False, capture_output=True, timeout=patient(60)
    )
    assert (behind.returncode, behind.stdout, behind.stderr) == (0, b"", b"")
    before = subprocess.run(
        [pod.program, "-p", str(pod.directory)], check=False, capture_output=True, timeout=patient(60)
    )
    assert before.returncode == 125
    assert b"another keeper serves it" in before.stderr


def test_a_start_in_the_background_that_fails(tmp_path: Path) -> None:
    (tmp_path / "pod/out/exits").mkdir(parents=True)
    argv = [program.on_host(str(tmp_path)), "-d", str(tmp_path / "pod")]
    done = subprocess.run(argv, check=False, capture_output=True, timeout=patient(60))
    assert (done.returncode, done.stdout, done.stderr) == (125, b"", b"its answers cannot be opened\n")


async def test_in_the_background(tmp_path: Path, watcher: Watcher) -> None:
    """What has started it holds nothing of it, and many at once start one."""
    made = Pod(tmp_path)
    made.close()
    argv = [made.program, "-d", str(made.directory)]
    starts = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(4)]
    assert [start.communicate(timeout=patient(60))[0] for start in starts] == [b""] * 4
    assert [start.returncode for start in starts] == [0] * 4
    relay, instance = made.relay(), made.instance(watcher)
    async with connected(made, relay):
        await run(instance, "p1", "echo $PPID $(ls -l /proc/$PPID/fd/0)")
        keeper, link = output(instance, "p1").split(b" ", 1)
        try:
            assert link.strip().endswith(b"/dev/null")
            assert len(_keepers(made.directory)) == 1
            ended = "while kill -0 $$ 2>/dev/null; do :; done"
            script = f"({ended}; exec cut -d' ' -f4 /proc/self/stat) >{tmp_path}/parent & exit 6"
            assert await run(instance, "p2", script) == 6
            await until_async(lambda: (tmp_path / "parent").exists() and (tmp_path / "parent").read_bytes())
            assert (tmp_path / "parent").read_bytes().strip() == keeper  # its parent has ended before
        finally:
            os.kill(int(keeper), signal.SIGKILL)
    relay.close()


def _keepers(directory: Path) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 2 and words[1] == b"-d" and words[2] == os.fsencode(directory):
            found.append(place.parent.name)
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's directory is made by root")
def test_another_user_than_root(tmp_path: Path) -> None:
    place = Path("/tmp") / f"sandkeep-relay-{os.getpid()}"  # others cannot get to where tests have theirs
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    try:
        shutil.copy(program.on_host(str(tmp_path)), place / "keeper")
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        argv = [*as_nobody, str(place / "keeper"), "-d", str(place / "io")]
        subprocess.run(argv, check=True, timeout=patient(60))
        keeper = _keepers(place / "io")
        assert len(keeper) == 1
        argv = [*as_nobody, str(place / "keeper"), "-r", str(place / "io")]
        said = subprocess.run(argv, input=b"begin 100\n", check=True, capture_output=True, timeout=patient(60)).stdout
        assert said.startswith(b"hello 1 0\nready\n")
        assert os.access(place / "io/in/.keeper", os.X_OK)
        os.kill(int(keeper[0]), signal.SIGKILL)
    finally:
        shutil.rmtree(place)


def test_there_is_no_keeper(tmp_path: Path, pod: Pod) -> None:
    done = subprocess.run([pod.program, "-r", str(tmp_path)], check=False, capture_output=True, timeout=patient(60))
    assert (done.returncode, done.stdout) == (126, b"")
    assert b"no keeper serves" in done.stderr


def test_a_request_that_comes_twice(pod: Pod, tmp_path: Path) -> None:
    """On one connection or the next: its number says that it was carried out."""

    def ask(number: int, name: str) -> bytes:
        record = requests.record(["sh", "-c", f"echo {name} >>{tmp_path}/ran"], {}, None)
        line = requests.run_record(record, name, "none", 100)
        assert line is not None
        return relay_frames.ask(number, line)

    for number, names in ((0, ["a", "b"]), (5, ["c", "d"])):
        argv = [pod.program, "-r", str(pod.directory)]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"begin 1000\n" + ask(5, names[0]) + ask(5, names[1]) + ask(4, "e"))
            process.stdin.flush()
            assert process.stdout.readline() == b"hello 1 %d\n" % number
            until(lambda: "a\n" in (tmp_path / "ran").read_text() if (tmp_path / "ran").exists() else "")
            process.stdin.close()
    assert (tmp_path / "ran").read_text() == "a\n"


@pytest.mark.parametrize(
    "line", [b"x\n", b"put ../x 0 1\nx", b"ask 1 5000\n", b"have\0", b"rm .control\n", b"y" * 300, b"drop exits\n"]
)
def test_what_no_daemon_says(line: bytes, pod: Pod) -> None:
    argv = [pod.program, "-r", str(pod.directory)]
    done = subprocess.run(argv, input=line + b"\n" * 300, check=False, capture_output=True, timeout=patient(60))
    assert done.returncode == 125
    assert (pod.directory / "in/.control").exists()
