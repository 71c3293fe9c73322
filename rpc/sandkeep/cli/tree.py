"""The whole tree of commands as data, for the manual page and the reference."""

import inspect
from collections.abc import Iterator
from typing import NamedTuple

import click


class Entry(NamedTuple):
    """A command: its words, one line, how it is used, paragraphs, its options with what they are for, examples."""

    path: str
    summary: str
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
    """What can be given before a command."""
    from sandkeep.cli.root import sandkeep

    return _options(sandkeep, click.Context(sandkeep, info_name="sandkeep"))


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
        summary=getattr(group, "table")[name][1],  # noqa: B009  # only our groups are in the tree
        usage=" ".join([context.command_path, *command.collect_usage_pieces(context)]),
        prose=[" ".join(part.split()) for part in inspect.cleandoc(command.help or "").split("\n\n")],
        options=_options(command, context),
        examples=list(getattr(command, "examples", ())),
    )


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    records = [p.get_help_record(context) for p in command.get_params(context) if isinstance(p, click.Option)]
    return [record for record in records if record is not None]
