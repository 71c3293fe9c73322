"""Errors in the words of the command line: parameters as the options that were typed, and names that are like one."""

import re
import shlex
from collections.abc import Iterable
from typing import Any, Final

import click

from sandkeep.blocking import Client
from sandkeep.cli.display.output import size
from sandkeep.clients.pages import every
from sandkeep.errors import SandkeepError

TYPED: Final = "sandkeep.typed"
"""Key of the context's `meta` for the arguments as they were typed."""

_MOST_SHOWN: Final = 40
_DAY_S: Final = 86_400
_BOUND: Final = re.compile(
    r"must be an? (?:integer|number)(?: or null)?, (at least|at most|more than|less than) (-?[\d.e+]+)"
)
_PARAMETER: Final = re.compile(r"(?<!['\"])\b[a-z]+(?:_[a-z]+)+\b")
_FIELDS: Final = {
    "at": ("position", "time"),
    "branch": ("sandbox_id",),
    "branches": ("sandbox_ids",),
    "directory": ("target",),
    "ignore": ("patterns",),
    "kind": ("type",),
    "name": ("names", "gcs_sandbox_id"),
    "older_than": ("older_than_s",),
    "other": ("base",),
    "origin": ("sandbox_id", "merge_id", "commit_id"),
    "over": ("sandbox_id",),
    "session_id": ("id",),
    "signal_name": ("signal",),
    "token": ("sandbox_token",),
}
"""Parameters of methods, by the arguments and options that give them where these are called otherwise."""

_FIELD: Final = re.compile(r"(\w+)(?:\[\d+\])?(?:\.(\w+))?")
"""A parameter, and a part of it such as the source of ``volumes[0].source``."""


def reworded(error: SandkeepError, context: click.Context, word: str) -> str:
    """Return the error's message, with the name of a parameter replaced by the option and the text that were typed.
    `word` is the one of several arguments that the error is about.
    """
    sentence, *more = error.message.split("\n", 1)
    message = "\n".join([_with_options(sentence, context.command), *more])
    named, colon, rest = message.partition(": ")
    found = _FIELD.fullmatch(named)
    field, part = found.groups() if found else (named, None)
    param = next((p for p in context.command.params if colon and _is_called(p, field, word)), None)
    is_of_param = error.code in ("invalid", "permission_denied") or error.data.get("field") == field
    if param is None or not is_of_param:
        return message
    text = word if param.nargs == -1 else _typed(context, param)
    is_shown = text.isprintable() and 0 < len(text) <= _MOST_SHOWN and repr(text) not in rest
    shown = f" {shlex.quote(text)}" if is_shown else ""
    problem = _BOUND.sub(lambda found: _bound(found, param), rest)
    return f"{_title(param)}{shown}: {f'{part} ' if part else ''}{problem}"


def _with_options(sentence: str, command: click.Command) -> str:
    """Replace parameters that a sentence advises to give or to leave out by their options."""
    given, colon, advice = sentence.rpartition(": ")
    titles = {param.name: _title(param) for param in command.params if isinstance(param, click.Option)}
    return given + colon + _PARAMETER.sub(lambda found: titles.get(found[0], found[0]), advice)


def _is_called(param: click.Parameter, field: str, word: str) -> bool:
    is_one_of_them = bool(word) and param.nargs == -1 and field.endswith("_id")
    return is_one_of_them or field in (param.name, f"{param.name}_id", *_FIELDS.get(param.name or "", ()))


def _title(param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return (param.metavar or str(param.name)).partition("[:")[0].strip("[].- ")
    return max(param.opts, key=len)


def _typed(context: click.Context, param: click.Parameter) -> str:
    """The text that was given for a parameter; none if it was given several times, or may be a secret."""
    try:
        values, _, _ = context.command.make_parser(context).parse_args(args=[*context.meta.get(TYPED, ())])
    except click.UsageError:
        return ""
    value = values.get(param.name)
    if isinstance(value, (list, tuple)) and len(value) == 1:
        (value,) = value
    return value if isinstance(value, str) and param.name not in ("env", "secrets", "token") else ""


def _bound(found: re.Match[str], param: click.Parameter) -> str:
    bound = found[2]
    if param.type.name == "size" and bound.isdigit():
        bound = size(int(bound))
    elif param.type.name == "duration":
        seconds = float(bound)
        bound = f"{seconds:g} seconds" if seconds < _DAY_S else f"{seconds / _DAY_S:g} days"
    return f"must be {found[1]} {bound}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the known words, or nothing if none is like it, or it is one."""
    import difflib

    near = difflib.get_close_matches(word, [*known], n=1)
    return f": did you mean {near[0]!r}?" if near and near[0] != word else ""


def nearest(error: SandkeepError, client: Client) -> str:
    """Return such a question about a sandbox, image, snapshot or process that there is not."""
    data: dict[str, Any] = error.data
    if error.code != "not_found":
        return ""
    if "name" in data and "sandbox_id" in data:
        found = every(client.process.list, sandbox_id=data["sandbox_id"], all=True)
        return suggestion(data["name"], (process.name for process in found))
    for field, listed in _LISTS.items():
        if field in data:
            if kind := _kind_of(data[field], field):
                return f": it is the id of {kind}"
            objects = every(getattr(client, listed).list)
            return suggestion(data[field], (name for found in objects for name in _names(found, field)))
    return ""


def _kind_of(word: str, field: str) -> str:
    """Return the kind of object whose id a word is, if it is not the one that `field` is for."""
    known, kind = _KINDS.get(word.partition("_")[0] if "_" in word else "", ("", ""))
    return kind if known != field else ""


_KINDS: Final = {
    "sbx": ("sandbox_id", "a sandbox"), "img": ("image_id", "an image"), "snp": ("snapshot_id", "a snapshot"),
    "ckp": ("checkpoint_id", "a checkpoint"), "prc": ("process_id", "a process"), "ses": ("session_id", "a session"),
    "art": ("artifact_id", "an artifact"), "mrg": ("merge_id", "a merge"), "cmt": ("commit_id", "a commit"),
}  # fmt: skip
_LISTS: Final = {"sandbox_id": "sandbox", "image_id": "image", "snapshot_id": "snapshot"}


def _names(found: Any, field: str) -> list[str]:
    """Return the words by which an object is called: its id, its name or names, an image's reference."""
    reference = found.source if getattr(found, "kind", "") == "reference" else None
    named = [getattr(found, "name", None), reference, *getattr(found, "names", ())]
    return [getattr(found, field), *filter(None, named)]
