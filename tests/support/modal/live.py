"""The real service instead of the double, for whoever has an account and sets ``SANDKEEP_LIVE_MODAL=1``."""

import os
import shutil
from pathlib import Path
from typing import Final

from sandkeepd.contract.images import ImageRequest

SWITCH: Final = "SANDKEEP_LIVE_MODAL"
BASE: Final = "SANDKEEP_LIVE_MODAL_BASE"
"""Lines of a Dockerfile that make an image like that of the other kinds, with tmux."""

_DEBIAN: Final = (
    "FROM debian:12-slim\nRUN apt-get update && apt-get install -y tmux procps && rm -rf /var/lib/apt/lists/*"
)


def is_wanted() -> bool:
    """Return True if tests are to run against the real service."""
    return os.environ.get(SWITCH) == "1"


def image_of(source: Path) -> ImageRequest:
    """Return the request for an image with the files of `source` in its workspace."""
    context = source.with_name("live")
    shutil.rmtree(context, ignore_errors=True)
    shutil.copytree(source, context / "source", symlinks=True)
    lines = os.environ.get(BASE, _DEBIAN)
    link = "RUN ln -s file /workspace/link"  # Modal copies what a link points to
    (context / "Dockerfile").write_text(f"{lines}\nCOPY source /workspace\nRUN rm -f /workspace/link\n{link}\n")
    return ImageRequest(kind="dockerfile", source=str(context), dockerfile="Dockerfile")
