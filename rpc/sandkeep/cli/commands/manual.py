"""The manual page, generated from the tree of commands; and `help`, for users who type it before the command."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Final

import click

from sandkeep.cli.display.output import echo
from sandkeep.cli.exit_codes import EXIT_CODES
from sandkeep.cli.options import command
from sandkeep.cli.tree import Entry, common_options, entries, root_options
from sandkeep.cli.words import Word
from sandkeep.settings.all import ALL_SETTINGS
from sandkeep.version import VERSION


@command(examples=["sandkeep manual | man -l -", "sandkeep manual > ~/.local/share/man/man1/sandkeep.1"])
def manual() -> None:
    """Print the manual page, for `man -l -`."""
    echo(man_page(), end="")


@command("help", examples=["sandkeep help exec", "sandkeep help image create"])
@click.argument("names", nargs=-1, type=Word("command"), metavar="[COMMAND]...")
@click.pass_context
def help_(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command."""
    context = ctx.find_root()
    for name in names:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no subcommands", ctx)
        _, found, _ = group.resolve_command(context, [name])
        assert found is not None
        context = click.Context(found, info_name=name, parent=context)
    echo(context.get_help())


def man_page() -> str:
    """The page, in the macros of man(7)."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield '.\\" Written by `make docs`: do not edit.'
    yield f'.TH SANDKEEP 1 "{_REVISED}" "sandkeep {VERSION}" "User Commands"'
    yield from (".SH NAME", "sandkeep \\- keep sandboxes, in which agents and developers run code")
    yield from (".SH SYNOPSIS", ".B sandkeep", "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGS\\fR]...")
    yield from (".SH DESCRIPTION", *_filled(_DESCRIPTION))
    yield from (".SH OPTIONS", "Before a command:", *_definitions(root_options()))
    yield from (".PP", "Commands that call the daemon also take:", *_definitions(common_options()))
    yield ".SH COMMANDS"
    for subject, found in entries():
        yield f".SS {_text(subject)}"
        for index, entry in enumerate(found):
            yield from ([".PP"] if index else [])
            yield from _entry(entry)
    yield from (".SH EXIT STATUS", *_definitions((str(code), meaning) for code, meaning in EXIT_CODES.items()))
    yield ".SH ENVIRONMENT"
    yield from _definitions((s.name, f"{s.summary} Default: {s.shown_default}.") for s in ALL_SETTINGS.values())
    yield from _definitions([("NO_COLOR", "Disables colours when set; --color overrides it.")])
    yield from (".SH FILES", *_definitions(_FILES))
    yield from (".SH SEE ALSO", ".BR tmux (1),", ".BR bwrap (1)")


_REVISED: Final = "2026-11-21"  # of this version
_DESCRIPTION: Final = (
    "Ids and results go to stdout, everything else to stderr. With `--json` the result is one JSON document, or one a "
    "line while following. Progress, colours and shortened columns are for terminals only."
)
_FILES: Final = [
    ("/run/sandkeep/sandkeep.sock", "Socket of the system daemon; for a user's see SANDKEEP_SOCKET."),
    ("/var/lib/sandkeep", "State of the system daemon; for a user's see SANDKEEP_STATE_DIR."),
]


def _entry(entry: Entry) -> Iterator[str]:
    yield f"\\fB{_text(entry.path)}\\fR{_text(entry.usage.removeprefix(entry.path))}"
    yield ".RS 4"
    for index, paragraph in enumerate(entry.prose):
        yield from ([".PP"] if index else [])
        yield from _filled(paragraph)
    yield from _definitions(entry.options)
    if entry.examples:
        yield from (".PP", ".EX", *(_line(_text(example)) for example in entry.examples), ".EE")
    yield ".RE"


def _definitions(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for term, meaning in pairs:
        yield from (".TP", f"\\fB{_text(term)}\\fR", *_filled(meaning))


def _filled(text: str) -> list[str]:
    """Text in short lines, each sentence on lines of its own as roff likes it."""
    sentences = re.split(r"(?<=[.!?;:]) +", _text(text))
    return [_line(line) for sentence in sentences for line in textwrap.wrap(sentence, 78, break_on_hyphens=False)]


def _line(text: str) -> str:
    """One line. Beginning with a dot it would be a request."""
    return "\\&" + text if text.startswith(".") else text


def _text(text: str) -> str:
    """Escape text for roff; words in backquotes are bold."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"`([^`]+)`", r"\\fB\1\\fR", escaped.replace("~", "\\(ti").replace("^", "\\(ha"))
