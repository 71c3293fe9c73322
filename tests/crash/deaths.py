"""Stories told to daemons that die at a point: one of them, and many side by side."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.conftest import RunningDaemon
from tests.crash.story import Story

from sandkeep import failpoints

Stories = dict[Any, "Future[Story]"]
"""Stories by the points at which their daemons die."""

PointT = TypeVar("PointT")


@contextmanager
def dying(point: str, root: str, **env: str) -> Iterator[Story]:
    """Yield the story of a daemon that dies at a point, not started yet; at the end of the block the daemon is cleared
    away. `env` are further variables of its environment.
    """
    daemon = RunningDaemon(root)
    os.chmod(root, 0o711)
    daemon.env |= {failpoints.SETTING: point, **env}
    try:
        yield Story(daemon)
    finally:
        daemon.env.pop(failpoints.SETTING, None)
        daemon.clear()


@contextmanager
def side_by_side(
    places: str, points: Iterable[PointT], dies_at: Callable[[PointT, str], Story], at_once: int = 3
) -> Iterator[Stories]:
    """Tell a story for each point, in a directory of its own, some at once: most of the time each waits for something.

    Those that have not begun at the end of the block are not told.
    """
    with ThreadPoolExecutor(at_once) as pool:
        yield {point: pool.submit(dies_at, point, tempfile.mkdtemp(dir=places)) for point in points}
        pool.shutdown(cancel_futures=True)
