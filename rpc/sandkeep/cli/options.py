"""Common parts of commands: examples in their help, the connection, `--json`, kinds of words, sizes and K=V."""

import contextlib
import functools
import math
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

import click

from sandkeep.blocking import Client
from sandkeep.cli.advice import TYPED, nearest, reworded
from sandkeep.cli.display import output
from sandkeep.cli.display.output import json_line, note, plain
from sandkeep.cli.display.progress import note_revival, progress
from sandkeep.cli.exit_codes import ReaderLeftError, UnwritableError
from sandkeep.cli.habits import option_advice
from sandkeep.cli.words import FILE, INSIDE, VARIABLE
from sandkeep.clients.dial import Daemon
from sandkeep.clients.pages import every
from sandkeep.clients.steps import dial, run
from sandkeep.clients.threads import wait
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Process, Volume
from sandkeep.settings.daemon import parse_size

Function = TypeVar("Function", bound=Callable[..., Any])
CLIENT_NAME: Final = "cli"
_POSITION_DIGITS: Final = 19


class Command(click.Command):
    """A command whose help ends with examples: whole command lines, shown as they are typed."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. For the completion of an option's value, click would give up all others otherwise."""
        ctx.meta[TYPED] = tuple(args)
        if ctx.resilient_parsing and args and any(self._takes_value(param, args[-1]) for param in self.params):
            args = args[:-1]
        try:
            self.check_order(ctx, args)
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if advice := self.advise(ctx, error.option_name):
                ctx.fail(f"No such option {error.option_name!r}. {advice}")
            raise

    def check_order(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse arguments of which some stand at the wrong place: nothing, for most commands."""

    def advise(self, ctx: click.Context, option: str) -> str:
        """Return a sentence about an option that there is not, or nothing."""
        return option_advice(self, option)

    def _takes_value(self, param: click.Parameter, word: str) -> bool:
        return isinstance(param, click.Option) and word in param.opts and not param.is_flag and not param.count

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """End the help with the examples."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples))


def command(name: str | None = None, *, examples: Sequence[str], **settings: Any) -> Callable[[Any], Command]:
    """Make a function a command, as `click.command` does, with examples: each a line of at most 76 characters."""
    return click.command(name, **{"cls": Command, "examples": examples, **settings})


class Refusal(click.ClickException):
    """An error from Sandkeep: a sentence on stderr, more lines of program output, and with `--json` a document."""

    def __init__(self, error: SandkeepError, exit_code: int = 1, as_json: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.exit_code = exit_code  # type: ignore[misc]  # one class, and the command decides its code
        self.as_json = as_json

    def show(self, file: Any = None) -> None:
        """Print it, without control characters that may have come from a sandbox."""
        if self.as_json:
            json_line({"error": {"code": self.error.code, "message": self.error.message, "data": self.error.data}})
        sentence, *more = self.error.message.split("\n")
        note(f"sandkeep: {plain(sentence)} [{self.error.code}]")
        for line in more:
            note(f"  {plain(line)}")


def _set_colour(_: click.Context, __: click.Parameter, when: str | None) -> None:
    if when is not None:
        output.colour = when


colour_option: Final = click.option(
    "--color",
    type=click.Choice(["auto", "always", "never"]),
    expose_value=False,
    callback=_set_colour,
    help="When to use colours (auto: on terminals, unless NO_COLOR is set).",
)


def _print_notice(message: str) -> None:
    note(f"sandkeep: {plain(message)}")


class Frontend:
    """The options common to all commands: the socket, and whether to print JSON."""

    def __init__(self, socket: str | None, as_json: bool, sandbox: str | None = None) -> None:
        self.socket = socket
        self.as_json = as_json
        self._sandbox = sandbox  # the argument SANDBOX as it was typed
        self._daemon: Daemon | None = None

    def client(self) -> Client:
        """Return a new connection to the daemon, which must be running for the first. The caller closes it."""
        if self._daemon is not None:
            return Client(self._daemon)
        daemon = Daemon(self.socket, CLIENT_NAME)
        daemon.on_wait = _print_notice
        daemon.on_progress = note_revival
        first = Client(daemon, run(wait, dial(daemon.path)))
        self._daemon = daemon
        return first

    @property
    def is_waiting(self) -> bool:
        """True while waiting for a daemon that has gone."""
        return self._daemon is not None and self._daemon.is_away

    def attach_line(self, process: Process) -> str:
        """Return the command line that attaches to a process, with the sandbox as it was typed."""
        sandbox = shlex.quote(self._sandbox or process.sandbox_id)
        return f"sandkeep attach {sandbox} {process.name or process.process_id}"

    def explain(self, error: SandkeepError, word: str = "") -> SandkeepError:
        """Return an error of the daemon in the words of the command line, with the nearest name for a missing one.

        `word` is the one of several arguments that it is about.
        """
        message = reworded(error, click.get_current_context(), word)
        with contextlib.suppress(SandkeepError, OSError):
            if error.code == "not_found" and self._daemon is not None:
                with self.client() as client:
                    message += nearest(error, client)
        return type(error)(error.code, message, **error.data)

    def show(self, method: str, name: str, describe: Callable[[Any], Iterable[tuple[str, object]]]) -> None:
        """Print the object of that name: its description, or with ``--json`` all of it."""
        with self.client() as client:
            found = attrgetter(method)(client)(name)
        json_line(found) if self.as_json else output.facts(describe(found))

    def list(
        self,
        method: str,
        columns: Sequence[str | output.Column],
        row: Callable[[Any], Sequence[object]],
        **query: Any,
    ) -> None:
        """Print a list of objects, a `row` for each; or with ``--json`` the objects."""
        with self.client() as client:
            found = every(attrgetter(method)(client), **query)
        json_line(found) if self.as_json else output.table(columns, map(row, found))

    def for_each(
        self,
        doing: str,
        method: str | Callable[..., Any],
        names: Iterable[str],
        id_field: str = "",
        **params: Any,
    ) -> None:
        """Call a method for each object named, and print their ids, which are in the answers' `id_field` (default: that
        of the noun), or with ``--json`` the answers. A function is called with the client before the name.

        A refusal is reported, and the rest have their turn all the same; the exit code is 1 then.
        """
        was_refused = False
        with self.client() as client:
            for name in names:
                try:
                    with progress(f"{doing} {name}") as display:
                        call = attrgetter(method)(client) if isinstance(method, str) else partial(method, client)
                        answer = call(name, progress=display, **params)
                except (CallerError, StateError) as error:
                    Refusal(self.explain(error, name), as_json=self.as_json).show()
                    was_refused = True
                    continue
                shown = id_field or f"{str(method).partition('.')[0]}_id"
                json_line(answer) if self.as_json else output.echo(getattr(answer, shown), flush=True)
        if was_refused:
            raise click.exceptions.Exit(1)


def common(failure_code: int = 1) -> Callable[[Function], Callable[..., Any]]:
    """Give a command `--json` and `--socket` as a `Frontend`; Sandkeep's errors become its exit code."""

    def decorate(function: Function) -> Callable[..., Any]:
        @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
        @colour_option
        @click.option("--socket", type=FILE, metavar="PATH", help="The daemon's socket (default: SANDKEEP_SOCKET).")
        @functools.wraps(function)
        def command(*args: Any, as_json: bool, socket: str | None, **options: Any) -> Any:
            root = click.get_current_context().find_root()
            frontend = Frontend(socket or root.params.get("socket"), as_json, options.get("sandbox"))
            try:
                return function(frontend, *args, **options)
            except SandkeepError as error:
                raise Refusal(frontend.explain(error), failure_code, as_json) from None
            except BrokenPipeError:
                raise ReaderLeftError from None
            except OSError as error:
                raise UnwritableError(error, failure_code) from None

        return command

    return decorate


class Mount(click.ParamType[Volume]):
    """A volume and its place: ``SOURCE:PLACE`` or ``SOURCE:PLACE:ro``. A source such as ``./x`` is a directory here."""

    name = "volume"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Volume:
        """Take it apart."""
        source, _, rest = str(value).partition(":")
        target, _, mode = rest.partition(":")
        if not source or not target.startswith("/") or mode not in ("", "ro", "rw"):
            self.fail(f"{value!r} is not SOURCE:/PLACE or SOURCE:/PLACE:ro", param, ctx)
        if source.startswith((".", "~")):
            source = os.path.abspath(os.path.expanduser(source))
        return Volume(source=source, target=target, read_only=mode == "ro")


class Time(click.ParamType[str]):
    """A time in RFC 3339, or how long ago it was, such as ``10m``."""

    name = "time"

    def __init__(self, instead: str = "") -> None:
        self._instead = instead  # what else the option takes, for the message

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the time as the daemon takes it."""
        from sandkeep.protocol.clock import now_us, parse_duration, parse_rfc3339, rfc3339

        if not value[:4].isdigit() or value[4:5] != "-":
            try:
                ago_s = math.nan if value[-1:].isdigit() else parse_duration(value)
                return rfc3339(now_us() - int(ago_s * 1e6))
            except (ValueError, OverflowError):
                forms = f"give a time ago such as 10m, or one such as 2026-11-22T09:00:00Z{self._instead}"
                self.fail(f"{value!r} is not a time: {forms}", param, ctx)
        try:
            parse_rfc3339(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}{self._instead}", param, ctx)
        return str(value)


class At(click.ParamType[dict[str, Any]]):
    """A moment, as the daemon takes it: a position, a token, or a time."""

    name = "moment"
    _TIME: Final = Time(", or a position from `sandkeep history`")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Tell which of them it is."""
        if isinstance(value, dict):
            return value
        if value.isascii() and value.isdigit() and len(value) < _POSITION_DIGITS:
            return {"position": int(value)}
        if value.startswith("log_") and ":" in value:
            return {"position": value}
        return {"time": self._TIME.convert(value, param, ctx)}


class Size(click.ParamType[int]):
    """A number of bytes: ``512M``, ``10G``, ``4096``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes from text."""
        try:
            return value if isinstance(value, int) else parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}", param, ctx)


class Duration(click.ParamType[float]):
    """A length of time, in seconds: ``90``, ``10s``, ``1h30m``. Outside of `least` to `most` it is refused."""

    name = "duration"

    def __init__(self, least: float = -math.inf, most: float = math.inf) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds from text."""
        from sandkeep.protocol.clock import parse_duration

        try:
            seconds = value if isinstance(value, float) else parse_duration(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)
        if not self._least <= seconds <= self._most:
            self.fail(f"{value!r} is not between {self._least:g} and {self._most:g} seconds", param, ctx)
        return seconds


class Pair(click.ParamType[tuple[str, str]]):
    """``K=V``. With `from_environment`, ``K`` alone takes its value from the caller's environment."""

    name = "pair"

    def __init__(self, *, from_environment: bool) -> None:
        self.from_environment = from_environment

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        """The names of the caller's own variables, where one can be given by its name."""
        return VARIABLE.shell_complete(ctx, param, incomplete) if self.from_environment else []

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """A name and its value. A secret's value is never repeated in a message."""
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not key:
            self.fail("give NAME=VALUE", param, ctx)
        if equals:
            return key, text
        if not self.from_environment:
            self.fail(f"{key!r} has no value: give {key}=VALUE", param, ctx)
        if key not in os.environ:
            self.fail(f"{key} is not set in the environment: set it, or give {key}=VALUE", param, ctx)
        return key, os.environ[key]


def pairs_option(*names: str, text: str, from_environment: bool = False) -> Callable[[Function], Function]:
    """Return an option that takes a `Pair`, several times, for a mapping."""
    return click.option(
        *names,
        type=Pair(from_environment=from_environment),
        multiple=True,
        callback=lambda _context, _param, pairs: dict(pairs),
        metavar="K[=V]" if from_environment else "K=V",
        help=text,
    )


# The names behind the options are those of the methods' parameters, so that commands pass them on as they are.
env_option = pairs_option(
    "--env",
    "-e",
    from_environment=True,
    text="Set an environment variable; K alone takes its value from this environment.",
)
secret_option = pairs_option(
    "--secret",
    "secrets",
    from_environment=True,
    text="Set a secret, which is stored nowhere. K alone is safer: others can see a command line.",
)


class _Aliased(click.Option):
    """An option that also goes by other names, which help does not show."""

    def __init__(self, *args: Any, also: Sequence[str], **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self._also = also

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        parser.add_option(obj=self, opts=[*self._also], dest=self.name, action="store", nargs=1)


def _cwd_option(text: str) -> Callable[[Function], Function]:
    also = ("--workdir", "-w")  # Docker's
    return click.option("--cwd", "working_dir", cls=_Aliased, also=also, type=INSIDE, metavar="DIR", help=text)


cwd_option = _cwd_option("Working directory in the sandbox; relative ones begin at the sandbox's own.")
timeout_option = click.option(
    "--timeout", "timeout_s", type=Duration(), metavar="TIME", help="Kill the command and its children after this time."
)
label_option = pairs_option("--label", "labels", text="Set a label.")
name_option = click.option("--name", metavar="NAME", help="A name, which need not be unique.")
image_name_option = click.option(
    "--name", metavar="NAME[:TAG]", help="Name for the image. If another image has it, it moves to this one."
)
named_option = click.option("--name", metavar="NAME", help="Only those of this name.")
labelled_option = pairs_option("--label", "labels", text="Only those with this label (repeatable: with all of them).")
bucket_option = click.option(
    "--bucket",
    "archive",
    flag_value="bucket",
    help="Store it where other machines can read it: on a mount or in a bucket.",
)


sandbox_name_option = click.option(
    # It was called --id once.
    "--name",
    cls=_Aliased,
    also=["--id"],
    metavar="NAME",
    help="Name of the new sandbox, unique among yours.",
)


_SANDBOX_OPTIONS: Final = (
    click.option("--cpus", type=float, metavar="N", help="CPU limit, in cores."),
    click.option(
        "--memory",
        "memory_bytes",
        type=Size(),
        metavar="SIZE",
        help="Memory limit, such as 512M, also of files in /tmp.",
    ),
    click.option("--pids", type=int, metavar="N", help="Maximum number of processes."),
    click.option(
        "--disk", "disk_bytes", type=Size(), metavar="SIZE", help="Exact disk limit, such as 2G (default: approximate)."
    ),
    click.option("--network", type=click.Choice(["none", "host", "bridge"]), help="Network mode (default: none)."),
    click.option(
        "--volume",
        "volumes",
        type=Mount(),
        multiple=True,
        metavar="SOURCE:PLACE[:ro]",
        help="Mount a named volume, or (administrators only) a host directory, at PLACE.",
    ),
    click.option("--user", metavar="UID[:GID]", help="User of its processes."),
    click.option("--read-only", is_flag=True, help="Mount its files read-only."),
    _cwd_option("Working directory of its processes."),
    click.option(
        "--idle-timeout",
        "idle_timeout_s",
        type=Duration(),
        metavar="TIME",
        help="Terminate it after this time without processes, such as 30m.",
    ),
    click.option("--max-lifetime", "max_lifetime_s", type=Duration(), metavar="TIME", help="Terminate it at this age."),
    env_option,
    secret_option,
    label_option,
)


def sandbox_options(function: Function) -> Function:
    """Give a command the options for the properties of a new sandbox."""
    for option in reversed(_SANDBOX_OPTIONS):
        function = option(function)
    return function


def absolute_path(word: str, hint: str) -> str:
    """Return the whole path that a word means here; `hint` is what the argument is called."""
    try:
        return os.path.abspath(os.path.expanduser(word))
    except FileNotFoundError:
        message = "the working directory was removed: give an absolute path"
        raise click.BadParameter(message, param_hint=hint) from None


def non_empty(**values: Any) -> dict[str, Any]:
    """The parameters that have a value; the rest is left to the daemon's defaults."""
    return {name: value for name, value in values.items() if value not in (None, {}, ())}


ignore_option = click.option(
    "--ignore",
    multiple=True,
    metavar="PATTERN",
    help="Leave out files of this name, or of this pattern of .dockerignore (repeatable).",
)


def names_and_patterns(ignore: Sequence[str]) -> tuple[list[str], list[str]]:
    """Divide what `ignore_option` was given into names, which are left out at any depth, and patterns."""
    names = [word for word in ignore if not set(word) & set("/*?[!\\")]
    return names, [word for word in ignore if word not in names]
