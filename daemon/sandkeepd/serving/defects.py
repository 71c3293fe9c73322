"""Handling of unexpected exceptions: a report in the log, and `internal` for the caller."""

import logging
import os
import traceback
from collections.abc import Iterator
from typing import Final

from sandkeep.errors import DaemonError, SandkeepError
from sandkeep.protocol.methods import Params
from sandkeep.system import extras

log: Final = logging.getLogger(__name__)


def first_of(error: Exception, *kinds: type[Exception]) -> Exception | None:
    """Return the exception of the first of the `kinds` that is in an error, or in the groups that nurseries made of it;
    None if there is none.
    """
    leaves = list(_leaves(error))
    return next((leaf for kind in kinds for leaf in leaves if isinstance(leaf, kind)), None)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def report(error: Exception, method: str, params: Params | None) -> SandkeepError:
    """Log a defect without secrets, and return the caller's error; both carry the same incident number.

    A package that is not installed is no defect.
    """
    if isinstance(error, ModuleNotFoundError) and (incomplete := extras.incomplete_by(error)):
        return incomplete
    incident = os.urandom(4).hex()
    text = "".join(traceback.format_exception(error))
    for secret in _secrets(params):
        text = text.replace(secret, "…")
    log.error("defect %s in %s\n%s", incident, method, text)
    return DaemonError(
        "internal",
        f"{method} failed by a defect of the daemon: its log has the details under {incident}",
        incident=incident,
    )


def _secrets(params: Params | None) -> list[str]:
    """Return the values to hide, longest first so that no part of one is left."""
    values = [*getattr(params, "secrets", {}).values(), *(getattr(params, "env", None) or {}).values()]
    return sorted((value for value in values if value), key=len, reverse=True)
