"""Which snapshots retention lets go: by number, by age, by label, and never the last."""

import pytest

from sandkeep import events, model
from sandkeep.settings.daemon import parse_snapshot_rules
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.snapshots.gc import due

DAY_US = 86_400 * 10**6
NOW_US = 1000 * DAY_US
PLACE = model.Place(where="state", base="/b", path="p", uri="/b/p")


def snapshot(
    name: str, age_days: float, status: str = "ready", box: str | None = "box", **labels: str
) -> SnapshotState:
    asked = events.SnapshotCreateRequested(
        owner="uid:0", kind="full", format="tar.gz", places=[PLACE], sandbox_id=box, labels=labels
    )
    taken_us = NOW_US - int(age_days * DAY_US)
    return SnapshotState(snapshot_id=name, requested=asked, requested_us=taken_us, revision=1, status=status)  # type: ignore[arg-type]


def gone(rules: str, *snapshots: SnapshotState) -> dict[str, str]:
    return {one.snapshot_id: why for one, why in due(snapshots, parse_snapshot_rules(rules), NOW_US)}


FIVE = [snapshot(name, age) for name, age in (("e", 5), ("d", 4), ("c", 3), ("b", 2), ("a", 1))]


def test_without_rules_all_stay() -> None:
    assert gone("all", *FIVE) == {}


def test_so_many_of_each_sandbox() -> None:
    assert gone("2", *FIVE) == {"c": "count", "d": "count", "e": "count"}
    assert gone("2", *FIVE, snapshot("x", 9, box="other")) == {"c": "count", "d": "count", "e": "count"}


def test_so_old() -> None:
    assert gone("3d", *FIVE) == {"d": "age", "e": "age"}
    assert gone("1,2d", *FIVE) == {"b": "count", "c": "count", "d": "count", "e": "count"}


def test_the_last_one_stays_whatever_its_age() -> None:
    assert gone("1d", snapshot("old", 100), snapshot("older", 200)) == {"older": "age"}
    assert gone("1d", snapshot("old", 100, box=None)) == {}


def test_the_first_rule_that_fits_decides() -> None:
    mixed = [snapshot(f"n{age}", age, kind="nightly") for age in (9, 8, 7)]
    mixed += [snapshot("auto6", 6, auto="idle"), snapshot("auto5", 5, auto="stop"), snapshot("mine", 4)]
    assert gone("kind=nightly:1; auto:1d; 10", *mixed) == {
        "n8": "count", "n9": "count", "auto5": "age", "auto6": "age"
    }  # fmt: skip
    assert gone("kind=weekly:1", *mixed) == {}


def test_only_what_is_ready_counts() -> None:
    others = [snapshot(status, 0.5, status=status) for status in ("creating", "failed", "deleting", "deleted")]
    assert gone("2", *FIVE[3:], *others) == {}


@pytest.mark.parametrize("text", ["0", "x", "5,", "a:b", "kind=x:", ":", "3x"])
def test_rules_that_make_no_sense(text: str) -> None:
    with pytest.raises(ValueError, match=r"give rules|keep at least"):
        parse_snapshot_rules(text)
