"""Images: create from a directory, a Dockerfile or a reference; list, show, remove."""

import contextlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import click

from sandkeep.blocking import Client
from sandkeep.cli.advice import suggestion
from sandkeep.cli.display.output import Column, age, cut_middle, echo, json_line, note, size, status, table, when
from sandkeep.cli.display.progress import progress
from sandkeep.cli.options import (
    Frontend,
    command,
    common,
    ignore_option,
    image_name_option,
    label_option,
    names_and_patterns,
    non_empty,
)
from sandkeep.cli.words import FILE, IMAGE, IMAGE_NAME, PROVIDER, REFERENCE, SOURCE
from sandkeep.clients.pages import every
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Image

NOT_SOURCE: Final = (".git", ".venv", "venv")
"""The names that --source-only leaves out."""


@command(
    examples=[
        "sandkeep image create .",
        "IMG=$(sandkeep image create ~/project --label team=web)",
        "sandkeep image create --name py:3.12 ~/project && sandkeep create py:3.12",
        "sandkeep image create python:3.11-slim",
        "sandkeep image create . --dockerfile docker/Dockerfile",
        "sandkeep image create . --base node:22-slim",
        "sandkeep image create . --source-only --ignore 'docs/*.html'",
    ]
)
@click.argument("source", type=SOURCE, metavar="PATH|REF")
@image_name_option
@click.option(
    "--provider",
    type=PROVIDER,
    metavar="NAME",
    help="Provider of its sandboxes (default: `local` for a plain directory, else `docker`).",
)
@click.option("--base", type=REFERENCE, metavar="REF", help="Copy the directory onto this image, as /workspace.")
@click.option(
    "--dockerfile", type=FILE, metavar="FILE", help="Path of the Dockerfile, below PATH (default: Dockerfile)."
)
@click.option(
    "--clean", is_flag=True, help="Create a new image even if one has the same content, and build without cache."
)
@ignore_option
@click.option("--all-files", is_flag=True, help="Copy all files, whatever .sandkeepignore or .dockerignore says.")
@click.option("--source-only", is_flag=True, help="Leave out .git and virtual environments (.venv, venv).")
@click.option("--owner", metavar="OWNER", help="Create it for another owner, such as key:ci. For administrators.")
@label_option
@common()
def create(
    front: Frontend, source: str, ignore: tuple[str, ...], *, all_files: bool, source_only: bool, **options: Any
) -> None:
    """Create an image and print its id.

    PATH is a directory or a Dockerfile: a plain directory is copied for the local provider; a Dockerfile, or a
    directory that holds one, is built for Docker. REF is the reference of a container image, such as python:3.11-slim,
    which is pulled if it is missing. What begins with `/`, `./`, `../` or `~` or ends in `/` is a PATH, and so is a
    name that no reference has. Of a directory `project` write `./project`.

    In a plain directory, .sandkeepignore, or else .dockerignore, lists files to leave out, by Docker's rules.
    """
    if not source:
        raise click.BadParameter("empty: give a directory or a reference", param_hint="PATH|REF")
    names, patterns = names_and_patterns(ignore)
    names += NOT_SOURCE if source_only else ()
    given = non_empty(**options, ignore=names or None, patterns=patterns or None)
    given |= {"ignore_files": False} if all_files else {}
    try:
        with progress("creating an image") as display, front.client() as client:
            image = client.image.create(source, progress=display, **given)
    except SandkeepError as error:
        raise _no_directory(error, source) from None
    if front.as_json:
        return json_line(image)
    if image.skipped_count:
        note(f"sandkeep: {image.skipped_count} files were left out: sockets and devices cannot be in an image")
    return echo(image.image_id)


def _no_directory(error: SandkeepError, word: str) -> SandkeepError:
    """Return the failure of a reference, which may have been meant as a directory of this machine."""
    if isinstance(error, (CallerError, StateError)) and error.data.get("field") != "source":
        return error
    if word.startswith(("/", "./", "../", "~")) or word.endswith("/") or os.path.lexists(word):
        return error
    above, name = os.path.split(os.path.expanduser(word.rstrip("/")))
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [each.name for each in os.scandir(above or ".") if each.is_dir()]
    near = suggestion(name, names) if ":" not in name else ""
    message = f"{error.message}; there is no directory {word!r} here either{near}"
    return type(error)(error.code, message, **error.data)


