"""Repositories of the sources, whose programs run unmodified against Sandkeep. None is part of this one: each is looked
for in the directory that the variable SANDKEEP_SOURCES names.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

SETTING: Final = "SANDKEEP_SOURCES"

REPOSITORIES: Final = {
    "cloud-run-sandbox": "https://github.com/wlhee/cloud-run-sandbox",
    "agent-sandbox": "https://github.com/kubernetes-sigs/agent-sandbox",
    "AstraForge": "https://github.com/jeremyjouvancedev/AstraForge",
    "GCRI": "https://github.com/Dirac-Robot/GCRI",
    "storage-testbench": "https://github.com/googleapis/storage-testbench",
    "modal-client": "https://github.com/modal-labs/modal-client",
}
"""Where to get each, by the name of its directory."""


def repository(name: str) -> Path:
    """Return the checkout of a repository, which may not be there."""
    return Path(os.environ.get(SETTING, "/nonexistent")) / name


def python_of(name: str) -> Path:
    """Return the interpreter with the packages that a repository's programs need: that of its own `.venv`."""
    own = repository(name) / ".venv/bin/python"
    return own if own.exists() else Path(sys.executable)


def why_absent(name: str) -> str | None:
    """Return how to get a repository that is not there; None if it is."""
    if repository(name).is_dir():
        return None
    return f"${SETTING}/{name} is not there: set {SETTING} to a directory and git clone {REPOSITORIES[name]} into it"


ENGINES: Final[dict[str, Callable[[], str | None]]] = {
    f"source:{name}": partial(why_absent, name) for name in REPOSITORIES
}
"""For the mark `needs`: a test of upstream's programs needs "source:NAME"."""
