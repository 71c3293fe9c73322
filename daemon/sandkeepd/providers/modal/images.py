"""Images of the Modal provider: built at Modal, from references, Dockerfiles and directories.

A caller's directory is copied with his rights. The SDK, which follows links with the daemon's rights, sees that copy
alone, a Dockerfile of the daemon's beside it, and of a plain directory only an archive.
"""

import os
import shutil
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, StateError
from sandkeep.settings import modal as settings
from sandkeep.settings.daemon import DOCKER_BASE
from sandkeep_store.archives.trees.pack import pack
from sandkeep_store.threads import in_thread
from sandkeepd.contract import image_references
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import Building, ImageRequest, Images, ImportedImage
from sandkeepd.providers.common.build_files import import_context, read_below
from sandkeepd.providers.common.errors import converted_errors
from sandkeepd.providers.common.inside import WORKSPACE
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.common.packing import never_packed
from sandkeepd.providers.modal.plan import Details
from sandkeepd.providers.modal.service import Service

MOST_CONTEXT_BYTES: Final = 4 << 30
MOST_DOCKERFILE_BYTES: Final = 1 << 20
DIRECTORY: Final = "modal"
"""The directory, in the state directory, of copies that are being sent to Modal."""

_ARCHIVE: Final = "workspace.tar"
_DOCKERFILE: Final = "Dockerfile"
_IGNORE: Final = ".dockerignore"


class ModalImages(Images, Building):
    """See `Images` and `Building`."""

    def __init__(self, service: Service, layout: Layout) -> None:
        self._service = service
        self._layout = layout
        self._making = set[str]()

    def default_base(self) -> str:
        return DOCKER_BASE()

    def _place(self, image_id: str) -> str:
        return f"{self._layout.state_dir}/{DIRECTORY}/{os.path.basename(self._layout.image(image_id))}"

    async def make(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        await self._service.sdk()  # before anything is copied for it
        self._making.add(image_id)
        try:
            with trio.fail_after(settings.BUILD_S()):
                if request.kind == "reference":
                    return await self._of_reference(request, progress)
                return await self._of_directory(image_id, request, caller, progress)
        except trio.TooSlowError:
            message = f"the build at Modal took longer than {settings.BUILD_S()} s ({settings.BUILD_S.name})"
            raise StateError("timeout", message) from None
        finally:
            self._making.discard(image_id)
            with trio.CancelScope(shield=True):
                await in_thread(self._discard, image_id)

    async def _of_reference(self, request: ImageRequest, progress: Progress) -> ImportedImage:
        reference = image_references.parse(request.source, "source").in_full
        await progress(f"building {reference} at Modal")
        modal_id = await self._service.call(
            lambda sdk: sdk.build_reference(reference, anew=request.clean), settings.BUILD_S()
        )
        return _imported(modal_id, ImportedImage(digest="", size_bytes=0), has_files=False)

    async def _of_directory(
        self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress
    ) -> ImportedImage:
        place = self._place(image_id)
        with converted_errors("the image"):
            await in_thread(partial(os.makedirs, f"{place}/context", mode=0o700))
        hide = never_packed(self._layout.state_dir)
        copied = await import_context(
            request, caller, f"{place}/tree", hide=hide, most_bytes=MOST_CONTEXT_BYTES, progress=progress
        )
        failpoints.reach("modal.staged")
        is_built = request.kind == "dockerfile"
        stage = partial(_stage_build if is_built else _stage_archive, place, request)
        with converted_errors("the image"):
            ignore = await in_thread(stage)
        await progress("building at Modal")
        modal_id = await self._service.call(
            lambda sdk: sdk.build_dockerfile(
                f"{place}/{_DOCKERFILE}", f"{place}/{'tree' if is_built else 'context'}", ignore, {},
                anew=request.clean,
            ),
            settings.BUILD_S(),
        )  # fmt: skip
        return _imported(modal_id, copied, has_files=True)

    def _discard(self, image_id: str) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self._place(image_id))

    async def remove(self, image_id: str) -> None:
        """See `Images.remove`. At Modal the image stays: another of the same content has the same id there."""
        await in_thread(self._discard, image_id)

    async def clean_up(self) -> None:
        """Remove what a daemon left that died while it made an image."""

        def remove() -> None:
            with suppress(FileNotFoundError):
                for name in os.listdir(f"{self._layout.state_dir}/{DIRECTORY}"):
                    if name not in self._making:
                        self._discard(name)

        await in_thread(remove)


def _imported(modal_id: str, copied: ImportedImage, *, has_files: bool) -> ImportedImage:
    details = Details(modal_image_id=modal_id, has_files=has_files)
    return msgspec.structs.replace(
        copied, digest=copied.digest or f"modal:{modal_id}", details=dict(msgspec.to_builtins(details))
    )


def _stage_archive(place: str, request: ImageRequest) -> list[str]:
    """Put an archive of the copied directory, and a Dockerfile that unpacks it, where the SDK reads them. Blocks."""
    assert request.base is not None
    base = image_references.parse(request.base, "base").in_full
    tree = os.open(f"{place}/tree", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(f"{place}/context/{_ARCHIVE}", "xb") as archive:
            pack(tree, archive.fileno(), codec="none")
    finally:
        os.close(tree)
    lines = [
        f"FROM {base}", f"COPY {_ARCHIVE} /{_ARCHIVE}",
        f"RUN mkdir -p {WORKSPACE} && tar -xf /{_ARCHIVE} -C {WORKSPACE} && rm /{_ARCHIVE}",
    ]  # fmt: skip
    _write(f"{place}/{_DOCKERFILE}", "\n".join(lines).encode() + b"\n")
    return []


def _stage_build(place: str, request: ImageRequest) -> list[str]:
    """Copy the Dockerfile to where no link is followed; return the patterns of the files to ignore. Blocks."""
    path = request.dockerfile or _DOCKERFILE
    content = _read_below(f"{place}/tree", path)
    if content is None:
        raise CallerError("invalid", f"dockerfile: {path} not found under {request.source}", field="dockerfile")
    _write(f"{place}/{_DOCKERFILE}", content)
    ignored = _read_below(f"{place}/tree", f"{path}{_IGNORE}") or _read_below(f"{place}/tree", _IGNORE) or b""
    lines = (line.strip() for line in ignored.decode("utf-8", "replace").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _write(path: str, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)


def _read_below(top: str, path: str) -> bytes | None:
    """Return the content of a file of moderate size; see `read_below`."""
    found = read_below(top, path, MOST_DOCKERFILE_BYTES)
    return None if found is None or len(found) > MOST_DOCKERFILE_BYTES else found
