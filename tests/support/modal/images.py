"""Images: references to root file systems, builds from Dockerfile commands, snapshots; and mounts of local files.

An image is a list of directories, the topmost layer first, and what a Dockerfile says about its processes.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from grpclib import GRPCError, Status
from tests.support.doubles.processes import Launcher, StartError
from tests.support.modal import containers
from tests.support.modal.containers import PATH, Container
from tests.support.modal.objects import Objects, Owned, Secret, new_id

_COPY: Final = (Path(__file__).parent / "copy_program.py").read_text()
_CONTEXT: Final = "/.context"


@dataclass(kw_only=True)
class Image(Owned):
    """An image that is built, is being built, or could not be. `build` returns why it failed, or None."""

    layers: list[Path] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    command: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    build: asyncio.Task[str | None] | None = None
    log: list[str] = field(default_factory=list)

    def derive(self, other: "Image") -> None:
        """Begin as another image is."""
        self.layers = list(other.layers)
        self.variables = dict(other.variables)
        self.workdir = other.workdir
        self.command = list(other.command)
        self.entrypoint = list(other.entrypoint)


@dataclass(kw_only=True)
class LocalFiles(Owned):
    """Files of a client's machine, as a layer."""

    layer: Path


class BuildError(Exception):
    """A build failed, and why."""


