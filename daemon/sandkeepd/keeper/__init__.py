"""What runs inside a sandbox, and the daemon's side of it: requests in, answers and journals out."""

import os
from typing import Final

KEEPER_SOURCE: Final = os.path.join(os.path.dirname(__file__), "keeper.sh")
"""The script that is the first process of a sandbox."""
