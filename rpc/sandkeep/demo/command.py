"""`sandkeep demo`."""

import click

from sandkeep.cli.options import command
from sandkeep.demo.main import run


@command(examples=["sandkeep demo", "sandkeep demo --fast --keep"])
@click.option("--keep", is_flag=True, help="Keep the state directory and print its path.")
@click.option("--fast", is_flag=True, help="Skip the pauses for reading.")
def demo(keep: bool, fast: bool) -> int:
    """Show Sandkeep at work: its own daemon, a sandbox, processes, events, a restart, and a clean end.

    Exits with 1 when a check fails.
    """
    return run(keep=keep, fast=fast)
