"""The tree of commands. A command's module is imported when the command is used, so that none pays for the others."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import click

from sandkeep.cli.exit_codes import EXIT_CODES
from sandkeep.cli.habits import NO_PORTS
from sandkeep.cli.words import FILE

_COMMANDS: Final = "sandkeep.cli.commands."

COMMANDS: Final = {
    "demo": ("sandkeep.demo.command:demo", "Show Sandkeep at work, in half a minute."),
    "daemon": ("daemon_process:daemon", "Run the daemon, or stop it."),
    "status": ("daemon:status", "Show the daemon's status."),
    "capabilities": ("daemon:capabilities", "Show which features work on this machine, and why others do not."),
    "prune": ("prune:prune", "Remove the output of ended sandboxes, and unused images."),
    "quota": ("daemon:quota", "Show your quotas and their usage."),
    "image": ("sandkeep.cli.root:image", "Create, name, list, show and remove images."),
    "create": ("sandboxes:create", "Create and start a sandbox from an image."),
    "ls": ("sandboxes:ls", "List sandboxes."),
    "get": ("sandboxes:get", "Show a sandbox."),
    "update": ("sandboxes:update", "Change limits of a sandbox, while it runs."),
    "suspend": ("sandboxes:suspend", "Freeze sandboxes."),
    "resume": ("sandboxes:resume", "Resume frozen sandboxes, or restart lost ones from their files."),
    "rm": ("sandboxes:rm", "Terminate sandboxes, with all their processes."),
    "fork": ("snapshots:fork", "Create sandboxes with the files of another."),
    "restore": ("time_travel:restore", "Create a sandbox as another was at an earlier moment."),
    "diff": ("diff:diff", "Show which files a sandbox changed, or how it differs from another."),
    "branch": ("sandkeep.cli.root:branch", "Try several changes at once, merge them, and commit them to a directory."),
    "attach-shared": ("sandboxes:attach_shared", "Attach a sandbox that another daemon shares."),
    "detach": ("sandboxes:detach", "Save shared sandboxes, and let other daemons have them."),
    "session": ("sandkeep.cli.root:session", "Make sessions ready, list, keep and close them."),
    "stats": ("stats:stats", "Show live resource usage."),
    "sandbox": ("sandkeep.cli.root:sandbox", "The same commands under their noun: `sandbox ls` is `ls`."),
    "exec": ("exec:exec_", "Run a command in a sandbox and wait for it."),
    "run": ("exec:run", "Start a named process in a sandbox."),
    "shell": ("shell:shell", "Start a shell in a sandbox, on your terminal."),
    "attach": ("shell:attach", "Attach your terminal to a running process."),
    "ps": ("processes:ps", "List processes."),
    "logs": ("processes:logs", "Show the output of a process."),
    "kill": ("processes:kill", "Send a signal to a process and its group."),
    "wait": ("processes:wait", "Wait until a process exits."),
    "cp": ("cp:cp", "Copy files between this machine and sandboxes."),
    "snapshot": ("sandkeep.cli.root:snapshot", "Create, restore, export and import file snapshots."),
    "checkpoint": ("sandkeep.cli.root:checkpoint", "Checkpoint sandboxes with their processes, and restore them."),
    "artifact": ("sandkeep.cli.root:artifact", "Export files from sandboxes, to outlive them."),
    "volume": ("sandkeep.cli.root:volume", "Create, list and remove named volumes."),
    "lock": ("sandkeep.cli.root:lock", "Acquire and release the locks of shared sandboxes."),
    "key": ("sandkeep.cli.root:key", "Create, list and remove API keys of the HTTP gateway."),
    "events": ("events:events", "Show events, in commit order."),
    "history": ("events:history", "Show the events of one sandbox."),
    "store": ("sandkeep.cli.root:store", "Check, compact, redact and repair the event log."),
    "rpc": ("daemon:rpc", "Call an API method and print its raw result."),
    "completion": ("completion:completion", "Print a shell completion script."),
    "manual": ("manual:manual", "Print the manual page."),
    "help": ("manual:help_", "Show the help of a command."),
}

SUBJECTS: Final = {
    "Images": ("image",),
    "Sandboxes": ("create", "ls", "get", "update", "suspend", "resume", "rm", "fork", "restore", "stats", "sandbox"),
    "Branches": ("diff", "branch"),
    "Sessions": ("session",),
    "Processes": ("exec", "run", "shell", "attach", "ps", "logs", "kill", "wait"),
    "Files": ("cp", "snapshot", "checkpoint", "artifact", "volume"),
    "Shared sandboxes": ("attach-shared", "detach", "lock"),
    "Events": ("events", "history"),
    "Daemon": ("daemon", "status", "capabilities", "quota", "prune", "key", "store", "rpc"),
}
"""Groups of commands in the help; commands in no group come last."""

IMAGE_COMMANDS: Final = {
    "create": ("images:create", "Create an image from a directory, a Dockerfile or a reference."),
    "ls": ("images:ls", "List images."),
    "get": ("images:get", "Show an image."),
    "tag": ("images:tag", "Give an image a name."),
    "untag": ("images:untag", "Take a name from an image."),
    "publish": ("images:publish", "Let others use an image of the Docker engine."),
    "unpublish": ("images:unpublish", "Withdraw a published image."),
    "rm": ("images:rm", "Remove images."),
}

SANDBOX_COMMANDS: Final = {
    name: COMMANDS[name]
    for name in (
        "create",
        "ls",
        "get",
        "update",
        "suspend",
        "resume",
        "rm",
        "fork",
        "restore",
        "diff",
        "stats",
        "exec",
        "run",
        "history",
    )
}

BRANCH_COMMANDS: Final = {
    "create": ("branches:create", "Create branches of a directory, an image, a snapshot or a sandbox."),
    "ls": ("branches:ls", "Show sandboxes as a tree, below their origins."),
    "diff": ("diff:diff", "Show which files a branch changed, or how it differs from another."),
    "merge": ("merges:merge", "Merge branches into a new sandbox."),
    "merges": ("merges:merges", "List merges."),
    "conflicts": ("merges:conflicts", "Show the conflicts of a merge."),
    "show": ("merges:show", "Write one version of a file in conflict to stdout."),
    "resolve": ("merges:resolve", "Decide conflicts of a merge."),
    "abandon": ("merges:abandon", "Give up merges that have conflicts."),
    "commit": ("branch_commit:commit", "Apply the changes of a branch to a directory of this machine."),
    "blame": ("branch_commit:blame", "Show which branch each path came from."),
    "rm": ("branches:rm", "Terminate branches."),
}

SESSION_COMMANDS: Final = {
    "ensure": ("sessions:ensure", "Make a session ready: find it, create it, or bring it back."),
    "ls": ("sessions:ls", "List sessions."),
    "get": ("sessions:get", "Show a session."),
    "heartbeat": ("sessions:heartbeat", "Keep sessions from being idle."),
    "close": ("sessions:close", "End the sandboxes of sessions, after a snapshot."),
    "history": ("sessions:history", "Show the events of a session itself."),
    "export": ("sessions:export", "Write a file or directory of a session to a file."),
}

SNAPSHOT_COMMANDS: Final = {
    "create": ("snapshots:create", "Snapshot the files of a sandbox."),
    "ls": ("snapshots:ls", "List snapshots."),
    "get": ("snapshots:get", "Show a snapshot."),
    "rm": ("snapshots:rm", "Delete snapshots."),
    "restore": ("snapshots:restore", "Create a sandbox from a snapshot."),
    "export": ("snapshots:export", "Export a snapshot as a tar archive."),
    "import": ("snapshots:import_", "Import a tar archive as a snapshot."),
    "promote": ("snapshots:promote", "Create an image from a snapshot."),
    "gc": ("snapshots:gc", "Delete expired snapshots and orphaned archives."),
}

CHECKPOINT_COMMANDS: Final = {
    "create": ("checkpoints:create", "Checkpoint a sandbox with its processes."),
    "ls": ("checkpoints:ls", "List checkpoints."),
    "get": ("checkpoints:get", "Show a checkpoint."),
    "rm": ("checkpoints:rm", "Delete checkpoints."),
    "restore": ("checkpoints:restore", "Create sandboxes from a checkpoint, with its processes running."),
}

ARTIFACT_COMMANDS: Final = {
    "create": ("artifacts:create", "Export a file or directory of a sandbox."),
    "ls": ("artifacts:ls", "List artifacts."),
    "get": ("artifacts:get", "Show an artifact."),
    "cat": ("artifacts:cat", "Write an artifact's bytes to stdout."),
    "rm": ("artifacts:rm", "Remove artifacts."),
}

VOLUME_COMMANDS: Final = {
    "create": ("volumes:create", "Create a volume."),
    "ls": ("volumes:ls", "List volumes."),
    "rm": ("volumes:rm", "Remove volumes."),
}

LOCK_COMMANDS: Final = {
    "acquire": ("locks:acquire", "Acquire a lock."),
    "release": ("locks:release", "Release a lock."),
    "get": ("locks:get", "Show a lock."),
    "ls": ("locks:ls", "List the locks that this daemon holds."),
}

KEY_COMMANDS: Final = {
    "create": ("keys:create", "Create an API key."),
    "ls": ("keys:ls", "List API keys."),
    "rm": ("keys:rm", "Remove API keys."),
}

STORE_COMMANDS: Final = {
    "verify": ("store:verify", "Check the event log and every metadata.json."),
    "compact": ("store:compact", "Archive the events of objects that ended long ago."),
    "redact": ("store:redact", "Remove a caller's data in an event for good."),
    "repair": ("store:repair", "Repair a damaged event log while no daemon runs."),
    "rebuild": ("store:rebuild", "Rebuild every metadata.json from the event log."),
}


ANY: Final = "*"
"""Stands for all words that no command is like: an object, where its command was left out."""

HABITS: Final = {
    "sandkeep": {
        "build": "image create PATH",
        "pull": "image create REF",
        "images": "image ls",
        "rmi": "image rm IMAGE",
        "stop": "suspend SANDBOX` to freeze it, or `sandkeep rm SANDBOX",
        "start": "resume SANDBOX",
        "restart": "resume SANDBOX",
        "pause": "suspend SANDBOX",
        "unpause": "resume SANDBOX",
        "commit": "snapshot create SANDBOX",
        "tag": "image tag IMAGE NAME",
        "save": "snapshot export SNAPSHOT FILE",
        "load": "snapshot import FILE",
        "clone": "fork SANDBOX",
        "copy": "cp SRC DST",
        "log": "logs SANDBOX NAME",
        "top": "ps SANDBOX",
        "info": "status",
        "version": "--version",
        "ssh": "shell SANDBOX",
        "connect": "shell SANDBOX",
        "bash": "shell SANDBOX",
        "sh": "shell SANDBOX",
        "sandboxes": "ls",
        "container": "ls",
        "containers": "ls",
        "process": "ps",
        "processes": "ps",
        "snapshots": "snapshot ls",
        "volumes": "volume ls",
        "templates": "image ls",
        "template": "image create PATH",
        "spawn": "run SANDBOX NAME -- COMMAND",
        "launch": "run SANDBOX NAME -- COMMAND",
        "tail": "logs SANDBOX NAME --follow",
        "cat": "exec SANDBOX -- cat FILE",
        "read": "cp SANDBOX:PATH .",
        "download": "cp SANDBOX:PATH .",
        "write": "cp FILE SANDBOX:PATH",
        "put": "cp FILE SANDBOX:PATH",
        "upload": "cp FILE SANDBOX:PATH",
        "export": "snapshot export SNAPSHOT FILE",
        "import": "snapshot import FILE",
        "rollback": "snapshot restore SNAPSHOT --over SANDBOX",
        "reset": "snapshot restore SNAPSHOT --over SANDBOX",
        "undo": "snapshot restore SNAPSHOT --over SANDBOX",
        "server": "daemon",
        "serve": "daemon",
        "up": "daemon",
        "whoami": "status",
        "doctor": "capabilities",
        "system": "prune",
        "df": "quota",
        "du": "quota",
    },
    "image": {"build": "create PATH", "pull": "create REF", "prune": "rm IMAGE"},
    "snapshot": {ANY: "create SANDBOX"},
    "checkpoint": {ANY: "create SANDBOX"},
    "sandbox": {"stop": "suspend SANDBOX` to freeze it, or `sandkeep rm SANDBOX", "start": "resume SANDBOX"},
}
"""Commands as other tools call them, by group, and ours."""

WITHOUT_COMMAND: Final = {
    **dict.fromkeys(("login", "logout", "search", "push"), "Registries are Docker's: use `docker`."),
    **dict.fromkeys(("port", "ports", "port-forward", "expose"), NO_PORTS),
    "network": "Use `sandkeep create --network`.",
    "rename": "A sandbox keeps the name that `sandkeep create --name` or `fork --name` gave it.",
}  # fmt: skip
"""Sentences about commands that others have, and Sandkeep has not."""

HABITS_EVERYWHERE: Final = {
    "list": "ls", "inspect": "get", "show": "get", "describe": "get", "delete": "rm", "remove": "rm", "destroy": "rm",
    "terminate": "rm", "new": "create", "add": "create",
}  # fmt: skip
"""The same for all groups that have such a command."""

_LIKENESS: Final = 0.7
"""Least ratio of a word that is taken for a mistyped one: `psuh` is like `push`, and `login` is not like `logs`."""

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
                f"{error.option_name} goes after the command, as in: {ctx.command_path} COMMAND {error.option_name}"
            )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was named, or say which there are like it."""
        if args and not args[0].startswith("-") and args[0] not in self.table:
            ctx.fail(f"There is no command {args[0]!r}.{self._suggestion(args[0])}")
        return super().resolve_command(ctx, args)

    def _suggestion(self, word: str) -> str:
        """Name the command that does what `word` does elsewhere, or the nearest of ours."""
        import difflib

        habits, known = HABITS.get(self.name or "", {}), HABITS_EVERYWHERE.get(word)
        ours = habits.get(word) or (known if known in self.table else None)
        if ours is None and self.name == "sandkeep" and word in WITHOUT_COMMAND:
            return f" {WITHOUT_COMMAND[word]}"
        near = difflib.get_close_matches(word, self.table, n=1, cutoff=_LIKENESS)
        near = near or [name for name in self.table if len(word) > 1 and name.startswith(word)]
        if ours is None and near:
            return f" Did you mean {near[0]!r}?"
        ours = ours or habits.get(ANY)
        return f" Use `{' '.join(dict.fromkeys(['sandkeep', self.name or '']))} {ours}`." if ours else ""

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


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from sandkeep import __version__
    from sandkeep.cli.display.output import echo

    echo(f"sandkeep {__version__}")
    ctx.exit()


