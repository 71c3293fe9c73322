"""How long tests wait before they fail: generously, and as many times longer as `SANDKEEP_TEST_PATIENCE` says.

Only a test that fails takes so long. `tests/contracts/test_patience.py` sees that no deadline is a bare number.
"""

import os
from typing import Final

_FACTOR: Final = float(os.environ.get("SANDKEEP_TEST_PATIENCE") or 1)


def patient(seconds: float) -> float:
    """Return the deadline for what takes less than `seconds` on a machine that has not much else to do."""
    return seconds * _FACTOR
