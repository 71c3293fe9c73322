"""Completion in bash, zsh and fish: what could follow on a command line, asked by scripts that lie in `completions`.

A shell hands over the line up to the cursor; the answer is a line for each word: a kind, a tab, the word and, where
the shell shows it, what it is. `word` is whole, `part` goes on without a blank, `file` and `directory` leave it to the
shell.

A completion is quick or it is nothing: one connection, `PATIENCE_S` at most, no word about errors. Names that come
from a sandbox are hostile: what a shell could not write on one line is left out, the rest is quoted as the word that it
is in.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, ShellComplete

from sandkeep import cli
from sandkeep.blocking import Client, connect
from sandkeep.cli.display.output import age, echo, plain
from sandkeep.cli.exit_codes import COMPLETE_VARIABLE
from sandkeep.cli.options import CLIENT_NAME, command
from sandkeep.cli.splitting import ShellWord, quoted, split
from sandkeep.cli.words import LOOKUPS
from sandkeep.errors import SandkeepError
from sandkeep.model import Conflict

PATIENCE_S: Final = 1.0
SCRIPTS: Final = {"bash": "sandkeep.bash", "zsh": "_sandkeep", "fish": "sandkeep.fish"}
_SIGNALS: Final = ("TERM", "INT", "KILL", "HUP", "QUIT", "USR1", "USR2", "STOP", "CONT", "WINCH", "ABRT", "ALRM")

Item = CompletionItem[str]


class _DeadlineError(Exception):
    """The daemon did not answer in time."""


def answer(shell: str, arguments: list[str]) -> int:
    """Print the completions of the line in the arguments. Prints nothing where it knows none."""
    from sandkeep.cli.root import sandkeep

    line, breaks = [*arguments, "", ""][:2]
    *words, last = split(line)
    try:
        incomplete = last.text
        completer = ShellComplete(sandkeep, {}, "sandkeep", COMPLETE_VARIABLE)
        found = completer.get_completions([word.text for word in words[1:]], incomplete)
    except Exception:  # noqa: BLE001  # a line that makes no sense has no completions
        return 0
    option = incomplete.partition("=")[0] + "=" if incomplete[:1] == "-" and "=" in incomplete else ""
    lines = [_line(shell, item, option, last, breaks) for item in found if plain(item.value) == item.value]
    sys.stdout.buffer.write("".join(f"{line}\n" for line in lines).encode(errors="replace"))
    return 0


def _line(shell: str, item: Item, option: str, last: ShellWord, breaks: str) -> str:
    """Format one completion for the script of `shell`; `option` is the prefix before it in the same word."""
    kind = "word" if item.type == "plain" else item.type
    value, about = option + item.value, plain(item.help or "")
    if shell == "bash":  # it replaces only the text after the last character that breaks words, or in the quote
        return f"{kind}\t{quoted(value[last.kept_prefix(breaks) :], last.quote)}"
    if shell == "zsh":
        value = value.replace("\\", "\\\\").replace(":", "\\:")
        return f"{kind}\t{value}:{about}" if about else f"{kind}\t{value}"
    return f"{kind}\t{value}\t{about}"


# -- lookups ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    """End a block after `PATIENCE_S`. A connection knows no deadline, and an alarm interrupts it."""

    def late(*_: object) -> None:
        raise _DeadlineError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _ask(ctx: click.Context, question: Callable[[Client], list[Item]]) -> list[Item]:
    """Return the daemon's answer; nothing if it fails, or is late."""
    socket = ctx.params.get("socket") or ctx.find_root().params.get("socket")
    try:
        with _deadline(), connect(socket, client=CLIENT_NAME) as client:
            return question(client)
    except (SandkeepError, _DeadlineError):
        return []


def _matching(incomplete: str, found: list[Item]) -> list[Item]:
    return [item for item in found if item.value.startswith(incomplete)]


def _lookup(question: Callable[[Client], list[Item]]) -> Callable[[click.Context, str], list[Item]]:
    """Return a lookup of the daemon's objects: of the answers to a question, those that begin as the word does."""
    return lambda ctx, incomplete: _matching(incomplete, _ask(ctx, question))


