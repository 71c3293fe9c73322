"""Confirmation of commands that remove more than the user named."""

import sys

import click

from sandkeep.cli.display.output import note
from sandkeep.cli.exit_codes import REFUSED


def require_terminal(yes: bool) -> None:
    """Refuse a command without ``--yes`` that nobody can confirm, as standard input is no terminal."""
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask for confirmation on: add --yes")


def confirm(question: str) -> None:
    """Ask on the terminal; end the command with exit code 1 on any answer but yes, or none. Ctrl-C interrupts it."""
    note(f"{question} [y/N]: ", end="")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        note("sandkeep: nothing was done")
        raise click.exceptions.Exit(REFUSED)
