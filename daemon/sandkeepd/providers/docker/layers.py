"""Files that Docker sandboxes begin with besides their image's: images of the engine that have only our name.

The engine gets one layer, and only the digests of those beneath it that it has already, as it would for an image that
was saved elsewhere. So forks of a sandbox, and all that are restored from a snapshot, share its content, and the layers
beneath stay as long as the image exists. Everything here blocks, except coroutines that get an engine.
"""

import json
import os
import tarfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from sandkeep.errors import CallerError, DaemonError, ProviderError
from sandkeepd.providers.docker.build_context import tar_entry
from sandkeepd.providers.docker.container import LOG_LABEL
from sandkeepd.providers.docker.engine import Client, Engine, inspect_image, names_in
from sandkeepd.providers.docker.plan import Details
from sandkeepd.providers.docker.stream import StreamedRequest

REPOSITORY: Final = "sandkeep-files"
"""The repository of these images in the engine; the tag is the name that the files are kept under."""

MOST_HOLE_BYTES: Final = 1024**3
"""Maximum bytes written on the engine's disk for holes, which take no room in the sandbox."""

_PIECE_BYTES: Final = 1024 * 1024
_LAYER: Final = "layer.tar"


class Base(Struct, frozen=True, kw_only=True):
    """The base of a layer: the engine's digests of layers, and the configuration that programs run with."""

    layers: list[str]
    config: dict[str, Any]


class Layer(Struct, frozen=True, kw_only=True):
    """A plain tar in an open file, of `size_bytes`, with whiteouts for removed files. Its files have `hole_bytes` of
    holes.
    """

    descriptor: int
    sha256: str
    size_bytes: int
    hole_bytes: int


def tag(name: str) -> str:
    """Return the engine's name for the files that are kept under a name."""
    return f"{REPOSITORY}:{name}"


def base_of_image(client: Client, image: str) -> Base:
    """Return an image as the base of a layer. Raises `not_found`."""
    found = inspect_image(client, image)
    return Base(layers=found["RootFS"].get("Layers") or [], config=found.get("Config") or {})


def empty_base(details: Mapping[str, Any]) -> Base:
    """Return an empty base, for complete files; `details` are those of the image that provides their programs."""
    known = {name: details[name] for name in ("user", "workdir", "env") if name in details}
    plain = Details(docker_image_id="", docker_image_tag="", **known)
    uid, gid = plain.user
    return Base(
        layers=[], config={"Env": list(plain.env), "WorkingDir": plain.workdir, "User": f"{uid}:{gid}"}
    )  # fmt: skip


async def load(engine: Engine, name: str, log_id: str, beneath: Base, layer: Layer) -> None:
    """Load an image of a layer upon others into the engine. Raises `storage_unavailable`, `provider_unavailable`, and
    `disk_limit` for files that would take more room than they do.
    """
    if layer.hole_bytes > MOST_HOLE_BYTES:
        holes, most = layer.hole_bytes >> 20, MOST_HOLE_BYTES >> 20
        message = f"its files have {holes} MiB of holes, which a Docker engine writes out; at most {most} MiB"
        raise ProviderError("disk_limit", f"{message}: remove sparse files, or exclude them from the snapshot")
    architecture, system = await engine.call(_machine)
    layers = [*beneath.layers, f"sha256:{layer.sha256}"]
    image = {
        "architecture": architecture,
        "os": system,
        "created": datetime.now(UTC).isoformat(),
        "config": {**beneath.config, "Labels": {**(beneath.config.get("Labels") or {}), LOG_LABEL: log_id}},
        "rootfs": {"type": "layers", "diff_ids": layers},
        "history": [{"created_by": "sandkeep"}] * (len(beneath.layers) + 1),
    }
    failed: list[str] = []

    def receive(document: dict[str, Any]) -> None:
        if document.get("error"):
            failed.append(str(document["error"]))

    body = _archive(image, [f"beneath/{number}" for number in range(len(beneath.layers))], tag(name), layer)
    kind = {"Content-Type": "application/x-tar"}
    await StreamedRequest("/images/load", {"quiet": "1"}, receive, body, headers=lambda _: kind).run_while_awake(engine)
    if failed:
        raise _load_error(failed[0])
    made = await engine.call(lambda client: base_of_image(client, tag(name)))
    if made.layers != layers:
        raise _load_error("it made another image of them")


def _machine(client: Client) -> tuple[str, str]:
    version: dict[str, str] = client.version()
    return version["Arch"], version["Os"]


def _load_error(why: str) -> ProviderError | DaemonError:
    message = f"the Docker engine did not take the files: {' '.join(why.split())[:300]}"
    if "no space left" in why:
        return DaemonError("storage_unavailable", f"{message}: make room for it")
    return ProviderError("provider_unavailable", message)


def _archive(image: dict[str, Any], beneath: Sequence[str], name: str, layer: Layer) -> Generator[bytes]:
    """Stream the input of `docker load`; of the layers beneath, which the engine has, only the names."""
    config = json.dumps(image).encode()
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": [*beneath, _LAYER]}]
    yield tar_entry("config.json", config)
    yield tar_entry("manifest.json", json.dumps(manifest).encode())
    header = tarfile.TarInfo(_LAYER)
    header.size = layer.size_bytes
    yield header.tobuf(tarfile.GNU_FORMAT)
    offset = 0
    while piece := os.pread(layer.descriptor, _PIECE_BYTES, offset):
        yield piece
        offset += len(piece)
    yield bytes(-offset % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def list_layers(client: Client) -> list[tuple[str, str | None]]:
    """Return the names that files are kept under, each with the id of the log in its label."""
    return names_in(client, REPOSITORY, LOG_LABEL)


def layer_exists(client: Client, name: str) -> bool:
    """Return True if there are files of that name."""
    with suppress(CallerError):
        inspect_image(client, tag(name))
        return True
    return False