def _listed(
    ask: Callable[[Client], Iterable[Any]], word: str, about: Callable[[Any], str]
) -> Callable[[click.Context, str], list[Item]]:
    """Return a lookup of objects that the daemon lists: their field `word`, with something `about` each."""
    return _lookup(lambda client: [CompletionItem(getattr(found, word), help=about(found)) for found in ask(client)])


def _sandboxes(ctx: click.Context, incomplete: str, suffix: str = "", kind: str = "plain") -> list[Item]:
    def question(client: Client) -> list[Item]:
        return [
            CompletionItem(called + suffix, type=kind, help=f"{s.status}, {age(s.created_at)}")
            for s in client.sandbox.list().sandboxes
            for called in dict.fromkeys(filter(None, (s.sandbox_id, s.name)))
        ]

    return _lookup(question)(ctx, incomplete)


def _images(client: Client) -> list[Item]:
    return [
        CompletionItem(word, help=f"{i.source}, {age(i.created_at)}")
        for i in client.image.list().images
        for word in (*i.names, *([i.source] if i.kind == "reference" else []), i.image_id)
    ]


def _image_names(client: Client) -> list[Item]:
    return [
        CompletionItem(name, help=f"{i.image_id}, {age(i.created_at)}")
        for i in client.image.list().images
        for name in i.names
    ]


def _snapshots(client: Client) -> list[Item]:
    found = client.snapshot.list().snapshots
    return [CompletionItem(s.snapshot_id, help=f"{s.name or s.kind}, {age(s.created_at)}") for s in found]


def _merges(client: Client) -> list[Item]:
    found = client.branch.merges().merges
    return [CompletionItem(m.merge_id, help=f"{m.status}, {', '.join(m.branches)}") for m in found]


def _sandboxes_or(
    question: Callable[[Client], list[Item]],
) -> Callable[[click.Context, str], list[Item]]:
    """Return a lookup of sandboxes, and of other objects."""
    return lambda ctx, incomplete: _sandboxes(ctx, incomplete) + _lookup(question)(ctx, incomplete)


def _branch_sources(ctx: click.Context, incomplete: str) -> list[Item]:
    """A directory of the host, or what branches can begin with."""
    if "/" in incomplete or incomplete[:1] in (".", "~"):
        return [CompletionItem(incomplete, type="directory")]
    objects = _sandboxes_or(lambda client: _snapshots(client) + _images(client))
    return [item for item in _local_files(incomplete) if item.type == "part"] + objects(ctx, incomplete)


def _conflicts(ctx: click.Context) -> list[Conflict]:
    """The conflicts of the merge that was given before."""
    merge, found = ctx.params.get("merge") or "", list[Conflict]()

    def question(client: Client) -> list[Item]:
        found.extend(client.branch.conflicts(merge).conflicts)
        return []

    if merge:
        _ask(ctx, question)
    return [conflict for conflict in found if conflict.path_bytes is None]


def _conflict_paths(ctx: click.Context, incomplete: str) -> list[Item]:
    return _matching(incomplete, [CompletionItem(c.path, help=c.kind) for c in _conflicts(ctx)])


def _sides(ctx: click.Context, incomplete: str) -> list[Item]:
    """The versions of the path that was given before, or those of all conflicts."""
    path = ctx.params.get("path")
    found = [c.sides for c in _conflicts(ctx) if path in (None, c.path)]
    return _matching(incomplete, [CompletionItem(name) for name in dict.fromkeys(s.branch for f in found for s in f)])


def _decisions(ctx: click.Context, incomplete: str) -> list[Item]:
    """PATH= until the path is there, then PATH=BRANCH."""
    found = [c for c in _conflicts(ctx) if f"{c.path}=".startswith(incomplete) or incomplete.startswith(f"{c.path}=")]
    if len(found) == 1:
        [one] = found
        return _matching(incomplete, [CompletionItem(f"{one.path}={side.branch}") for side in one.sides])
    return [CompletionItem(f"{c.path}=", type="part", help=c.kind) for c in found]


