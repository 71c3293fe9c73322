"""``sandkeep-store``: the state directory looked after while no daemon runs."""

import argparse
import math
import os
import sys
from typing import TypeAlias

from sandkeep.errors import SandkeepError
from sandkeep.model import CompactReport, RebuildReport, RepairReport, VerifyReport
from sandkeep.protocol.printable import document, lines
from sandkeep.settings import daemon
from sandkeep_store.eventlog.log import UnknownEvent
from sandkeep_store.upkeep import offline

Report: TypeAlias = VerifyReport | RebuildReport | CompactReport | RepairReport


def main() -> None:
    """Run an action. Exits with 1 if verification finds a problem, or the action fails."""
    parser = argparse.ArgumentParser(
        prog="sandkeep-store", description="Look after a state directory without a daemon."
    )
    parser.add_argument("action", choices=("verify", "rebuild", "compact", "repair"))
    parser.add_argument("--state-dir", metavar="DIR", help=f"the directory ({daemon.STATE_DIR.name})")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--older-than", metavar="AGE", help=f"compact: what ended longer ago ({daemon.RETAIN.name})")
    parser.add_argument("--yes", action="store_true", help="repair: mend the log instead of only reporting the damage")
    options = parser.parse_args()
    try:
        report = _act(options, os.path.abspath(options.state_dir or daemon.STATE_DIR()))
    except SandkeepError as error:
        sys.exit(f"sandkeep-store: {lines(error.message)}")
    except UnknownEvent as unknown:
        sys.exit(f"sandkeep-store: {unknown}")
    sys.stdout.write((document(report).decode() if options.json else lines(_words(report))) + "\n")
    sys.exit(0 if _is_well(report) else 1)


def _is_well(report: Report) -> bool:
    if isinstance(report, RepairReport):
        return report.mended or not report.problems
    return not isinstance(report, VerifyReport) or report.ok


def _act(options: argparse.Namespace, state_dir: str) -> Report:
    if options.action == "verify":
        return offline.verify(state_dir)
    if options.action == "rebuild":
        return offline.rebuild(state_dir)
    if options.action == "repair":
        from sandkeep_store.upkeep.repair import repair

        return repair(state_dir, yes=options.yes)
    age_s = daemon.RETAIN({daemon.RETAIN.name: options.older_than} if options.older_than else None)
    return offline.compact(state_dir, age_s if age_s is not None else math.inf)


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
    if isinstance(report, RepairReport):
        return _repaired(report)
    extent = f"{report.events} events, {report.first_position} to {report.last_position}"
    return f"sound: {extent}" if report.ok else "\n".join([f"not sound: {extent}", *report.problems])


def _repaired(report: RepairReport) -> str:
    if not report.problems:
        return f"sound: {report.kept} events, nothing to repair"
    verdict = (
        f"mended: {report.kept} events kept, the damaged files are in {report.quarantine}"
        if report.mended
        else f"not mended: {report.kept} events would be kept; repeat it with --yes"
    )
    return "\n".join([*report.problems, verdict])


if __name__ == "__main__":
    main()
