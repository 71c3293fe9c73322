"""Sandboxes chosen by their properties: ``--label`` and ``--filter`` of `ls` and `rm`."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple, get_args

import click

from sandkeep.blocking import Client
from sandkeep.cli.options import Function, Pair, pairs_option
from sandkeep.clients.pages import every
from sandkeep.errors import SandkeepError
from sandkeep.ids import looks_like_id
from sandkeep.model import Sandbox, SandboxStatus

_Match = Callable[[Sandbox, str], bool]


def _has_label(sandbox: Sandbox, wanted: str) -> bool:
    key, equals, value = wanted.partition("=")
    return sandbox.spec.labels.get(key) == value if equals else key in sandbox.spec.labels


def _has_status(sandbox: Sandbox, wanted: str) -> bool:
    return sandbox.status == wanted


FILTERS: Final[dict[str, _Match]] = {
    "status": _has_status,
    "state": _has_status,
    "name": lambda sandbox, wanted: fnmatchcase(sandbox.name or "", wanted),
    "label": _has_label,
    "image": lambda sandbox, wanted: sandbox.image_id == wanted,
    "parent": lambda sandbox, wanted: wanted in (sandbox.forked_from, sandbox.restored_from),
    "provider": lambda sandbox, wanted: sandbox.provider == wanted,
    "owner": lambda sandbox, wanted: sandbox.owner == wanted,
}
"""Keys of ``--filter``. Values of one key are alternatives, but labels all match."""


_NAMED: Final = {"image": ("image",), "parent": ("sandbox", "snapshot", "checkpoint")}
"""Keys whose values are objects of these kinds, which may be given by their names."""


class Filter(Pair):
    """``KEY=VALUE`` with one of the keys of `FILTERS`."""

    def __init__(self) -> None:
        super().__init__(from_environment=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Refuse unknown keys and statuses, of which nothing would ever be found, and empty values."""
        if ctx is not None and ctx.command.name == "rm" and "=" not in value:
            self.fail(f"{value!r} is no KEY=VALUE: to force `rm`, leave out -f, as it asks nothing", param, ctx)
        key, wanted = super().convert(value, param, ctx)
        if key not in FILTERS:
            self.fail(f"{key!r} is no key: give one of {', '.join(FILTERS)}", param, ctx)
        if not wanted:  # else `rm` would end all without a name
            self.fail(f"{key}= is empty: maybe a variable is not set", param, ctx)
        if FILTERS[key] is _has_status and wanted not in get_args(SandboxStatus):
            self.fail(f"{wanted!r} is no status: give one of {', '.join(get_args(SandboxStatus))}", param, ctx)
        return key, wanted


class Selection(NamedTuple):
    """The sandboxes to list, or to terminate."""

    labels: dict[str, str]
    filters: tuple[tuple[str, str], ...]
    everything: bool = False

    def find(self, client: Client) -> list[Sandbox]:
        """Return the sandboxes that match. One that ended is among them only if a filter names its status.

        Raises `not_found` for an image or a parent that there is not.
        """
        ended = self.everything or any(FILTERS[key] is _has_status for key, _ in self.filters)
        found: list[Sandbox] = every(client.sandbox.list, all=ended, labels=self.labels)
        filters = [(key, _whole(client, _NAMED[key], value) if key in _NAMED else value) for key, value in self.filters]
        return [sandbox for sandbox in found if matches(sandbox, filters)]


def _whole(client: Client, kinds: Sequence[str], word: str) -> str:
    """Return the id of the object of one of the kinds that a word means. Raises `not_found`.

    An id stays as it is: also of what is not on record any more, there can be descendants.
    """
    if looks_like_id(word) and len(kinds) > 1:
        return word
    first, *others = kinds
    try:
        found: str = getattr(getattr(client, first).get(word), f"{first}_id")
    except SandkeepError as error:
        if error.code != "not_found" or not others:
            raise
        try:
            return _whole(client, others, word)
        except SandkeepError:
            raise error from None
    return found


def matches(sandbox: Sandbox, filters: Sequence[tuple[str, str]]) -> bool:
    """Tell if all that the filters ask for holds of a sandbox."""
    wanted: dict[_Match, list[bool]] = {}
    for key, value in filters:
        wanted.setdefault(FILTERS[key], []).append(FILTERS[key](sandbox, value))
    return all((all if match is _has_label else any)(results) for match, results in wanted.items())


def selection_options(function: Function) -> Function:
    """Give a command ``--label`` and ``--filter``."""
    labels = pairs_option("--label", "labels", text="Only sandboxes with this label (repeatable: with all of them).")
    filters = click.option(
        "--filter",
        "-f",
        "filters",
        type=Filter(),
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Only sandboxes that match. Keys: {', '.join(key for key in FILTERS if key != 'state')}.",
    )
    return labels(filters(function))