class Images:
    """Builds images and keeps them."""

    def __init__(self, objects: Objects, launcher: Launcher, directory: Path, references: Mapping[str, str]) -> None:
        self._objects = objects
        self._launcher = launcher
        self._directory = directory
        self._references = {_in_full(name): root for name, root in references.items()}
        self._by_definition: dict[tuple[str, str], str] = {}
        self._blobs = directory / "blobs"
        self.uploads = directory / "uploads"
        self._blobs.mkdir(parents=True)
        self.uploads.mkdir()

    def built(self, image_id: str, workspace: str | None) -> Image:
        """Return an image that can be started. Raises GRPCError."""
        found = self._objects.find(Image, image_id, workspace)
        if found.build is not None and (not found.build.done() or found.build.result()):
            raise GRPCError(Status.FAILED_PRECONDITION, f"Image {image_id} is not built")
        return found

    def add(self, workspace: str, layers: list[Path], like: Image | None = None) -> Image:
        """Keep an image of layers, with the settings of another one."""
        made = Image(id=new_id("im"), workspace=workspace)
        if like is not None:
            made.derive(like)
        made.layers = layers
        return self._objects.add(made)

    def delete(self, found: Image) -> None:
        """Delete an image; sandboxes and images made from it keep its layers."""
        self._objects.remove(found)
        for key, image_id in list(self._by_definition.items()):
            if image_id == found.id:
                del self._by_definition[key]

    async def snapshot(self, container: Container, path: str = "/") -> Path:
        """Copy the layer above a container's image, or one of its directories, to a new layer."""
        layer = self._new_layer()
        if path == "/":
            await _copy(container.layer, layer)
            return layer
        source = Path(f"/proc/{container.pid}/root{path}")
        if not await asyncio.to_thread(source.is_dir):
            raise GRPCError(Status.NOT_FOUND, f"{path} is not a directory")
        await _copy(source, layer)
        return layer

    # Local files

    def missing(self, hashes: Iterable[str]) -> list[str]:
        """Return the contents, by SHA-256, that are not here yet."""
        return [one for one in hashes if not self._blob(one).exists()]

    def put(self, sha256: str, data: bytes) -> None:
        """Keep contents. Raises GRPCError."""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise GRPCError(Status.INVALID_ARGUMENT, "The data does not have this SHA-256.")
        self._blob(sha256).write_bytes(data)

    def put_upload(self, sha256: str, blob_id: str) -> None:
        """Keep contents that were uploaded. Raises GRPCError."""
        upload = self.uploads / Path(blob_id).name
        if not upload.exists():
            raise GRPCError(Status.NOT_FOUND, f"Blob {blob_id} not found")
        with upload.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                raise GRPCError(Status.INVALID_ARGUMENT, "The data does not have this SHA-256.")
        upload.rename(self._blob(sha256))

    def _blob(self, sha256: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise GRPCError(Status.INVALID_ARGUMENT, "This is no SHA-256.")
        return self._blobs / sha256

    def mount(self, workspace: str, files: Iterable[Any]) -> LocalFiles:
        """Make a layer of files whose contents are here."""
        layer = self._new_layer()
        layer.mkdir()
        for file in files:
            target = Path(os.path.normpath(f"{layer}/{file.filename}"))
            if not target.is_relative_to(layer):
                raise GRPCError(Status.INVALID_ARGUMENT, f"{file.filename} is outside")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._blob(file.sha256_hex), target)
            target.chmod(file.mode & 0o7777 if file.mode else 0o644)
        return self._objects.add(LocalFiles(id=new_id("mo"), workspace=workspace, layer=layer))

    def mounts(self, ids: Iterable[str], workspace: str) -> list[Path]:
        """Return the layers of mounts, the topmost first. Raises GRPCError."""
        return [self._objects.find(LocalFiles, one, workspace).layer for one in reversed(list(ids))]

    def _new_layer(self) -> Path:
        return self._directory / new_id("la")

    # Builds

    def get_or_build(self, workspace: str, definition: Any, *, force: bool) -> Image:
        """Return the image of a definition, and build it if there is none that was built or is being built."""
        key = (workspace, hashlib.sha256(definition.SerializeToString(deterministic=True)).hexdigest())
        known = self._by_definition.get(key)
        if known and not force:
            found = self._objects.find(Image, known, workspace)
            if found.build is None or not found.build.done() or not found.build.result():
                return found
        made = self._objects.add(Image(id=new_id("im"), workspace=workspace))
        self._by_definition[key] = made.id
        made.build = asyncio.create_task(self._build(made, definition))
        return made

    async def _build(self, image: Image, definition: Any) -> str | None:
        try:
            await _Build(self, image, definition).run()
        except (BuildError, StartError, GRPCError) as error:
            message = error.message if isinstance(error, GRPCError) else str(error)
            image.log.append(f"{message}\n")
            return message
        return None

    def base(self, definition: Any, tag: str, workspace: str) -> Image:
        """Return the image that a build begins with. Raises BuildError."""
        for base in definition.base_images:
            if base.docker_tag == tag:
                return self.built(base.image_id, workspace)
        if tag == "scratch":
            empty = self._directory / "scratch"
            empty.mkdir(exist_ok=True)
            return Image(id="", workspace=workspace, layers=[empty])
        root = self._references.get(_in_full(tag))
        if root is None:
            raise BuildError(f"failed to resolve reference {tag}: not found")
        return Image(id="", workspace=workspace, layers=[Path(root)])

    @contextlib.asynccontextmanager
    async def builder(self, image: Image, context: Path) -> AsyncIterator[Container]:
        """Run a container for a build, in which its context is mounted; what it leaves is the image's topmost layer."""
        directory = self._new_layer()
        mount = {"source": str(context), "target": _CONTEXT, "read_only": True}
        container = await containers.start_container(self._launcher, directory, image.layers, "build", [mount])
        try:
            yield container
        finally:
            await container.stop()
        with contextlib.suppress(FileNotFoundError):
            (container.layer / _CONTEXT[1:]).rmdir()
        image.layers.insert(0, container.layer)

    def context(self, definition: Any, workspace: str) -> Path:
        """Return a directory with the context of a build."""
        directory = self._new_layer()
        directory.mkdir()
        if definition.context_mount_id:
            found = self._objects.find(LocalFiles, definition.context_mount_id, workspace)
            shutil.copytree(found.layer, directory, symlinks=True, dirs_exist_ok=True)
        for file in definition.context_files:
            target = directory / file.filename.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
        return directory

    def secrets(self, ids: Iterable[str], workspace: str | None) -> dict[str, str]:
        """Return the variables of secrets. Raises GRPCError."""
        found = [self._objects.find(Secret, one, workspace) for one in ids]
        return {name: value for one in found for name, value in one.variables.items()}


