"""Write the reference, or check that it is fresh: `python -m sandkeep_reference --write docs/reference`.

With ``--check`` nothing is written: the files that are stale are named, and it fails if there are any.
"""

import argparse
import sys

from sandkeep_reference.pages import stale, write


def main(arguments: list[str] | None = None) -> int:
    """Write or check; 1 when something is stale."""
    parser = argparse.ArgumentParser(prog="sandkeep_reference", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", metavar="DIR", help="write the reference there")
    action.add_argument("--check", metavar="DIR", help="fail when what is there is stale")
    given = parser.parse_args(arguments)
    if given.write is not None:
        write(given.write)
        return 0
    behind = stale(given.check)
    for path in behind:
        sys.stderr.write(f"{path} is stale: run `make docs`\n")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
