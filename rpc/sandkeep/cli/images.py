"""Images: make one of a directory, list, show, remove."""

import os

import click

from sandkeep.cli.options import DIRECTORY, IMAGE, PROVIDER, Frontend, command, common, given, label_option
from sandkeep.cli.output import Column, age, cut_middle, facts, json_line, note, size, status, table, when
from sandkeep.cli.progress import progress
from sandkeep.model import Image


@command(
    examples=[
        "sandkeep image create .",
        "IMG=$(sandkeep image create ~/project --label team=web)",
    ]
)
@click.argument("source", type=DIRECTORY, metavar="PATH")
@click.option(
    "--provider", type=PROVIDER, metavar="NAME", help="Who shall run its sandboxes; a directory is for `local`."
)
@click.option("--clean", is_flag=True, help="Make a new image even if one of the same content is there.")
@label_option
@common()
def create(front: Frontend, source: str, provider: str | None, clean: bool, label: tuple[tuple[str, str], ...]) -> None:
    """Make an image of the directory PATH and print its id."""
    if not source:
        raise click.BadParameter("it is empty: give a directory", param_hint="PATH")
    try:
        path = os.path.abspath(source)
    except FileNotFoundError:
        raise click.BadParameter("the present directory was removed: give a whole path", param_hint="PATH") from None
    options = given(provider=provider, clean=clean, labels=dict(label))
    with progress("making an image") as told, front.client() as client:
        image = client.image.create(path, progress=told, **options)
    if front.as_json:
        return json_line(image)
    if image.skipped_count:
        note(f"sandkeep: {image.skipped_count} files were left out: sockets and devices cannot be in an image")
    return print(image.image_id)


@command(examples=["sandkeep image ls", "sandkeep image ls --json | jq -r '.[].image_id'"])
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that failed or were removed.")
@common()
def ls(front: Frontend, everything: bool) -> None:
    """List images."""
    from sandkeep.cli.pages import every

    with front.client() as client:
        images: list[Image] = every(client.image.list, "images", all=everything)
    if front.as_json:
        return json_line(images)
    rows = [(i.image_id, i.status, age(i.created_at), size(i.size_bytes), i.file_count, i.source) for i in images]
    source = Column("SOURCE", least=12, shorten=cut_middle)
    return table(("IMAGE", status(), "AGE", "SIZE", Column("FILES", least=5, spare=True), source), rows)


@command(examples=["sandkeep image get $IMG"])
@click.argument("image", type=IMAGE, metavar="IMAGE")
@common()
def get(front: Frontend, image: str) -> None:
    """Show an image."""
    with front.client() as client:
        found = client.image.get(image)
    if front.as_json:
        return json_line(found)
    return facts(
        [
            ("image", found.image_id),
            ("status", found.status),
            ("provider", found.provider),
            ("source", found.source),
            ("created", when(found.created_at)),
            ("size", f"{size(found.size_bytes)} in {found.file_count} files"),
            ("digest", found.digest),
            ("labels", ", ".join(f"{key}={value}" for key, value in found.labels.items())),
            *(("left out", f"{skipped.path} ({skipped.why})") for skipped in found.skipped),
            ("error", found.error),
        ]
    )


@command(examples=["sandkeep image rm $IMG"])
@click.argument("images", nargs=-1, required=True, type=IMAGE, metavar="IMAGE...")
@common()
def rm(front: Frontend, images: tuple[str, ...]) -> None:
    """Remove images that no sandbox needs, and print their ids."""
    with front.client() as client:
        for image in images:
            with progress(f"removing {image}") as told:
                removed = client.image.remove(image, progress=told)
            json_line(removed) if front.as_json else print(removed.image_id, flush=True)
