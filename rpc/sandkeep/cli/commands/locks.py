"""Locks of shared sandboxes: acquire, release, show, list."""

import contextlib
from typing import Any

import click

from sandkeep.cli.display.output import Column, age, cut_middle, echo, identifier, json_line, note, status, when
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Duration, Frontend, command, common, non_empty
from sandkeep.cli.words import LOCK
from sandkeep.errors import SandkeepError
from sandkeep.model import Lock


@command(
    examples=[
        "sandkeep lock acquire sandbox-1f2e",
        "LOCK=$(sandkeep lock acquire sandbox-1f2e --timeout 0)",
        "sandkeep lock acquire sandbox-1f2e --json | jq .fence",
    ]
)
@click.argument("name", metavar="NAME")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    metavar="TIME",
    help="Maximum time to wait for another owner; 0 to fail at once (default: 30s).",
)
@common()
def acquire(front: Frontend, name: str, timeout_s: float | None) -> None:
    """Acquire a lock and print its id.

    The daemon holds it until it is released. NAME is that of the shared sandbox. An interrupted wait acquires nothing.
    """
    with progress(f"waiting for {name}") as display, front.client() as client:
        lock = client.lock.acquire(name, progress=display, **non_empty(timeout_s=timeout_s))
    return json_line(lock) if front.as_json else echo(lock.lock_id)


@command(examples=["sandkeep lock release sandbox-1f2e", "sandkeep lock release $LOCK"])
@click.argument("name", type=LOCK, metavar="LOCK")
@click.option("--force", is_flag=True, help="Free it from any owner, and repair its document. For administrators.")
@common()
def release(front: Frontend, name: str, force: bool) -> None:
    """Release a lock and print its id. LOCK is its name, or the id of one acquisition.

    With `--force` its owner, on any machine, loses it, and later writes of that owner are refused: make sure first that
    the owner has gone. A warning says who that is.
    """
    with progress(f"releasing {name}") as display, front.client() as client:
        if force:
            _warn_of_owner(client, name)
        lock = client.lock.release(name, progress=display, **non_empty(force=force or None))
    return json_line(lock) if front.as_json else echo(lock.lock_id)


def _warn_of_owner(client: Any, name: str) -> None:
    with contextlib.suppress(SandkeepError):  # a damaged document, say, which is what the force is for
        lock = client.lock.get(name)
        owner = lock.held_by if not lock.lock_id else lock.owner_id if lock.status in ("held", "handing_over") else None
        if owner is not None:
            until = f", who has it until {when(lock.expires_at)}" if lock.expires_at else ", this daemon"
            note(f"warning: {owner}{until}, loses {name}, and what it has not saved")


@command(examples=["sandkeep lock get sandbox-1f2e"])
@click.argument("name", type=LOCK, metavar="LOCK")
@common()
def get(front: Frontend, name: str) -> None:
    """Show a lock. LOCK is its name, for its last acquisition by any daemon, or the id of an acquisition here."""
    front.show("lock.get", name, _describe)


def _describe(lock: Lock) -> list[tuple[str, object]]:
    return [
        ("lock", lock.lock_id or None),
        ("name", lock.name),
        ("status", lock.status),
        ("error", lock.error),
        ("fence", lock.fence),
        ("where", lock.where),
        ("owner", lock.owner),
        ("owner id", lock.owner_id),
        ("requested", when(lock.requested_at)),
        ("acquired", when(lock.acquired_at)),
        ("ended", when(lock.ended_at)),
        ("held by", lock.held_by),
        ("until", when(lock.expires_at)),
        ("sandbox", lock.sandbox_id),
        ("not handed over", lock.handover_error),
    ]


@command(examples=["sandkeep lock ls", "sandkeep lock ls --all"])
@click.option("--all", "-a", "everything", is_flag=True, help="Include acquisitions that ended or failed.")
@common()
def ls(front: Frontend, everything: bool) -> None:
    """List the locks that this daemon holds."""
    where = Column("WHERE", least=12, shorten=cut_middle)
    columns = ("NAME", status(), "AGE", Column("FENCE", spare=True), identifier("LOCK"), where)
    front.list("lock.list", columns, _row, all=everything)


def _row(lock: Lock) -> tuple[object, ...]:
    return lock.name, lock.status, age(lock.requested_at), lock.fence or "", lock.lock_id, lock.where
