"""What a layer occupies is the same, whoever counts it."""

import os
import subprocess
from pathlib import Path

import pytest

from sandkeepd.providers.common import layers as local_layers
from sandkeepd.providers.common.layers import Layers
from sandkeepd.providers.common.layout import Layout


@pytest.mark.parametrize("few", [500, 3], ids=["by us", "by a program"])
def test_what_a_layer_occupies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """A file with two names counts once, a hole not at all, and a link is not followed."""
    monkeypatch.setattr(local_layers, "_FEW", few)
    top = tmp_path / "top"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "large").write_bytes(b"x" * 300_000)
    os.link(top / "a" / "large", top / "a" / "b" / "again")
    (top / "a" / "b" / "away").symlink_to("/usr")
    with (top / "hole").open("wb") as file:
        file.truncate(1 << 30)
    layers = Layers(Layout(str(tmp_path / "state")), "log_1", os.geteuid() or 1000)
    told = subprocess.run(["du", "-s", "-B1", top], check=True, capture_output=True, text=True).stdout
    assert layers.size_bytes(str(top)) == int(told.split()[0])
