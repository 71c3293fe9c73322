"""The daemon's own log: one line an event on stderr, ``time level message key=value…``, for people and for tools
alike.
"""

import logging
import sys
from typing import Final

from sandkeep.protocol.clock import rfc3339
from sandkeep.protocol.printable import document, lines

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class Logfmt(logging.Formatter):
    """Formats a record and its extra fields; values that hold spaces or quotes are JSON strings."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback follows it, indented."""
        fields = [rfc3339(int(record.created * 1e6)), record.levelname.lower(), _value(record.getMessage())]
        fields += [f"{key}={_value(value)}" for key, value in vars(record).items() if key not in _STANDARD]
        line = " ".join(fields)
        if record.exc_info:
            line += "\n    " + lines(self.formatException(record.exc_info)).replace("\n", "\n    ")
        return line


def _value(value: object) -> str:
    text = str(value)
    plain = text.isprintable() and not any(character in text for character in ' "=\\')
    return text if plain and text else document(text).decode()


def set_up(level: str) -> None:
    """Send the log messages of `sandkeepd` and its parts to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Logfmt())
    logger = logging.getLogger("sandkeepd")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
