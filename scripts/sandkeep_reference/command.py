"""The reference of the command, written from the tree of commands."""

from collections.abc import Iterable, Iterator

from sandkeep.cli.exit_codes import EXIT_CODES
from sandkeep.cli.tree import Entry, common_options, entries, root_options
from sandkeep_reference.layout import item, table, wrap


def cli_page() -> Iterator[str]:
    """Every command with its options and examples, and the exit codes."""
    yield from ("# The command", "")
    yield from wrap(
        "Ids and answers go to stdout, everything else to stderr. Progress and colours are for terminals: piped, "
        "there is neither, and nothing is cut."
    )
    yield from ("", "Before a command:", "", *_options(root_options()))
    yield from ("", "Commands that call the daemon also take:", "", *_options(common_options()))
    for subject, found in entries():
        yield from ("", f"## {subject}")
        for entry in found:
            yield from _entry(entry)
    yield from ("", "## Exit codes", "")
    yield from _records("code", ((str(code), meaning) for code, meaning in EXIT_CODES.items()))


def _entry(entry: Entry) -> Iterator[str]:
    yield from ("", f"### {entry.path}", "", f"`{entry.usage}`")
    for paragraph in entry.prose:
        yield from ("", *wrap(paragraph))
    if entry.options:
        yield from ("", *_options(entry.options))
    if entry.examples:
        yield from ("", "```sh", *entry.examples, "```")


def _options(records: Iterable[tuple[str, str]]) -> Iterator[str]:
    return _records("option", ((f"`{flags}`", meaning) for flags, meaning in records))


def _records(head: str, records: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a table, or a list if that would be too wide."""
    found = list(records)
    yield from table((head, "meaning"), found) or (line for name, text in found for line in item(f"{name}: {text}"))
