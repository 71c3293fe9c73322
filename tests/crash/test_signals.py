"""What each signal does to the daemon, and that none does anything to what it keeps."""

import resource
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.crash.story import events_of
from tests.support.patience import patient

from sandkeep.events import DaemonStopped

pytestmark = pytest.mark.needs("bwrap")

STOPS = [signal.SIGTERM, signal.SIGINT]
DIES = [signal.SIGKILL, signal.SIGQUIT, signal.SIGABRT, signal.SIGSEGV, signal.SIGUSR2]
GOES_ON = [signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGWINCH]

COUNT = 'i=0; while [ ! -e stop ]; do echo $i; i=$((i+1)); sleep 0.005; done; echo "$i in all"; exit 9'


@pytest.fixture(scope="module")
def counting(places: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], RunningDaemon]]:
    """A daemon, and a sandbox `box` in which `count` counts, from before the first signal on."""
    daemon = RunningDaemon(f"{places}/signals")
    Path(daemon.root).mkdir(0o711)
    daemon.start()
    source = tmp_path_factory.mktemp("source")
    with daemon.connect() as client:
        client.sandbox.create(client.image.create(str(source)).image_id, name="box")
        client.process.launch("box", name="count", command=COUNT)

    def running() -> RunningDaemon:
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()
        assert daemon.process is not None
        resource.prlimit(daemon.process.pid, resource.RLIMIT_CORE, (0, 0))
        return daemon

    yield running
    running().clear()


def goes_on(daemon: RunningDaemon) -> None:
    """See that the process runs, that it is the one of before, and that more of its output comes."""
    with daemon.connect() as client:
        assert client.process.get("box", "count").status == "running"
        at = client.process.read("box", "count").next_stdout_offset
        assert client.process.read("box", "count", stdout_offset=at, wait_s=30).stdout
        assert client.sandbox.exec("box", "true").exit_code == 0


@pytest.mark.parametrize("number", STOPS, ids=lambda number: number.name)
def test_it_stops_in_good_order(number: signal.Signals, counting: Callable[[], RunningDaemon]) -> None:
    daemon = counting()
    assert daemon.end(number) == 0
    assert [fact.event for fact in events_of(daemon.state_dir)][-1] == DaemonStopped(reason=number.name)
    goes_on(counting())


@pytest.mark.parametrize("number", DIES, ids=lambda number: number.name)
def test_it_dies_and_nothing_else(number: signal.Signals, counting: Callable[[], RunningDaemon]) -> None:
    daemon = counting()
    assert daemon.end(number) == -number
    goes_on(counting())


@pytest.mark.parametrize("number", GOES_ON, ids=lambda number: number.name)
def test_it_goes_on(number: signal.Signals, counting: Callable[[], RunningDaemon]) -> None:
    daemon = counting()
    assert daemon.process is not None
    pid = daemon.process.pid
    daemon.process.send_signal(number)
    goes_on(daemon)
    assert counting().process.pid == pid  # type: ignore[union-attr]


def test_it_says_where_it_is_when_it_is_asked(counting: Callable[[], RunningDaemon]) -> None:
    daemon = counting()
    assert daemon.process is not None
    said = len(daemon.said())
    daemon.process.send_signal(signal.SIGUSR1)
    goes_on(daemon)
    assert "Thread" in daemon.said()[said:]


def test_stopped_and_continued_it_answers_what_was_asked_meanwhile(counting: Callable[[], RunningDaemon]) -> None:
    daemon = counting()
    assert daemon.process is not None
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(patient(60))
        asking.connect(daemon.socket)
        daemon.process.send_signal(signal.SIGSTOP)
        asking.sendall(b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\n')
        daemon.process.send_signal(signal.SIGCONT)
        assert b'"id":1' in asking.recv(65536)
    goes_on(daemon)


def test_after_all_of_them_no_number_is_missing_and_none_is_there_twice(counting: Callable[[], Any]) -> None:
    with counting().connect() as client:
        client.sandbox.write_file("box", path="stop", data=b"")
        assert client.process.wait("box", "count").exit_code == 9
        *lines, last, end = b"".join(piece.stdout for piece in client.read_output("box", "count")).split(b"\n")
        assert lines == [b"%d" % number for number in range(len(lines))]
        assert (last, end) == (b"%d in all" % len(lines), b"")
