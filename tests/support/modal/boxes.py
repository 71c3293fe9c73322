"""Sandboxes of tests, which end with them."""

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

from tests.support.kubernetes.images import BUSYBOX


def new_app(sdk: Any) -> Any:
    """Make an app of its own."""
    return sdk.App.lookup(f"app-{uuid.uuid4().hex[:8]}", create_if_missing=True)


class Boxes:
    """Makes sandboxes of an app."""

    def __init__(self, sdk: Any, app: Any) -> None:
        self.sdk = sdk
        self.app = app
        self.made: list[Any] = []

    def create(self, *argv: str, reference: str = BUSYBOX, **options: Any) -> Any:
        """Create a sandbox from a reference, or an `image`."""
        image = options.pop("image", None) or self.sdk.Image.from_registry(reference)
        made = self.sdk.Sandbox.create(*argv, app=self.app, image=image, **options)
        self.made.append(made)
        return made

    def clear(self) -> None:
        """End all, and wait until they have ended."""
        for made in self.made:
            made.terminate()
            with contextlib.suppress(self.sdk.exception.SandboxTimeoutError):
                made.wait(raise_on_termination=False)


@contextlib.contextmanager
def boxes_of(sdk: Any, app: Any) -> Iterator[Boxes]:
    """Yield a maker of sandboxes, and end what it has made."""
    made = Boxes(sdk, app)
    try:
        yield made
    finally:
        made.clear()


def output(process: Any) -> tuple[Any, Any, int]:
    """Wait for a process; return what it wrote to stdout and stderr, and its exit code."""
    return process.stdout.read(), process.stderr.read(), process.wait()
