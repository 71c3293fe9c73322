"""Pauses between attempts, by a clock of the test's own."""

from itertools import islice

import pytest

from sandkeep.system.backoff import Backoff, pauses


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def all_pauses(backoff: Backoff, clock: Clock) -> list[float]:
    """The pauses until it gives up, each of which is waited for."""
    found = []
    while (pause_s := backoff.pause()) is not None:
        found.append(pause_s)
        clock.now += pause_s
    return found


def test_pauses_grow_up_to_the_longest() -> None:
    assert list(islice(pauses(1, 60), 8)) == [1, 2, 4, 8, 16, 32, 60, 60]
    assert list(islice(pauses(1, 100, growth=10), 4)) == [1, 10, 100, 100]


def test_the_last_attempt_is_when_the_patience_ends() -> None:
    clock = Clock()
    assert all_pauses(Backoff(1, 4, 10, clock=clock), clock) == [1, 2, 4, 3]


def test_attempts_take_time_too() -> None:
    clock = Clock()
    backoff = Backoff(1, 4, 10, clock=clock)
    assert backoff.pause() == 1
    clock.now += 9.5
    assert backoff.pause() == 0.5
    clock.now += 0.5
    assert backoff.pause() is None


@pytest.mark.parametrize("at_once", [False, True])
def test_without_patience_only_the_attempt_at_once_is_made(at_once: bool) -> None:
    clock = Clock()
    assert all_pauses(Backoff(1, 4, 0, at_once=at_once, clock=clock), clock) == ([0] if at_once else [])


def test_after_a_success_all_begins_anew() -> None:
    clock = Clock()
    backoff = Backoff(1, 4, 10, at_once=True, clock=clock)
    assert all_pauses(backoff, clock) == [0, 1, 2, 4, 3]
    backoff.reset()
    assert backoff.remaining_s == 10
    assert all_pauses(backoff, clock) == [0, 1, 2, 4, 3]


def test_the_patience_runs_from_when_it_was_begun() -> None:
    clock = Clock()
    backoff = Backoff(1, 4, 10, clock=clock)
    clock.now += 100
    backoff.begin()
    clock.now += 8
    backoff.begin()
    assert backoff.remaining_s == 2
    assert all_pauses(backoff, clock) == [1, 1]
