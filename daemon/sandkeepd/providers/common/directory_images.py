"""Images as directories of this machine: each is copied once, and sandboxes begin with it. See `Images`."""

import logging
import os
from collections.abc import Iterable

import trio

from sandkeep.errors import CallerError, SandkeepError
from sandkeep.ids import is_name
from sandkeep_store.threads import Threads
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, Images, ImportedImage
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.caller_paths import LeftOut, import_tree
from sandkeepd.host.threads import in_removal_thread
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.common.errors import converted_errors
from sandkeepd.providers.common.layout import IMAGE_MARK, Layout, log_of, unmount_below, write_mark
from sandkeepd.providers.common.packing import never_packed

logger = logging.getLogger("sandkeepd")


class DirectoryImages(Images):
    """The images of one state directory, which carry `log_id`. Tasks of `nursery` delete removed ones. `owner` is the
    uid of their files, None: the daemon's own user's.
    """

    def __init__(
        self, layout: Layout, log_id: str, in_thread: Threads, owner: int | None, nursery: trio.Nursery
    ) -> None:
        self._nursery = nursery
        self._deleting = Threads(1, abandon_on_cancel=True)
        self._layout = layout
        self._log_id = log_id
        self._in_thread = in_thread
        self._owner = owner

    def root(self, image_id: str) -> str:
        """Return the directory of an image's files. Raises `invalid` for a malformed id."""
        return f"{self._layout.image(image_id)}/root"

    async def make(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        self._layout.prepare()
        root = self.root(image_id)
        async with undo_on_error(self._undo, image_id):
            self.begin(image_id)
            hide = never_packed(self._layout.state_dir)
            left_out = LeftOut.of(request)
            return await import_tree(
                request.source,
                caller,
                root,
                owner=self._owner,
                hide=hide,
                left_out=left_out,
                progress=progress,
                check_size=request.check_size,
            )

    def begin(self, image_id: str) -> None:
        """Make the directory of an image, without its files. Blocks."""
        directory = self._layout.image(image_id)
        with converted_errors("the image"):
            os.mkdir(directory, 0o755)
            write_mark(f"{directory}/{IMAGE_MARK}", self._log_id)

    async def remove(self, image_id: str) -> None:
        """See `Images.remove`. The files are out of the way when this returns, and deleted in the background."""
        self._nursery.start_soon(self._delete, await self._put_in_trash(image_id))

    async def _undo(self, image_id: str) -> None:
        """Remove what was made of an image. When this returns its room is free: the disk may have been full."""
        await self._delete(await self._put_in_trash(image_id))

    async def _put_in_trash(self, image_id: str) -> list[str]:
        return await in_removal_thread(self._layout.put_in_trash, [self._layout.image(image_id)])

    async def _delete(self, moved: list[str]) -> None:
        """Delete files in the trash. Error handling: what stays there is deleted at the next start."""
        try:
            await self._deleting(self._layout.delete, moved)
        except SandkeepError as error:
            logger.warning("a removed image stays in the trash", extra={"why": error.message})

    async def open(self, image_id: str) -> int:
        """Open the directory of an image's files, for reading. Raises `not_found`."""
        root = self.root(image_id)
        try:
            return await self._in_thread(os.open, root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            raise CallerError("not_found", f"there is no image {image_id}", image_id=image_id) from None

    async def clean_up(self, ledger: Ledger) -> Swept:
        """Remove the images that no event owns; report those of other logs. Safe to repeat."""
        removed, foreign = [], []
        for image_id in filter(is_name, (await self._in_thread(self._layout.found))[1]):
            log_id = log_of(f"{self._layout.image(image_id)}/{IMAGE_MARK}")
            if log_id not in (None, self._log_id):
                foreign.append(f"directory {self._layout.image(image_id)} of log {log_id}")
            elif not ledger.owns_image(image_id):
                await self._in_thread(unmount_below, self._layout.image(image_id))
                await self.remove(image_id)
                removed.append(f"image {image_id}")
        return Swept(removed=removed, foreign=foreign)


async def require_directories(roots: Iterable[str]) -> None:
    """Raise `not_found` when one of the directories that a sandbox begins with is missing."""
    for root in roots:
        if not await trio.Path(root).is_dir():
            what = os.path.basename(os.path.dirname(root))
            raise CallerError("not_found", f"there is no image {what}", image_id=what)
