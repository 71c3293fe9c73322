"""The choice of a version, from answers to discovery."""

from typing import Any

import pytest

from sandkeep.errors import SandkeepError
from sandkeep.kubernetes.versions import AGENTS, POD_SNAPSHOTS, choose_version


def group(name: str, *versions: str) -> dict[str, Any]:
    return {
        "name": name,
        "versions": [{"groupVersion": f"{name}/{version}", "version": version} for version in versions],
    }


@pytest.mark.parametrize(
    ("served", "chosen"),
    [(["v1alpha1", "v1beta1"], "v1beta1"), (["v1alpha1"], "v1alpha1"), (["v2", "v1beta1"], "v1beta1")],
)
def test_the_newest_known_version_is_chosen(served: list[str], chosen: str) -> None:
    assert choose_version(group(AGENTS.name, *served), AGENTS) == chosen
    others = group(POD_SNAPSHOTS.name, "v1")
    assert choose_version({"groups": [others, group(AGENTS.name, *served)]}, AGENTS) == chosen


@pytest.mark.parametrize(
    "discovery",
    [None, {}, {"groups": []}, {"groups": [group("apps", "v1")]}, {"groups": "x"}, {"groups": [7, {"name": 7}]}]
    + [{"name": POD_SNAPSHOTS.name, "versions": versions} for versions in (None, [], [7], [{"version": 7}])],
)
def test_a_group_may_be_missing(discovery: dict[str, Any] | None) -> None:
    assert choose_version(discovery, POD_SNAPSHOTS) is None


def test_a_group_in_unknown_versions_is_an_error() -> None:
    with pytest.raises(
        SandkeepError, match=r"serves podsnapshot.gke.io in v2 alone, and v1 or v1alpha1 is needed"
    ) as no:
        choose_version(group(POD_SNAPSHOTS.name, "v2"), POD_SNAPSHOTS)
    assert no.value.code == "not_supported"
