"""The service in a process of its own, and the handle by which tests start and control it.

    python -m tests.support.modal.service --dir DIR [--image REFERENCE=ROOTFS]...

Files of sandboxes are in memory, and gone with the process.
"""

import argparse
import asyncio
import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.doubles import service

WORKSPACE: Final = "tests"


@dataclass(frozen=True)
class Modal:
    """A service that runs; `start_modal` owns its process."""

    url: str
    control_url: str
    token: Mapping[str, str]
    pid: int

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which the SDK finds the service, and nobody's own settings."""
        return {
            "MODAL_SERVER_URL": self.url,
            "MODAL_TOKEN_ID": self.token["id"],
            "MODAL_TOKEN_SECRET": self.token["secret"],
            "MODAL_CONFIG_PATH": "/nonexistent",
            "MODAL_ENVIRONMENT": "main",
        }

    def fault(self, call: str, **options: Any) -> None:
        """Inject a fault into calls; see `faults.Fault`."""
        self.control("POST", "faults", {"call": call, **options})

    def clear_faults(self) -> None:
        """Remove all faults."""
        self.control("DELETE", "faults")

    def cut(self, call: str, *, drop: bool = False) -> int:
        """End calls that are being served, or with `drop` their connections; return how many."""
        answer: int = self.control("POST", "cut", {"call": call, "drop": drop})
        return answer

    def calls(self) -> dict[str, Any]:
        """`order`: the names of all calls; `counts`: their numbers; `open`: those that are being served."""
        answer: dict[str, Any] = self.control("GET", "calls")
        return answer

    def forget_calls(self) -> None:
        """Begin to record calls anew."""
        self.control("DELETE", "calls")

    def sandboxes(self) -> list[dict[str, Any]]:
        """All sandboxes of all workspaces: `id`, `name`, `tags`, `ended`, the `pid` of the first process, and the
        `definition` that the SDK sent.
        """
        answer: list[dict[str, Any]] = self.control("POST", "sandboxes", {})
        return answer

    def issue_token(self, workspace: str = WORKSPACE) -> dict[str, str]:
        """Make another token: `id` and `secret`."""
        answer: dict[str, str] = self.control("POST", "issue", {"workspace": workspace})
        return answer

    def revoke_token(self, token_id: str) -> None:
        """Refuse a token from now on."""
        self.control("POST", "revoke", {"token_id": token_id})

    def script(self, *, lifetime_s: float) -> None:
        """Change for how long tokens are valid that the service gives out itself, and refuse those that expired."""
        self.control("POST", "script", {"lifetime_s": lifetime_s})

    def control(self, method: str, what: str, body: Any = None) -> Any:
        """Send a request to `/double/WHAT`."""
        return service.control(self.control_url, method, what, body)


@contextlib.contextmanager
def start_modal(directory: Path, images: Mapping[str, str | Path] | None = None) -> Iterator[Modal]:
    """Run a service; `images` are root file systems by reference.

    Raises RuntimeError with its messages if it does not start.
    """
    with service.start("tests.support.modal.service", directory, images) as ready:
        yield Modal(**ready)


async def _serve(options: argparse.Namespace, stopped: asyncio.Event, announce: service.Announce) -> None:
    """Assemble the service and run it until it is told to stop."""
    from google.protobuf.json_format import MessageToDict
    from modal_proto import api_grpc, task_command_router_grpc
    from tests.support.doubles.processes import Launcher
    from tests.support.modal.access import Access
    from tests.support.modal.images import Images
    from tests.support.modal.objects import Objects
    from tests.support.modal.router import Router
    from tests.support.modal.sandbox_calls import SandboxPlane
    from tests.support.modal.sandboxes import Sandbox, Sandboxes
    from tests.support.modal.server import Service

    directory = _private_memory(options.dir / "files")
    launcher = Launcher()
    objects, access = Objects(), Access()
    images = Images(objects, launcher, directory / "images", dict(options.image))
    sandboxes = Sandboxes(objects, images, access, launcher, directory / "sandboxes")

    def describe() -> list[dict[str, Any]]:
        return [
            {
                "id": one.id,
                "workspace": one.workspace,
                "app_id": one.app_id,
                "name": one.name,
                "tags": one.tags,
                "ended": one.result is not None,
                "pid": one.container.pid if one.container else None,
                "definition": MessageToDict(one.definition, preserving_proto_field_name=True),
            }
            for one in objects.all(Sandbox)
        ]

    scripts = {"sandboxes": describe, "issue": access.issue, "revoke": access.revoke, "script": access.script}
    server = Service(scripts, images.uploads)
    plane = SandboxPlane(objects, images, access, sandboxes)
    router = Router(images, access, sandboxes)
    url, control_url = await server.start(
        {api_grpc.ModalClientBase: plane, task_command_router_grpc.TaskCommandRouterBase: router}
    )
    plane.router_url = url
    plane.upload_url = control_url
    announce({"url": url, "control_url": control_url, "token": access.issue(WORKSPACE), "pid": os.getpid()})
    await stopped.wait()
    await sandboxes.close()
    await server.stop()
    await launcher.close()


def _private_memory(directory: Path) -> Path:
    """Mount memory that only this process and its children see. What the host unmounts, they do not keep."""
    from tests.support.doubles import launcher

    directory.mkdir()
    launcher.unshare(launcher.NEW_MOUNTS)
    launcher.mount("none", "/", None, launcher.REC | launcher.SLAVE)
    launcher.mount("tmpfs", str(directory), "tmpfs", launcher.NODEV, "mode=0700")
    return directory


def main() -> None:
    """Run the service; see the module."""
    options = service.parser().parse_args()
    service.run(options, functools.partial(_serve, options))


if __name__ == "__main__":
    main()
