"""Root file systems for the sandboxes of doubles, which are unpacked once for each run.

    python -m tests.support.kubernetes.images NAME

writes one, `tools`, `busybox` or `bare`, as a tar.
"""

import io
import os
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeVar

from tests.support import rootfs

TOOLS: Final = os.environ.get("SANDKEEP_CLUSTER_TOOLS", "tools:latest")
"""The image that stands for a Debian."""

BUSYBOX: Final = os.environ.get("SANDKEEP_CLUSTER_BUSYBOX", "busybox:latest")
BARE: Final = "bare:latest"
"""An image without a shell."""

_ARCHIVES: Final[Mapping[str, Callable[[], bytes]]] = {
    TOOLS: rootfs.tools,
    BUSYBOX: rootfs.busybox,
    BARE: rootfs.bare,
}


def unpack(directory: Path) -> dict[str, str]:
    """Unpack all images below a directory; return the root of each."""
    roots = {}
    for name, archive in _ARCHIVES.items():
        root = directory / name.partition(":")[0]
        root.mkdir(parents=True)
        with tarfile.open(fileobj=io.BytesIO(archive())) as tar:
            tar.extractall(root, filter="fully_trusted")
        root.chmod(0o755)
        roots[name] = str(root)
    return roots


DoubleT = TypeVar("DoubleT")


@contextmanager
def with_images(
    start: Callable[[Path, dict[str, str]], AbstractContextManager[DoubleT]], prefix: str, within: str | None = None
) -> Iterator[tuple[Path, DoubleT]]:
    """Run a double with all images in a directory of its own, which is made `within` another; yield both."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=within, ignore_cleanup_errors=True) as made:
        directory = Path(made)
        directory.chmod(0o755)
        with start(directory / "double", unpack(directory / "images")) as double:
            yield directory, double


if __name__ == "__main__":
    name = sys.argv[1]
    sys.stdout.buffer.write(_ARCHIVES[{"tools": TOOLS, "busybox": BUSYBOX, "bare": BARE}[name]]())