class _Build:
    """One build: the commands of a Dockerfile, in one container."""

    def __init__(self, images: Images, image: Image, definition: Any) -> None:
        self._images = images
        self._image = image
        self._definition = definition
        self._arguments = dict(definition.build_args)
        self._variables = images.secrets(definition.secret_ids, image.workspace)

    async def run(self) -> None:
        """Carry out all commands. Raises BuildError, StartError or GRPCError."""
        commands = _commands(self._definition.dockerfile_commands)
        before = [commands.pop(0) for _ in range(_index_of_from(commands))]
        for command in before:
            self._argument(command.removeprefix("ARG "))
        word, _, tag = commands.pop(0).partition(" ")
        tag = self._expand(shlex.split(tag)[0])
        self._image.derive(self._images.base(self._definition, tag, self._image.workspace))
        context = self._images.context(self._definition, self._image.workspace)
        if not commands:
            return
        async with self._images.builder(self._image, context) as container:
            for number, command in enumerate(commands, 1):
                self._image.log.append(f"Step {number}/{len(commands)}: {command}\n")
                word, _, rest = command.partition(" ")
                await self._carry_out(container, word.upper(), rest.strip())

    async def _carry_out(self, container: Container, word: str, rest: str) -> None:
        image = self._image
        match word:
            case "RUN":
                argv = _argv(rest, ["/bin/sh", "-c", rest])
                await self._process(container, containers.process(argv, self._environment(), image.workdir))
            case "COPY" | "ADD":
                await self._copy(container, rest)
            case "ENV":
                image.variables |= {name: self._expand(value) for name, value in _pairs(rest)}
            case "WORKDIR":
                image.workdir = os.path.normpath(os.path.join(image.workdir, self._expand(rest)))
                argv = ["mkdir", image.workdir]
                await self._process(container, containers.process(argv, {}, "/", source=_COPY))
            case "CMD":
                image.command = _argv(rest, ["/bin/sh", "-c", rest])
            case "ENTRYPOINT":
                image.entrypoint = _argv(rest, ["/bin/sh", "-c", rest])
                image.command = []
            case "ARG":
                self._argument(rest)
            case "EXPOSE" | "LABEL" | "STOPSIGNAL" | "VOLUME" | "MAINTAINER" | "HEALTHCHECK":
                pass
            case _:
                raise BuildError(f"dockerfile parse error: unknown instruction: {word}")

    async def _copy(self, container: Container, rest: str) -> None:
        argv = _argv(rest, shlex.split(rest))
        while argv and argv[0].startswith("--"):
            flag = argv.pop(0)
            if not flag.startswith("--chmod="):
                raise BuildError(f"dockerfile parse error: unsupported flag: {flag}")
            argv.insert(0, flag.removeprefix("--chmod=").zfill(4))
            break
        else:
            argv.insert(0, "")
        mode, *paths = argv
        paths = [self._expand(path) for path in paths]
        spec = containers.process(["copy", mode, _CONTEXT, *paths], {}, self._image.workdir, source=_COPY)
        await self._process(container, spec)

    def _argument(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        self._arguments.setdefault(name.strip(), default.strip().strip("\"'"))

    def _environment(self) -> dict[str, str]:
        return {"PATH": PATH, "HOME": "/root", **self._arguments, **self._image.variables, **self._variables}

    def _expand(self, text: str) -> str:
        known = {**self._arguments, **self._image.variables}
        return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: known.get(found[1] or found[2], ""), text)

    async def _process(self, container: Container, spec: dict[str, Any]) -> None:
        """Run a process to its end, its output into the log. Raises BuildError or StartError."""
        started = await container.start(spec)
        await started.close_stdin()

        async def keep(source: AsyncIterator[bytes]) -> None:
            async for data in source:
                self._image.log.append(data.decode(errors="replace"))

        await asyncio.gather(keep(started.stdout), keep(started.stderr))
        code = await started.wait()
        if code:
            raise BuildError(f"The command {shlex.join(spec['argv'])} returned a non-zero code: {code}")


def _in_full(reference: str) -> str:
    """Return a reference with the registry, the namespace and the tag that it leaves out."""
    host, slash, path = reference.partition("/")
    if not slash or not (host == "localhost" or "." in host or ":" in host):
        host, path = "docker.io", reference
    if host == "docker.io" and "/" not in path:
        path = f"library/{path}"
    return f"{host}/{path}" if ":" in path else f"{host}/{path}:latest"


def _commands(lines: Iterable[str]) -> list[str]:
    """Join lines that go on, and drop comments."""
    text = "\n".join(lines)
    kept = [line for line in text.split("\n") if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\[ \t]*\n", " ", "\n".join(kept))
    return [line.strip() for line in joined.split("\n") if line.strip()]


def _index_of_from(commands: list[str]) -> int:
    for number, command in enumerate(commands):
        if command.upper().startswith("FROM "):
            return number
        if not command.upper().startswith("ARG "):
            break
    raise BuildError("dockerfile parse error: no build stage in current context")


def _argv(text: str, otherwise: list[str]) -> list[str]:
    """Return the words of a JSON array, or something else if this is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return otherwise
    return [str(word) for word in found] if isinstance(found, list) else otherwise


def _pairs(text: str) -> list[tuple[str, str]]:
    words = shlex.split(text)
    if "=" not in words[0]:
        return [(words[0], " ".join(words[1:]))]
    return [(name, value) for name, _, value in (word.partition("=") for word in words)]


async def _copy(source: Path, target: Path) -> None:
    """Copy a directory with owners, times, extended attributes and whiteouts, but nothing that is mounted in it."""
    copy = await asyncio.create_subprocess_exec("cp", "-a", "-x", "--", str(source), str(target))
    if await copy.wait():
        raise GRPCError(Status.INTERNAL, f"could not copy {source}")
