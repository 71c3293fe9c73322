"""Files of a caller that a build goes by, such as its Dockerfile, in our copy of his directory."""

import os
import stat

from sandkeep.system.openat2 import open_in_root


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
