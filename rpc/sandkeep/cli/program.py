"""Commands that end in another program's command line: ``exec SANDBOX -- COMMAND...``."""

from typing import Any, Final

import click

from sandkeep.cli.advice import TYPED
from sandkeep.cli.options import Command

END: Final = "--"
_SANDBOX_AND_PROGRAM: Final = 2


class ProgramCommand(Command):
    """A command whose last argument is a program's argv, which stands behind ``--``.

    Behind the first ``--`` everything is the program's, and nothing of it fills an argument that is missing before: an
    empty variable in a script never runs another command line, or in another sandbox, than was meant.
    """

    def check_order(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse a line whose ``--`` stands at the wrong place. Without one, the last words are the program."""
        if END in args and not ctx.resilient_parsing:
            self._check(ctx, args[: args.index(END)])

    def advise(self, ctx: click.Context, option: str) -> str:
        """Return a sentence about the option, which without ``--`` may have been meant for the program."""
        advice = super().advise(ctx, option)
        return advice or (
            "" if END in ctx.meta[TYPED] else f"Options of the program go after `--`, as in: {self._form(ctx)}"
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Without ``--`` the last words are the program, unless more than a sandbox comes before
        it: `run web1 sleep 1` would start "1" as a process called "sleep".
        """
        needs_end = END not in args and len(self._arguments()) > _SANDBOX_AND_PROGRAM and not ctx.resilient_parsing
        try:
            left = super().parse_args(ctx, args)
        except click.MissingParameter:
            if not needs_end or not ctx.meta[TYPED]:
                raise
            needs_end = True
        if needs_end:
            without_name = "or, without a name for it: sandkeep exec SANDBOX -- COMMAND..."
            ctx.fail(f"put `--` before the command, as in: {self._form(ctx)}, {without_name}")
        return left

    def _arguments(self) -> list[click.Argument]:
        return [param for param in self.params if isinstance(param, click.Argument)]

    def _check(self, ctx: click.Context, before: list[str]) -> None:
        *named, program = self._arguments()
        parsed, _, _ = self.make_parser(ctx).parse_args(args=list(before))
        if not {*ctx.help_option_names}.isdisjoint(before):
            return
        missing = [_title(param) for param in named if not isinstance(parsed.get(param.name), str)]
        if missing:
            ctx.fail(f"{' and '.join(missing)} must stand before `--`, as in: {self._form(ctx)}")
        if words := _given(parsed, program):
            ctx.fail(f"{words[0]!r} stands before `--`, and is no part of the program then: use {self._form(ctx)}")

    def _form(self, ctx: click.Context) -> str:
        named = [_title(param) for param in self._arguments()[:-1]]
        return " ".join([ctx.command_path, *named, END, "COMMAND..."])


def _title(param: click.Parameter) -> str:
    return param.metavar if isinstance(param, click.Argument) and param.metavar else str(param.name)


def _given(parsed: dict[str, Any], param: click.Parameter) -> tuple[str, ...]:
    words = parsed.get(str(param.name))
    return words if isinstance(words, tuple) else ()
