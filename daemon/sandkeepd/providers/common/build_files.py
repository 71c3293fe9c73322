"""Files of a caller that a build goes by, such as its Dockerfile, in our copy of his directory."""

import os
import stat
from collections.abc import Sequence

from sandkeep.errors import CallerError
from sandkeep.system.openat2 import open_in_root
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.host.caller_paths import LeftOut, import_tree


async def import_context(
    request: ImageRequest, caller: Caller, target: str, *, hide: Sequence[str], most_bytes: int, progress: Progress
) -> ImportedImage:
    """Copy the directory that a build goes by, see `import_tree`. Raises `invalid` beyond `most_bytes`, too."""

    def check_size(size: int) -> None:
        request.check_size(size)
        if size > most_bytes:
            message = f"source: {request.source} has more than {most_bytes >> 30} GiB: choose a smaller directory"
            raise CallerError("invalid", message, field="source")

    return await import_tree(
        request.source, caller, target, owner=None, hide=hide, progress=progress, check_size=check_size,
        left_out=LeftOut.of(request),
    )  # fmt: skip


def read_below(top: str, path: str, most_bytes: int) -> bytes | None:
    """Return the content of a file below `top`, with one byte more than the maximum if there is more; None if there is
    none. A link leads nowhere outside `top`. Blocks.
    """
    directory = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        opened = open_in_root(directory, path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        return None
    with open(opened, "rb") as file:
        return file.read(most_bytes + 1)