HELP: Final = {"help_option_names": ["-h", "--help"]}

sandkeep = Root(
    name="sandkeep",
    table=COMMANDS,
    help="""Sandkeep keeps sandboxes: isolated places in which agents and developers run code.

    New here? Try `sandkeep demo`. Ids and answers go to stdout, everything else to stderr.""",
    context_settings=HELP,
    params=[
        click.Option(["--socket"], type=FILE, metavar="PATH", help="The daemon's socket (default: SANDKEEP_SOCKET)."),
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


image = _group("image", IMAGE_COMMANDS, "Images: templates from which sandboxes start.")
sandbox = _group("sandbox", SANDBOX_COMMANDS, "The commands on sandboxes, under their noun.")
branch = _group(
    "branch",
    BRANCH_COMMANDS,
    "Branches: sandboxes with a common base, whose changes are compared, merged and committed.",
)
session = _group(
    "session", SESSION_COMMANDS, "Sessions: sandboxes that are ready, with their files, when they are used."
)
snapshot = _group("snapshot", SNAPSHOT_COMMANDS, "Snapshots: the files of sandboxes, stored as archives.")
checkpoint = _group("checkpoint", CHECKPOINT_COMMANDS, "Checkpoints: the memory, processes and files of sandboxes.")
artifact = _group("artifact", ARTIFACT_COMMANDS, "Artifacts: files exported from sandboxes, which outlive them.")
volume = _group("volume", VOLUME_COMMANDS, "Named volumes, which sandboxes share, and which outlive them.")
lock = _group("lock", LOCK_COMMANDS, "Locks of sandboxes that several daemons share.")
key = _group("key", KEY_COMMANDS, "API keys of the HTTP gateway.")
store = _group("store", STORE_COMMANDS, "The event log, and data computed from it.")
