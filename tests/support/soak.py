"""The depth of the soak: little enough that it can be run to its end; SANDKEEP_SOAK_TIMES=10 goes ten times as deep
wherever a test counts by `times`.
"""

import os


def times(count: int) -> int:
    """That many, or as many more as SANDKEEP_SOAK_TIMES says."""
    return max(1, int(count * float(os.environ.get("SANDKEEP_SOAK_TIMES", "1"))))
