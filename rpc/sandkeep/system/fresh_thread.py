"""A function in a thread of its own, for attributes that the kernel keeps per thread: namespaces, capabilities,
Landlock.
"""

from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def in_fresh_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread that ends with it, and wait; return its result or raise its exception.

    Programs that it starts inherit the thread's namespaces and dropped capabilities; other threads do not. Blocks.
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
