"""`make bench`: run every bench here that has a `run()`, and write their table to benches/README.md.

`python -m benches NAME...` runs only those, and writes nothing.
"""

import datetime as dt
import importlib
import os
import platform
import sys
import traceback
from pathlib import Path

from benches.table import Row, lines, show

HERE = Path(__file__).parent

HEADER = """\
# How fast it is

Written by `make bench`. Each figure stands beside its floor, measured in the same run and in turns
with it: the ratio is what is promised, since absolute figures are those of the machine and of its
other work at that moment.

Floors run under the daemon's own conditions: they, the clients and the daemon have `nice` -10, in a
session that has -10 too (`/proc/self/autogroup`), as root's daemon gives itself. Ordinary, with 0,
are Docker's engine, the crowd of the overload, and what the daemon starts in sandboxes. A session
that a floor makes itself while it is measured, as tmux and `runsc` do, has 0, and its programs -10.

{begun} to {ended} UTC, all in one run, load {load:.1f} before it,
{machine}

"""


def machine() -> str:
    """The machine in a few words."""
    cpus = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{cpus} processors, {memory:.0f} GiB, Linux {kernel}, Python {platform.python_version()}"


def now() -> str:
    return f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M}"


def names() -> list[str]:
    """Every bench, by the name of its file."""
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("__init__", "__main__", "table"))


def measure(name: str) -> list[Row]:
    """Run one bench; a file without `run()` is a helper. One that fails is a row too, and the others go on, as if it
    had not been: what it has put into the environment is gone.
    """
    print(f"{name} ...", file=sys.stderr, flush=True)
    environment = dict(os.environ)
    try:
        module = importlib.import_module(f"benches.{name}")
        return list(module.run()) if hasattr(module, "run") else []
    except Exception:
        traceback.print_exc()
        return [Row(f"{name}: failed", "-", "-", "-", "-", False)]
    finally:
        os.environ.clear()
        os.environ.update(environment)


def document(head: str, rows: list[Row]) -> str:
    """The page that is kept: what was measured, and when."""
    return head + "```text\n" + "".join(f"{line}\n" for line in lines(rows)) + "```\n"


def main(wanted: list[str]) -> int:
    begun, load = now(), os.getloadavg()[0]
    rows = [row for name in (wanted or names()) for row in measure(name)]
    show(rows)
    if not wanted:
        head = HEADER.format(begun=begun, ended=now(), machine=machine(), load=load)
        (HERE / "README.md").write_text(document(head, rows))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.path.append(str(HERE))  # benches that are also scripts find their table beside them
    sys.exit(main(sys.argv[1:]))
