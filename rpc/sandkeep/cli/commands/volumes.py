"""Named volumes: create, list, remove."""

from typing import Any

import click

from sandkeep.cli.display.output import Column, age, echo, identifier, json_line, table
from sandkeep.cli.options import Frontend, command, common, non_empty
from sandkeep.cli.words import PROVIDER, VOLUME


def _owned(function: Any) -> Any:
    """Give a command the options that say whose volumes, and on which provider."""
    function = click.option("--owner", metavar="OWNER", help="Owner of the volume (administrators only).")(function)
    of = click.option("--provider", type=PROVIDER, metavar="NAME", help="Provider that has it (default: docker).")
    return of(function)


@command(examples=["sandkeep volume create cache", "sandkeep create $IMG --volume cache:/var/cache"])
@click.argument("name", metavar="NAME")
@_owned
@common()
def create(front: Frontend, name: str, **options: Any) -> None:
    """Create a volume, and print its name. `create --volume` makes one at first use, too."""
    with front.client() as client:
        made = client.volume.create(name, **non_empty(**options))
    return json_line(made) if front.as_json else echo(made.name)


@command(examples=["sandkeep volume ls"])
@_owned
@common()
def ls(front: Frontend, **query: Any) -> None:
    """List volumes, with the sandboxes that mount them."""
    with front.client() as client:
        found = client.volume.list(**non_empty(**query)).volumes
    if front.as_json:
        return json_line(found)
    rows = [(v.name, v.owner, age(v.created_at) if v.created_at else "", " ".join(v.sandbox_ids)) for v in found]
    return table((Column("NAME", least=6, spare=True), "OWNER", "AGE", identifier("MOUNTED BY")), rows)


@command(examples=["sandkeep volume rm cache"])
@click.argument("names", nargs=-1, required=True, type=VOLUME, metavar="NAME...")
@_owned
@common()
def rm(front: Frontend, names: tuple[str, ...], **options: Any) -> None:
    """Remove volumes that no sandbox mounts, with all files in them, and print their names."""
    front.for_each("removing", "volume.remove", names, "name", **non_empty(**options))
