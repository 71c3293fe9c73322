"""Root file systems for the pods of tests, which are unpacked once for each run."""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.support import rootfs

TOOLS: Final = "tools:latest"
"""The image that stands for a Debian."""

BUSYBOX: Final = "busybox:latest"
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
