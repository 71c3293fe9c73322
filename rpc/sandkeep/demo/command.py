"""`sandkeep demo`."""

import click

from sandkeep.cli.options import command
from sandkeep.demo.main import run


@command(examples=["sandkeep demo", "sandkeep demo --fast --keep"])
@click.option("--keep", is_flag=True, help="Keep the state directory and say where it is.")
@click.option("--fast", is_flag=True, help="Without the pauses that are there for reading.")
def demo(keep: bool, fast: bool) -> int:
    """See Sandkeep do its job: its own daemon, a sandbox, processes, events, a restart, and nothing left behind.

    Exits with 1 when anything was not as it should be.
    """
    return run(keep=keep, fast=fast)
