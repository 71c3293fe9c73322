"""Check of the daemon's settings at its start: many are read much later, when nobody watches any more."""

import logging
import os

from sandkeep.settings import all as settings

logger = logging.getLogger("sandkeepd")


def check_settings() -> None:
    """Raise `not_configured` for a malformed setting, and log a warning for a variable that is like one."""
    settings.check(os.environ)
    for name, near in settings.misspelt(os.environ):
        logger.warning("no such setting", extra={"name_given": name, "did_you_mean": near})
