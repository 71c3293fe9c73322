"""Compare this checkout with another, bench by bench in turns: `python -m benches.compare OTHER [NAME...]`.

OTHER is a checkout of an earlier commit with a `.venv` of its own. Each bench runs there, here, there, here, so that a
machine whose speed drifts treats both alike. A row is worse by the median of its pairs' ratios of absolute figures:
of times and sizes what is now to what was, of rates the other way round.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from benches.__main__ import names
from benches.table import Row, show

HERE = Path(__file__).parent.parent
PAIRS = 3
MOST = 1.1
EMIT = "import json, sys; from benches.__main__ import measure; print(json.dumps(measure(sys.argv[1])))"
NUMBER = re.compile(r"(?<![p\d])[\d,]+(?:\.\d+)?")

Measured = dict[str, tuple[float, str]]


def measure_in(checkout: Path, name: str) -> Measured:
    """The figures of one bench by case: the first number, and what is printed."""
    command = [str(checkout / ".venv/bin/python"), "-c", EMIT, name]
    done = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, text=True, check=True)
    rows = [Row(*row) for row in json.loads(done.stdout.splitlines()[-1])]
    found = {row.case: (NUMBER.search(row.figure), row.figure) for row in rows}
    return {case: (float(number[0].replace(",", "")), figure) for case, (number, figure) in found.items() if number}


def compare(name: str, other: Path) -> list[Row]:
    """One row for each case that both have."""
    pairs = [(measure_in(other, name), measure_in(HERE, name)) for _ in range(PAIRS)]
    cases = [case for case in pairs[0][1] if all(case in there and case in here for there, here in pairs)]
    return [_row(case, [(there[case], here[case]) for there, here in pairs]) for case in cases]


def _row(case: str, pairs: list[tuple[tuple[float, str], tuple[float, str]]]) -> Row:
    is_rate = "/s" in pairs[0][0][1]
    ratios = [(before / after if is_rate else after / before) for (before, _), (after, _) in pairs if before and after]
    worse = median(ratios) if ratios else 1.0
    (_, before), (_, after) = pairs[-1]
    return Row(case, after, before, worse, f"<= {MOST}", worse <= MOST)


def main(other: Path, wanted: list[str]) -> int:
    worst = True
    for name in wanted or names():
        rows = compare(name, other) if name != "compare" else []
        if rows:
            show(rows)
            sys.stdout.flush()
        worst = worst and all(row.ok for row in rows)
    return 0 if worst else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