@command(examples=["sandkeep image ls", "sandkeep image ls --json | jq -r '.[].image_id'"])
@click.option("--all", "-a", "everything", is_flag=True, help="Include failed and removed images.")
@click.option("--published", is_flag=True, help="List the references that administrators let you use instead.")
@common()
def ls(front: Frontend, everything: bool, published: bool) -> None:
    """List images."""
    with front.client() as client:
        images: list[Image] = every(client.image.list, all=everything, published=published)
    if front.as_json:
        return json_line(images)
    if published:
        public = [(name, _owners(owners), size(i.size_bytes), i.image_id)
                  for i in images for name, owners in i.published.items()]  # fmt: skip
        return table((Column("REFERENCE", least=12, shorten=cut_middle), "FOR", "SIZE", "IMAGE"), sorted(public))
    named = [Column("NAME", least=12)] if any(i.names for i in images) else []
    rows = [
        (
            i.image_id,
            *([", ".join(i.names)] if named else []),
            i.status,
            age(i.created_at),
            size(i.size_bytes),
            i.kind,
            _short(i.docker_image_id),
            i.source,
        )
        for i in images
    ]
    kind, docker = Column("KIND", least=9, spare=True), Column("DOCKER ID", least=12, spare=True)
    source = Column("SOURCE", least=12, shorten=cut_middle)
    return table(("IMAGE", *named, status(), "AGE", "SIZE", kind, docker, source), rows)


def _owners(owners: list[str]) -> str:
    return ", ".join(owners) or "everybody"


def _short(docker_image_id: str | None) -> str:
    """As much of an id as Docker's own lists show."""
    return (docker_image_id or "").removeprefix("sha256:")[:12]


@command(examples=["sandkeep image get $IMG"])
@click.argument("image", type=IMAGE, metavar="IMAGE")
@common()
def get(front: Frontend, image: str) -> None:
    """Show an image."""
    front.show("image.get", image, _describe)


def _describe(image: Image) -> list[tuple[str, object]]:
    return [
        ("image", image.image_id),
        ("names", ", ".join(image.names)),
        *(("published", f"{name} for {_owners(owners)}") for name, owners in image.published.items()),
        ("status", image.status),
        ("provider", image.provider),
        ("kind", image.kind),
        ("source", image.source),
        ("base", image.base),
        ("dockerfile", image.dockerfile),
        ("docker image", image.docker_image_id),
        ("docker tag", image.docker_image_tag),
        ("created", when(image.created_at)),
        ("size", size(image.size_bytes) + (f" in {image.file_count} files" if image.file_count else "")),
        ("digest", image.digest),
        ("labels", ", ".join(f"{key}={value}" for key, value in image.labels.items())),
        *(("left out", f"{skipped.path} ({skipped.why})") for skipped in image.skipped),
        ("error", image.error),
    ]


@command(examples=["sandkeep image tag $IMG py:3.12", "sandkeep image tag python:3.11-slim py"])
@click.argument("image", type=IMAGE, metavar="IMAGE")
@click.argument("name", metavar="NAME[:TAG]")
@common()
def tag(front: Frontend, image: str, name: str) -> None:
    """Give an image a name, and print its id. Another image that has the name loses it."""
    front.for_each("naming", "image.tag", (image,), name=name)


@command(examples=["sandkeep image untag py:3.12"])
@click.argument("name", type=IMAGE_NAME, metavar="NAME[:TAG]")
@common()
def untag(front: Frontend, name: str) -> None:
    """Take a name from its image, and print the image's id. The image stays."""
    front.for_each("taking the name", "image.untag", (name,), name=name)


@command(
    examples=[
        "sandkeep image publish registry.lan/team/app:1",
        "sandkeep image publish app:1 --for uid:1000 --for key:ci",
    ]
)
@click.argument("reference", type=REFERENCE, metavar="REF")
@click.option("--for", "owners", multiple=True, metavar="OWNER", help="Owner, such as uid:1000 (default: everybody).")
@common()
def publish(front: Frontend, reference: str, owners: tuple[str, ...]) -> None:
    """Let others use an image of the Docker engine, and print the id of its own.

    It stays the image that REF means now, until REF is published again. For administrators.
    """
    front.for_each("publishing", "image.publish", (reference,), owners=list(owners))


@command(examples=["sandkeep image unpublish registry.lan/team/app:1"])
@click.argument("reference", type=REFERENCE, metavar="REF")
@common()
def unpublish(front: Frontend, reference: str) -> None:
    """Withdraw a published image, and print its id. Images that others have made of it stay theirs."""
    front.for_each("withdrawing", "image.unpublish", (reference,))


@command(examples=["sandkeep image rm $IMG", "sandkeep image rm py:3.12"])
@click.argument("images", nargs=-1, required=True, type=IMAGE, metavar="IMAGE...")
@common()
def rm(front: Frontend, images: tuple[str, ...]) -> None:
    """Remove images that no sandbox uses, and print their ids.

    An image with several names, given by one of them, loses only that name.
    """
    notes: list[str] = []
    try:
        front.for_each("removing", partial(_remove, notes), images, "image_id")
    finally:
        for line in notes:
            note(f"sandkeep: {line}")


def _remove(notes: list[str], client: Client, word: str, progress: Callable[[str], None] | None) -> Image:
    """Remove an image, and add a note if it only lost the name."""
    removed: Image = client.image.remove(word, progress=progress)
    if removed.status == "ready":
        stays = ", ".join(removed.names)
        notes.append(f"removed the name {word} only: {removed.image_id} stays as {stays}")
    return removed
