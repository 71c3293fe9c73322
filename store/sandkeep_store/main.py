"""``sandkeep-store``: the state directory looked after while no daemon runs."""

import argparse
import os
import sys

import msgspec

from sandkeep import settings
from sandkeep.errors import SandkeepError
from sandkeep.model import RebuildReport, VerifyReport
from sandkeep_store import offline
from sandkeep_store.log import UnknownEvent


def main() -> None:
    """Verify or rebuild. Exits with 1 when something is wrong with what was verified, or it cannot be done."""
    parser = argparse.ArgumentParser(
        prog="sandkeep-store", description="Look after a state directory without a daemon."
    )
    parser.add_argument("action", choices=("verify", "rebuild"))
    parser.add_argument("--state-dir", metavar="DIR", help=f"the directory ({settings.STATE_DIR.name})")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    act = offline.verify if options.action == "verify" else offline.rebuild
    try:
        report = act(os.path.abspath(options.state_dir or settings.STATE_DIR()))
    except SandkeepError as error:
        sys.exit(_complain(error.message))
    except UnknownEvent as unknown:
        sys.exit(_complain(str(unknown)))
    sys.stdout.write((msgspec.json.encode(report).decode() if options.json else _words(report)) + "\n")
    sys.exit(0 if not isinstance(report, VerifyReport) or report.ok else 1)


def _complain(sentence: str) -> int:
    sys.stderr.write(f"sandkeep-store: {sentence}\n")
    return 1


def _words(report: VerifyReport | RebuildReport) -> str:
    if isinstance(report, RebuildReport):
        return (
            f"{report.written} written, {report.unchanged} unchanged, {report.removed} removed, "
            f"at position {report.position}"
        )
    extent = f"{report.events} events, {report.first_position} to {report.last_position}"
    return f"sound: {extent}" if report.ok else "\n".join([f"not sound: {extent}", *report.problems])


if __name__ == "__main__":
    main()
