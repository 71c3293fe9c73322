"""What was unpacked for sandboxes to begin with is whole after a power cut, or not there."""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from tests.support import disks
from tests.support.trees import described, pack_layer

from sandkeep import failpoints
from sandkeep.errors import DaemonError
from sandkeep_store.archives.trees.pack import PackedArchive, pack
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.providers.common.layers import Layers
from sandkeepd.providers.common.layout import Layout

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("bwrap")]

UID = 1_900_000_007


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[disks.Ext4]:
    for name in ("image", "disk"):
        (tmp_path / name).mkdir()
    with disks.ext4(str(tmp_path / "image"), str(tmp_path / "disk")) as made:
        yield made


@pytest.fixture
def source(tmp_path: Path) -> Path:
    top = tmp_path / "source"
    for number in range(60):
        path = top / str(number % 7) / str(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(Random(number).randbytes(50_000))
        os.chown(path, UID, UID)
    return top


def layers_on(disk: disks.Ext4) -> Layers:
    layout = Layout(disk.at)
    layout.prepare()
    return Layers(layout, "log_1", UID)


def archive_of(source: Path, place: Path, *, is_layer: bool) -> KeptArchive:
    tree = os.open(source, os.O_RDONLY)
    output = os.open(place, os.O_RDWR | os.O_CREAT)
    made: PackedArchive = pack_layer(tree, output, overlay="trusted") if is_layer else pack(tree, output)
    os.close(tree)
    return KeptArchive(descriptor=output, sha256=made.sha256, limits=made.limits, is_layer=is_layer)


@pytest.mark.parametrize("is_layer", [False, True])
def test_all_of_it_is_there(disk: disks.Ext4, source: Path, tmp_path: Path, is_layer: bool) -> None:
    layers = layers_on(disk)
    archive = archive_of(source, tmp_path / "archive", is_layer=is_layer)
    layers.fill("snp_1", archive, lambda _: None)  # type: ignore[arg-type]
    disk.cut_power()
    disk.again()
    assert layers.is_complete("snp_1")
    assert described(layers.root("snp_1")) == described(source)
    os.close(archive.descriptor)


def test_nothing_is_there_before(
    disk: disks.Ext4, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right before a layer says that it is complete."""
    layers = layers_on(disk)
    archive = archive_of(source, tmp_path / "archive", is_layer=False)
    monkeypatch.setattr(failpoints, "reach", lambda point: disk.cut_power() if point == "layer.made" else None)
    with pytest.raises(DaemonError, match="Input/output"):
        layers.fill("snp_1", archive, lambda _: None)  # type: ignore[arg-type]
    monkeypatch.undo()
    disk.again()
    assert not layers.is_complete("snp_1")
    layers.fill("snp_1", archive, lambda _: None)  # type: ignore[arg-type]
    assert described(layers.root("snp_1")) == described(source)
    os.close(archive.descriptor)
