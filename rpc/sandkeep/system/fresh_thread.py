"""Run a function in a thread of its own, for what the kernel keeps per thread: namespaces, capabilities, Landlock."""

from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def in_fresh_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that ends with it, and wait; answer or raise what it does.

    What that thread gives up or unshares, the programs that it starts inherit, and no other thread. Blocks.
    """
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = work()
        except BaseException as error:  # noqa: BLE001 - handed over to the thread that waits
            outcome["error"] = error

    thread = Thread(target=run, name="sandkeep-fresh", daemon=True)
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]  # type: ignore[no-any-return]
