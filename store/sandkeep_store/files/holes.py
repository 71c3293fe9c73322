"""Files with holes."""

import errno
import os
from collections.abc import Iterator


def data_of(opened: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the parts of a file, up to `size`, that are no holes. Sets its offset."""
    end = 0
    while end < size:
        try:
            begin = os.lseek(opened, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                return
            raise
        end = min(size, os.lseek(opened, begin, os.SEEK_HOLE))
        if end > begin:
            yield begin, end
