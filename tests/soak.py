"""How deep the soak goes: `make soak` is made to end within two hours on two processors, so that it is run to its end;
SANDKEEP_SOAK_TIMES=10 goes ten times as deep wherever a test counts by `times`.
"""

import os


def times(count: int) -> int:
    """That many, or as many more as SANDKEEP_SOAK_TIMES says."""
    return max(1, int(count * float(os.environ.get("SANDKEEP_SOAK_TIMES", "1"))))
