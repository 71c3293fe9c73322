"""Every setting, in the order of the reference, independent of the order of imports."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sandkeep import failpoints
from sandkeep.settings import astraforge, daemon, docker, gvisor, kubernetes, modal, storage
from sandkeep.settings.daemon import Setting

ALL_SETTINGS: Final[dict[str, Setting[Any]]] = {
    setting.name: setting
    for module in (daemon, docker, gvisor, kubernetes, modal, storage, astraforge)
    for setting in vars(module).values()
    if isinstance(setting, Setting)
}

OWN: Final = "SANDKEEP_"
"""Prefix of the variables that no other program has. The value of another is an error only where it is needed."""


def check(environ: Mapping[str, str]) -> None:
    """Parse Sandkeep's own settings. Raises `not_configured` for the first that is malformed."""
    for name, setting in ALL_SETTINGS.items():
        if name.startswith(OWN):
            setting(environ)


NO_SETTINGS: Final = (failpoints.SETTING, "SANDKEEP_TEST_PATIENCE", "SANDKEEP_SOURCES")
"""Variables for the tests of Sandkeep itself."""


def misspelt(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that begin like Sandkeep's own and are no settings, each with the nearest that is one."""
    own = [name.removeprefix(OWN) for name in ALL_SETTINGS if name.startswith(OWN)]
    for name in environ:
        if name.startswith(OWN) and name not in ALL_SETTINGS and name not in NO_SETTINGS:
            for near in difflib.get_close_matches(name.removeprefix(OWN), own, n=1):
                yield name, OWN + near