def _conflict_files(ctx: click.Context, incomplete: str) -> list[Item]:
    """PATH= until the path is there, then PATH=FILE of the present directory."""
    path, equals, file = incomplete.rpartition("=")
    if equals:
        return [_prefixed(path + equals, item) for item in _local_files(file)]
    return _matching(incomplete, [CompletionItem(f"{c.path}=", type="part", help=c.kind) for c in _conflicts(ctx)])


def _processes(ctx: click.Context, incomplete: str, *, running: bool = False) -> list[Item]:
    """The processes of the sandbox that was given before, by their names."""
    sandbox = ctx.params.get("sandbox")
    if not sandbox:
        return []

    def question(client: Client) -> list[Item]:
        found = client.process.list(sandbox_id=sandbox, all=not running).processes
        newest = {p.name: p for p in found}
        return [CompletionItem(p.name, help=p.status) for p in newest.values() if p.named or incomplete[:1] == "p"]

    return _matching(incomplete, _ask(ctx, question))


def _sandbox_files(ctx: click.Context, sandbox: str, path: str, *, only_directories: bool = False) -> list[Item]:
    """The files of a sandbox whose paths begin so."""
    directory, _, name = path.rpartition("/")
    parent = directory + "/" if "/" in path else ""

    def question(client: Client) -> list[Item]:
        listed = client.call("sandbox.list_dir", {"sandbox_id": sandbox, "path": parent or "."})
        return [
            CompletionItem(f"{parent}{entry['name']}/", type="part")
            if entry["type"] == "directory"
            else CompletionItem(parent + entry["name"])
            for entry in listed["entries"]
            if entry.get("name_bytes") is None
            and entry["name"].startswith(name)
            and (entry["type"] == "directory" or not only_directories)
            and (name or not entry["name"].startswith("."))
        ]

    return _ask(ctx, question)


def _directories_inside(ctx: click.Context, incomplete: str) -> list[Item]:
    sandbox = ctx.params.get("sandbox")
    return _sandbox_files(ctx, sandbox, incomplete, only_directories=True) if sandbox else []


def _locations(ctx: click.Context, incomplete: str) -> list[Item]:
    """A path of the host, or SANDBOX:PATH."""
    sandbox, colon, path = incomplete.partition(":")
    if colon and "/" not in sandbox:
        return [_prefixed(f"{sandbox}:", item) for item in _sandbox_files(ctx, sandbox, path)]
    if "/" in incomplete or incomplete[:1] in (".", "~"):
        return [CompletionItem(incomplete, type="file")]
    return _sandboxes(ctx, incomplete, ":", "part") + _local_files(incomplete)


def _references(client: Client) -> list[Item]:
    """Return the references that images were made of, or are based on."""
    named = dict.fromkeys(i.source if i.kind == "reference" else i.base for i in client.image.list().images)
    return [CompletionItem(reference) for reference in named if reference]


def _sources(ctx: click.Context, incomplete: str) -> list[Item]:
    """A path of the host, or a reference."""
    if "/" in incomplete[:3] or incomplete[:1] in (".", "~"):
        return [CompletionItem(incomplete, type="file")]
    return _local_files(incomplete) + _lookup(_references)(ctx, incomplete)


def _prefixed(prefix: str, item: Item) -> Item:
    return CompletionItem(prefix + item.value, type=item.type, help=item.help)


def _local_files(incomplete: str) -> list[Item]:
    """The files of the present directory that begin so."""
    with contextlib.suppress(OSError), os.scandir() as entries:
        found = [(entry.name, entry.is_dir()) for entry in entries if entry.name.startswith(incomplete)]
        return [
            CompletionItem(f"{name}/", type="part") if is_directory else CompletionItem(name)
            for name, is_directory in sorted(found)
            if incomplete or not name.startswith(".")
        ]
    return []


def _event_types(_: click.Context, incomplete: str) -> list[Item]:
    from sandkeep.events import EVENTS

    nouns = dict.fromkeys(kind.partition(".")[0] for kind in EVENTS)
    return _matching(incomplete, [CompletionItem(kind) for kind in ([*EVENTS] if "." in incomplete else nouns)])


