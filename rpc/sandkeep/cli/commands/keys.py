"""API keys of the HTTP gateway: create, list, remove."""

import click

from sandkeep.cli.display.output import Column, age, echo, json_line, table
from sandkeep.cli.options import Frontend, command, common
from sandkeep.cli.words import KEY


@command(examples=["sandkeep key create ci", "KEY=$(sandkeep key create ci)"])
@click.argument("name", metavar="NAME")
@common()
def create(front: Frontend, name: str) -> None:
    """Create an API key for the HTTP gateway, and print it. It is a password, and is not shown again.

    `key:NAME` owns what is created with it. For administrators.
    """
    with front.client() as client:
        key = client.key.create(name)
    return json_line(key) if front.as_json else echo(key.key)


@command(examples=["sandkeep key ls"])
@common()
def ls(front: Frontend) -> None:
    """List API keys. For administrators."""
    with front.client() as client:
        found = client.key.list().keys
    if front.as_json:
        return json_line(found)
    return table(("NAME", "AGE", Column("OWNER", spare=True)), [(i.name, age(i.created_at), i.owner) for i in found])


@command(examples=["sandkeep key rm ci"])
@click.argument("names", nargs=-1, required=True, type=KEY, metavar="NAME...")
@common()
def rm(front: Frontend, names: tuple[str, ...]) -> None:
    """Remove API keys: they are refused from now on. What was made with them stays. For administrators."""
    front.for_each("removing", "key.remove", names, "name")
