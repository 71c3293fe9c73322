"""`prune`: remove the output of ended sandboxes, and images that nothing needs."""

from typing import Any

import click

from sandkeep.cli.confirmation import confirm, require_terminal
from sandkeep.cli.display.output import echo, json_line, note, plain, size
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import Duration, Frontend, command, common, non_empty
from sandkeep.model import PruneReport

YEAR_S = 31_536_000.0


@command(examples=["sandkeep prune --dry-run", "sandkeep prune --all --yes", "sandkeep prune --filter until=24h"])
@click.option("--all", "-a", "everything", is_flag=True, help="Remove unused images that have names, too.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@click.option("--filter", "filters", multiple=True, metavar="until=AGE", help="Only remove what is older, such as 24h.")
@click.option("--yes", "-y", "--force", "-f", is_flag=True, help="Do not ask for confirmation.")
@common()
def prune(front: Frontend, everything: bool, dry_run: bool, filters: tuple[str, ...], yes: bool) -> int:
    """Remove the output of ended sandboxes, and images that nothing needs, and print their ids.

    An image stays as long as a sandbox, snapshot, checkpoint, merge or session needs it. The events of the ended
    sandboxes stay: `store compact` archives those. An administrator prunes everybody's objects. It asks for
    confirmation; without a terminal it needs --yes.
    """
    require_terminal(yes or dry_run)
    options = non_empty(all=everything or None, older_than_s=_age_s(filters))
    with front.client() as client:
        if not dry_run and not yes:
            preview = _run(client, options, dry_run=True)
            if preview.sandboxes or preview.images:
                _confirm(preview)
        report = _run(client, options, dry_run=dry_run)
    if front.as_json:
        json_line(report)
    else:
        _show(report)
    return 1 if report.left else 0


def _run(client: Any, options: dict[str, Any], *, dry_run: bool) -> PruneReport:
    with progress("pruning") as display:
        report: PruneReport = client.store.prune(**options, dry_run=dry_run, progress=display)
    return report


def _age_s(filters: tuple[str, ...]) -> float | None:
    age_s = None
    for each in filters:
        key, equals, value = each.partition("=")
        if key != "until" or not equals:
            raise click.BadParameter(
                f"{each!r}: the only filter is until=AGE, such as until=24h", param_hint="--filter"
            )
        age_s = Duration(0.001, YEAR_S).convert(value, None, click.get_current_context())
    return age_s


def _confirm(report: PruneReport) -> None:
    output = f"the output of {_count(report.sandboxes, 'ended sandbox', 'es')} ({size(report.output_bytes)})"
    images = f"{_count(report.images, 'image', 's')} ({size(report.image_bytes)})"
    confirm(f"Remove {output}, and {images}?")


def _show(report: PruneReport) -> None:
    for line in (*report.sandboxes, *report.images):
        echo(line)
    for line in report.left:
        note(f"sandkeep: not removed: {plain(line)}")
    freed = size(report.output_bytes + report.image_bytes)
    output = f"output of {_count(report.sandboxes, 'sandbox', 'es')}, {size(report.output_bytes)}"
    images = f"{_count(report.images, 'image', 's')}, {size(report.image_bytes)}"
    note(f"sandkeep: {freed} {'would be' if report.dry_run else 'were'} freed: {output}; {images}")


def _count(things: list[str], noun: str, plural: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else plural}"
