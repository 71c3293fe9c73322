"""Known facts of a sandbox's processes: the keeper's answers, accepted where they can be true."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from sandkeepd.contract.processes import Exit
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.keeper.journal import MAX_ROUNDS, Answer, ExitsReader

MAX_REMEMBERED: Final = 65_536
MAX_ANSWERS_EACH: Final = 4
"""Of how many processes, and how many answers about each, an adopted sandbox's `exits` is remembered."""

MAX_ANSWERS: Final = 2 * MAX_REMEMBERED
"""Maximum number of remembered answers about all of them together: a start and an end for each."""

MAX_ORDERS: Final = 16
"""Of how many signals to a process it is remembered that they were sent."""

LOST_WITH_SANDBOX: Final = "the sandbox ended while the process ran"
LOST_END: Final = "it was killed, and the code in the sandbox kept its end from being told"
LOST_WATCHER: Final = "the code in the sandbox killed what watched the process"


class KnownProcess:
    """The known facts of one process. `changed` is set, and replaced, on each change."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.exit: Exit | None = None
        self.answer: str | None = None
        self.orders: dict[int, None] = {}
        self.input_fd: int | None = None
        self.fed_bytes = 0
        """Bytes of its input that it was fed, if by a file."""
        self.input_lock = trio.Lock()
        self.ended = trio.Event()
        self.changed = trio.Event()
        self.awaited = 0
        """Count of tasks that wait for an answer to a request that was sent."""
        self.has_files = True
        """True if files were written to start it, as far as is known."""
        self.followers: set[Callable[[], None]] = set()

    @property
    def runs(self) -> bool:
        """True if it was started, and its end is not known."""
        return self.pid is not None and self.exit is None

    def apply(self, word: str) -> None:
        """Believe an answer only where it can be true; the code inside can write these lines, too."""
        if self.exit is not None:
            return
        if word.startswith("~"):
            self.note_order(int(word[1:]))
        elif word.startswith("<"):
            self.fed_bytes = max(self.fed_bytes, int(word[1:]))
        elif word.startswith("+"):
            self.pid = self.pid or int(word)
        elif word.isdigit():
            if self.pid is not None:
                self.end(Exit(exit_code=int(word)))
        elif word == "lost" or (word == "none" and self.pid is not None):
            self.pid = self.pid or 0
            self.end(Exit(exit_code=None, message=LOST_WATCHER))
        else:
            self.answer = word
        self.notify()

    def note_order(self, order: int) -> None:
        """Remember that the signal of that number was sent; of many, the last."""
        self.orders[order] = None
        if len(self.orders) > MAX_ORDERS:
            del self.orders[next(iter(self.orders))]

    def notify(self) -> None:
        """Wake all tasks that wait for news."""
        self.changed.set()
        self.changed = trio.Event()

    def end(self, exit_: Exit) -> None:
        """Record the end, and wake all tasks that wait for it."""
        self.exit = exit_
        self.ended.set()
        self.close_input()
        for follower in list(self.followers):
            follower()

    @contextmanager
    def followed_by(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call back when it ends, for the length of a block."""
        self.followers.add(callback)
        try:
            yield
        finally:
            self.followers.discard(callback)

    def close_input(self) -> None:
        """Let go of the daemon's end of the process's input."""
        if self.input_fd is not None:
            fd, self.input_fd = self.input_fd, None
            trio.lowlevel.notify_closing(fd)
            os.close(fd)


class EarlierAnswers:
    """Answers about processes that nobody has asked after yet, as an adopted sandbox's `exits` holds them."""

    def __init__(self) -> None:
        self._answers: dict[str, list[str]] = {}
        self._count = 0

    def remember(self, answer: Answer) -> None:
        """Keep an answer, within bounds."""
        if answer.word == "live" or answer.word.startswith("<"):  # what can be asked again takes no place from an end
            return
        if self._count >= MAX_ANSWERS:
            return
        if len(self._answers) < MAX_REMEMBERED or answer.process_id in self._answers:
            answers = self._answers.setdefault(answer.process_id, [])
            orders = [word for word in answers if word.startswith("~")]
            if answer.word.startswith("~"):
                if len(orders) == MAX_ORDERS:
                    answers.remove(orders[0])
                    self._count -= 1
            elif len(answers) - len(orders) >= MAX_ANSWERS_EACH:
                return
            answers.append(answer.word)
            self._count += 1

    def pass_on(self, process_id: str, process: KnownProcess) -> None:
        """Pass the remembered answers to the process."""
        answers = self._answers.pop(process_id, ())
        self._count -= len(answers)
        for word in answers:
            process.apply(word)


def last_exits(out: HostileTree, process_ids: Sequence[str]) -> dict[str, Exit]:
    """Return the exits of processes, from the answers of a sandbox that is gone. Blocks, for a bounded time."""
    known = {process_id: KnownProcess() for process_id in process_ids}
    try:
        reader = ExitsReader(out)
    except (OSError, NotAFileError):
        return {}
    try:
        for _ in range(MAX_ROUNDS):
            answers, more = reader.read()
            for answer in answers:
                if answer.process_id in known:
                    known[answer.process_id].apply(answer.word)
            if not more:
                break
    finally:
        reader.close()
    return {process_id: found.exit for process_id, found in known.items() if found.exit is not None}
