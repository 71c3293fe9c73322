"""Totals of packing: the packer on directories as the engine has them, without the engine."""

from pathlib import Path
from typing import Literal

import pytest

from sandkeepd.contract.snapshots import PackRequest
from sandkeepd.host import threads
from sandkeepd.host.threads import Meter
from sandkeepd.host.unnamed_file import unnamed_file
from sandkeepd.providers.docker.pack import Packer
from sandkeepd.providers.docker.trees import ContainerFiles

pytestmark = pytest.mark.needs("root")

CHANGED, BENEATH = 300_000, 200_000


@pytest.fixture
def files(tmp_path: Path) -> ContainerFiles:
    for name, size in (("upper", CHANGED), ("lower", BENEATH)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of-{name}").write_bytes(b"x" * size)
    return ContainerFiles(image="sha256:0", upper=f"{tmp_path}/upper", lowers=[f"{tmp_path}/lower"], volumes=[])


class Seen(Meter):
    """A meter that keeps what somebody would see."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[int, int | None]] = []

    def __call__(self, size: int) -> None:
        super().__call__(size)
        self.steps.append((size, self.total_bytes))


def pack(files: ContainerFiles, meter: Meter, over: Literal["nothing", "start"], tmp_path: Path) -> int:
    (tmp_path / "state").mkdir()
    with unnamed_file(f"{tmp_path}/state") as output:
        request = PackRequest(name="n", output=output, catalogue=f"{tmp_path}/catalogue", format="tar", over=over)
        packed = Packer(f"{tmp_path}/state").pack(files, files.lowers, None, request, lambda: None, meter)
    return packed.size_bytes


def test_the_difference_from_the_image_has_an_exact_total(files: ContainerFiles, tmp_path: Path) -> None:
    meter = Seen()
    size = pack(files, meter, "start", tmp_path)
    assert meter.steps[-1] == (size, size)
    assert (size, None) in meter.steps, "the bytes are shown while the container is frozen, too"


def test_all_files_have_a_total_once_it_takes_long(
    files: ContainerFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "PROGRESS_PERIOD_S", -1.0)
    meter = Seen()
    assert pack(files, meter, "nothing", tmp_path) > CHANGED + BENEATH
    done, total = meter.steps[-1]
    assert total is not None
    assert total >= CHANGED + BENEATH
    assert abs(done - total) < 20_480, "but for the names, and the ends of archives"
