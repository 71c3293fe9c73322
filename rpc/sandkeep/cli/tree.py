"""The whole tree of commands as data, for the manual page and the reference."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import click

COMMON: Final = ("--json", "--color", "--socket")
"""The options that every command takes which answers something."""


class Entry(NamedTuple):
    """A command: its words, how it is used, paragraphs, the options that are its own, examples."""

    path: str
    usage: str
    prose: list[str]
    options: list[tuple[str, str]]
    examples: list[str]


def entries() -> Iterator[tuple[str, list[Entry]]]:
    """Every command under its subject, in the order of the help."""
    from sandkeep.cli.root import sandkeep

    context = click.Context(sandkeep, info_name="sandkeep")
    for subject, names in sandkeep.by_subject():
        yield subject, [entry for name in names for entry in _entries(sandkeep, name, context)]


def root_options() -> list[tuple[str, str]]:
    """Return the options before a command."""
    from sandkeep.cli.root import sandkeep

    return _records(sandkeep.params, click.Context(sandkeep, info_name="sandkeep"))


def common_options() -> list[tuple[str, str]]:
    """Return the options of every command that answers."""
    from sandkeep.cli.commands.daemon import status

    return _records((p for p in status.params if p.opts[0] in COMMON), click.Context(status))


def _entries(group: click.Group, name: str, above: click.Context) -> Iterator[Entry]:
    command = group.get_command(above, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=above)
    if isinstance(command, click.Group):
        if name != "sandbox":  # the same commands under their noun
            for inner in command.list_commands(context):
                yield from _entries(command, inner, context)
        return
    yield Entry(
        path=context.command_path,
        usage=" ".join([context.command_path, *command.collect_usage_pieces(context)]),
        prose=[" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")],
        options=_records((p for p in command.params if p.opts[0] not in COMMON), context),
        examples=list(getattr(command, "examples", ())),
    )


def _records(parameters: Iterable[click.Parameter], context: click.Context) -> list[tuple[str, str]]:
    found = [parameter.get_help_record(context) for parameter in parameters if isinstance(parameter, click.Option)]
    return [record for record in found if record is not None]
