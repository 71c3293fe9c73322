"""`python -m sandkeep.cli`: the command without its script."""

from sandkeep.cli import main

main()
