"""``sandkeep-store``: the state directory looked after while no daemon runs."""

import argparse
import math
import os
import sys
from typing import TypeAlias

import msgspec

from sandkeep import settings
from sandkeep.errors import SandkeepError
from sandkeep.model import CompactReport, RebuildReport, VerifyReport
from sandkeep_store import offline
from sandkeep_store.log import UnknownEvent

Report: TypeAlias = VerifyReport | RebuildReport | CompactReport


def main() -> None:
    """Verify, rebuild or compact. Exits with 1 when something is wrong with what was verified, or it cannot be done."""
    parser = argparse.ArgumentParser(
        prog="sandkeep-store", description="Look after a state directory without a daemon."
    )
    parser.add_argument("action", choices=("verify", "rebuild", "compact"))
    parser.add_argument("--state-dir", metavar="DIR", help=f"the directory ({settings.STATE_DIR.name})")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--older-than", metavar="AGE", help=f"compact: what ended longer ago ({settings.RETAIN.name})")
    options = parser.parse_args()
    try:
        report = _act(options, os.path.abspath(options.state_dir or settings.STATE_DIR()))
    except SandkeepError as error:
        sys.exit(_complain(error.message))
    except UnknownEvent as unknown:
        sys.exit(_complain(str(unknown)))
    sys.stdout.write((msgspec.json.encode(report).decode() if options.json else _words(report)) + "\n")
    sys.exit(0 if not isinstance(report, VerifyReport) or report.ok else 1)


def _act(options: argparse.Namespace, state_dir: str) -> Report:
    if options.action == "verify":
        return offline.verify(state_dir)
    if options.action == "rebuild":
        return offline.rebuild(state_dir)
    age_s = settings.RETAIN({settings.RETAIN.name: options.older_than} if options.older_than else None)
    return offline.compact(state_dir, age_s if age_s is not None else math.inf)


def _complain(sentence: str) -> int:
    sys.stderr.write(f"sandkeep-store: {sentence}\n")
    return 1


def _words(report: Report) -> str:
    if isinstance(report, CompactReport):
        return (
            f"{report.events} events of {report.sandboxes} sandboxes and {report.images} images archived in "
            f"{len(report.segments)} segments; no gaps from position {report.first_position} on"
        )
    if isinstance(report, RebuildReport):
        return (
            f"{report.written} written, {report.unchanged} unchanged, {report.removed} removed, "
            f"at position {report.position}"
        )
    extent = f"{report.events} events, {report.first_position} to {report.last_position}"
    return f"sound: {extent}" if report.ok else "\n".join([f"not sound: {extent}", *report.problems])


if __name__ == "__main__":
    main()