def _methods(_: click.Context, incomplete: str) -> list[Item]:
    from sandkeep.protocol.methods import METHODS

    return _matching(incomplete, [CompletionItem(row.name, help=row.summary) for row in METHODS.values()])


def _commands(ctx: click.Context, incomplete: str) -> list[Item]:
    """The commands of the group that the words before name."""
    root = ctx.find_root()
    group: click.Command | None = root.command
    for name in ctx.params.get("names") or ():
        group = group.get_command(root, name) if isinstance(group, click.Group) else None
    return group.shell_complete(root, incomplete) if isinstance(group, click.Group) else []


def _fixed(*words: str) -> Callable[[click.Context, str], list[Item]]:
    return lambda _, incomplete: _matching(incomplete, [CompletionItem(word) for word in words])


def _shell_completes(kind: str) -> Callable[[click.Context, str], list[Item]]:
    return lambda _, incomplete: [CompletionItem(incomplete, type=kind)]


LOOKUPS.update(
    {
        "sandbox": _sandboxes,
        "image": _lookup(_images),
        "name of an image": _lookup(_image_names),
        "image or reference": _lookup(lambda client: _images(client) + _references(client)),
        "sandbox, snapshot or image": _sandboxes_or(lambda client: _snapshots(client) + _images(client)),
        "branch source": _branch_sources,
        "branch, merge or commit": _sandboxes_or(_merges),
        "merge": _lookup(_merges),
        "path in conflict": _conflict_paths,
        "side of a conflict": _sides,
        "decision": _decisions,
        "file for a conflict": _conflict_files,
        "session": _listed(
            lambda client: client.session.list(all=True).sessions,
            "session_id",
            lambda s: f"{s.status}, {age(s.created_at)}",
        ),
        "snapshot": _lookup(_snapshots),
        "checkpoint": _listed(
            lambda client: client.checkpoint.list().checkpoints,
            "checkpoint_id",
            lambda c: f"{c.name or c.sandbox_id}, {age(c.created_at)}",
        ),
        "artifact": _listed(
            lambda client: client.artifact.list().artifacts,
            "artifact_id",
            lambda a: f"{a.name}, {age(a.created_at)}",
        ),
        "volume": _listed(lambda client: client.volume.list().volumes, "name", lambda volume: volume.owner),
        "image source": _sources,
        "reference": _lookup(_references),
        "lock": _listed(lambda client: client.lock.list().locks, "name", lambda lock: f"{lock.status}, {lock.where}"),
        "key": _listed(lambda client: client.key.list().keys, "name", lambda key: key.created_at),
        "process": _processes,
        "running process": lambda ctx, incomplete: _processes(ctx, incomplete, running=True),
        "location": _locations,
        "signal": _fixed(*_SIGNALS),
        "event type": _event_types,
        "provider": _listed(
            lambda client: client.daemon.capabilities().providers,
            "provider",
            lambda p: "works" if p.works else "does not work here",
        ),
        "method": _methods,
        "command": _commands,
        "variable": _fixed(*os.environ),
        "directory inside": _directories_inside,
        "directory": _shell_completes("directory"),
        "file": _shell_completes("file"),
    }
)


@command(
    examples=[
        "source <(sandkeep completion bash)      # in ~/.bashrc",
        "source <(sandkeep completion zsh)       # in ~/.zshrc, after compinit",
        "sandkeep completion fish > ~/.config/fish/completions/sandkeep.fish",
    ]
)
@click.argument("shell", type=click.Choice([*SCRIPTS]))
def completion(shell: str) -> None:
    """Print a shell completion script, for commands and names of objects.

    Packages install it by themselves, in share/bash-completion/completions, share/zsh/site-functions and
    share/fish/vendor_completions.d.
    """
    with open(os.path.join(os.path.dirname(cli.__file__), "completions", SCRIPTS[shell]), encoding="utf-8") as script:
        echo(script.read(), end="")
