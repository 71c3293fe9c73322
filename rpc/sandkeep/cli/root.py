"""The tree of commands. A command's module is imported when the command is used, so that none pays for the others."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import click

from sandkeep.cli.exit_codes import EXIT_CODES
from sandkeep.cli.words import FILE

_COMMANDS: Final = "sandkeep.cli.commands."

COMMANDS: Final = {
    "demo": ("sandkeep.demo.command:demo", "See Sandkeep do its job, in half a minute."),
    "daemon": ("daemon:daemon", "Run the daemon in the foreground."),
    "status": ("daemon:status", "How the daemon is and what it looks after."),
    "capabilities": ("daemon:capabilities", "What works on this machine, and why something does not."),
    "image": ("sandkeep.cli.root:image", "Make images of directories; list, show and remove them."),
    "create": ("sandboxes:create", "Make a sandbox from an image and start it."),
    "ls": ("sandboxes:ls", "List sandboxes."),
    "get": ("sandboxes:get", "Show a sandbox."),
    "suspend": ("sandboxes:suspend", "Have everything in sandboxes stand still."),
    "resume": ("sandboxes:resume", "Have sandboxes go on, or start lost ones anew on their files."),
    "rm": ("sandboxes:rm", "End sandboxes, with all that runs in them."),
    "fork": ("snapshots:fork", "Make sandboxes that begin with the files of one."),
    "restore": ("time_travel:restore", "Make a sandbox as another was at a moment."),
    "stats": ("stats:stats", "What running sandboxes use, as it changes."),
    "sandbox": ("sandkeep.cli.root:sandbox", "These commands under their noun: `sandbox ls` is `ls`."),
    "exec": ("exec:exec_", "Run a command in a sandbox to its end."),
    "run": ("exec:run", "Start a named process in a sandbox."),
    "shell": ("shell:shell", "Start a shell in a sandbox, on your terminal."),
    "attach": ("shell:attach", "Be at a process that runs."),
    "ps": ("processes:ps", "List processes."),
    "logs": ("processes:logs", "Show what a process wrote."),
    "kill": ("processes:kill", "Send a signal to a process and its group."),
    "wait": ("processes:wait", "Wait until a process has ended."),
    "cp": ("cp:cp", "Copy files and trees into sandboxes and out of them."),
    "snapshot": ("sandkeep.cli.root:snapshot", "Keep the files of sandboxes, restore them and move them."),
    "checkpoint": ("sandkeep.cli.root:checkpoint", "Keep sandboxes with all that runs in them, and bring them back."),
    "lock": ("sandkeep.cli.root:lock", "Take, keep and release the locks of sandboxes that daemons share."),
    "events": ("events:events", "What happened, in the order it was committed."),
    "history": ("events:history", "The life of one sandbox."),
    "store": ("sandkeep.cli.root:store", "Check the event log, and what is computed from it."),
    "rpc": ("daemon:rpc", "Call any method with JSON and print the raw result."),
    "completion": ("completion:completion", "Print what makes bash, zsh or fish complete all this."),
    "manual": ("manual:manual", "Print the manual page."),
    "help": ("manual:help_", "Show the help of a command."),
}

SUBJECTS: Final = {
    "Images": ("image",),
    "Sandboxes": ("create", "ls", "get", "suspend", "resume", "rm", "fork", "restore", "stats", "sandbox"),
    "Processes": ("exec", "run", "shell", "attach", "ps", "logs", "kill", "wait"),
    "Files": ("cp", "snapshot", "checkpoint"),
    "Shared with other daemons": ("lock",),
    "What happened": ("events", "history"),
    "The daemon": ("daemon", "status", "capabilities", "store", "rpc"),
}
"""Groups of commands in the help; commands in no group come last."""

IMAGE_COMMANDS: Final = {
    "create": ("images:create", "Make an image of a directory."),
    "ls": ("images:ls", "List images."),
    "get": ("images:get", "Show an image."),
    "rm": ("images:rm", "Remove images."),
}

SANDBOX_COMMANDS: Final = {
    name: COMMANDS[name]
    for name in ("create", "ls", "get", "suspend", "resume", "rm", "fork", "restore", "stats", "exec", "run", "history")
}

SNAPSHOT_COMMANDS: Final = {
    "create": ("snapshots:create", "Keep the files of a sandbox."),
    "ls": ("snapshots:ls", "List snapshots."),
    "get": ("snapshots:get", "Show a snapshot."),
    "rm": ("snapshots:rm", "Delete snapshots."),
    "restore": ("snapshots:restore", "Make a sandbox with the files of a snapshot."),
    "export": ("snapshots:export", "Write a snapshot to a file, as one whole archive."),
    "import": ("snapshots:import_", "Keep an archive from elsewhere as a snapshot."),
    "promote": ("snapshots:promote", "Make an image of a snapshot."),
    "gc": ("snapshots:gc", "Delete what retention lets go, and archives that nobody owns."),
}

CHECKPOINT_COMMANDS: Final = {
    "create": ("checkpoints:create", "Keep a sandbox with all that runs in it."),
    "ls": ("checkpoints:ls", "List checkpoints."),
    "get": ("checkpoints:get", "Show a checkpoint."),
    "rm": ("checkpoints:rm", "Delete checkpoints."),
    "restore": ("checkpoints:restore", "Make sandboxes of a checkpoint, in which all goes on that ran."),
}

LOCK_COMMANDS: Final = {
    "acquire": ("locks:acquire", "Take a lock."),
    "release": ("locks:release", "Give a lock back."),
    "get": ("locks:get", "Show a lock as this daemon has it."),
    "ls": ("locks:ls", "List the locks that this daemon holds."),
}

STORE_COMMANDS: Final = {
    "verify": ("store:verify", "Check the event log and every metadata.json."),
    "compact": ("store:compact", "Move the events of what ended long ago into the archive."),
    "redact": ("store:redact", "Take what a caller put into an event out of the log and the archive."),
    "repair": ("store:repair", "Mend a damaged event log while no daemon runs."),
    "rebuild": ("store:rebuild", "Write every metadata.json anew from the event log."),
}


OF_COMMANDS: Final = ("--json", "--color")
"""Options that every command has, and no group."""


class LazyGroup(click.Group):
    """A group that knows its commands by a table of name -> (``module:attribute``, one line)."""

    def __init__(self, *, table: dict[str, tuple[str, str]], **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]  # click's own settings, passed through
        self.table = table
        self.subjects: dict[str, tuple[str, ...]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return every command, in the table's order: the ones for newcomers first."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and answer the command."""
        if cmd_name not in self.table:
            return None
        module, attribute = self.table[cmd_name][0].split(":")
        command = getattr(import_module(module if "." in module else _COMMANDS + module), attribute)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the group's own options, or say where those belong that commands have."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in OF_COMMANDS:
                raise
            ctx.fail(
                f"{error.option_name} belongs behind the command, as in: {ctx.command_path} COMMAND {error.option_name}"
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was named, or say which there are like it."""
        if args and not args[0].startswith("-") and args[0] not in self.table:
            ctx.fail(f"There is no command {args[0]!r}.{_suggestion(args[0], self.table)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table alone, subject by subject."""
        width = max(map(len, self.table))
        for subject, names in self.by_subject():
            with formatter.section(subject):
                formatter.write_dl([(name.ljust(width), self.table[name][1]) for name in names])

    def by_subject(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the names of the commands, by subject."""
        rest = list(self.table)
        for subject, names in self.subjects.items():
            if known := [name for name in names if name in self.table]:
                yield subject, known
                rest = [name for name in rest if name not in known]
        if rest:
            yield "More" if self.subjects else "Commands", rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """The commands that begin so, from the table alone, or the group's own options."""
        from click.shell_completion import CompletionItem

        named = [CompletionItem(name, help=self.table[name][1]) for name in self.table if name.startswith(incomplete)]
        return named + click.Command.shell_complete(self, ctx, incomplete)


class Root(LazyGroup):
    """The command itself, whose help also tells the exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """End the help with them."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


def _suggestion(word: str, table: dict[str, tuple[str, str]]) -> str:
    import difflib

    near = difflib.get_close_matches(word, table, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from sandkeep import __version__

    click.echo(f"sandkeep {__version__}")
    ctx.exit()


HELP: Final = {"help_option_names": ["-h", "--help"]}

sandkeep = Root(
    name="sandkeep",
    table=COMMANDS,
    help="""Sandkeep keeps sandboxes: isolated places in which agents and developers run code.

    New here? `sandkeep demo` shows all of it. Ids and answers go to stdout, everything else to stderr.""",
    context_settings=HELP,
    params=[
        click.Option(["--socket"], type=FILE, metavar="PATH", help="The daemon's socket; also SANDKEEP_SOCKET."),
        click.Option(
            ["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
        ),
    ],
    # Options of the group are read where they are needed, from the root context.
    callback=lambda socket: None,  # noqa: ARG005
)
sandkeep.subjects = SUBJECTS


def _group(name: str, table: dict[str, tuple[str, str]], text: str) -> LazyGroup:
    return LazyGroup(name=name, table=table, help=text, context_settings=HELP)


image = _group("image", IMAGE_COMMANDS, "Images, from which sandboxes start.")
sandbox = _group("sandbox", SANDBOX_COMMANDS, "The commands on sandboxes, under their noun.")
snapshot = _group("snapshot", SNAPSHOT_COMMANDS, "The files of sandboxes, kept as archives.")
checkpoint = _group("checkpoint", CHECKPOINT_COMMANDS, "Sandboxes, kept with all that runs in them.")
lock = _group("lock", LOCK_COMMANDS, "Locks of sandboxes that several daemons share.")
store = _group("store", STORE_COMMANDS, "The event log and what is computed from it.")
