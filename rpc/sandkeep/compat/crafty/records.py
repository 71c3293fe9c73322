"""The records of images, sandboxes and processes: what they share, and a type for each of the originals' providers."""

import enum
from pathlib import Path
from typing import Any

from msgspec import Struct

from sandkeep import model
from sandkeep.compat.crafty import local_directories

SHELL_NAME = "shell"
"""The process, and so the tmux session, that `connect_to_sandbox` is with."""


class Provider(enum.Enum):
    """The provider of a sandbox."""

    LOCAL = "local"
    DOCKER = "docker"
    MODAL = "modal"
    GVISOR = "gvisor"
    KUBERNETES = "kubernetes"


class ImageRecord(Struct, frozen=True, kw_only=True):
    """An image. `created_at` is a time as in RFC 3339."""

    image_id: str
    provider: Provider
    created_at: str


class LocalImageRecord(ImageRecord, frozen=True, kw_only=True):
    """A copied directory. `image_path` is the copy's path, in the state directory of the daemon."""

    image_path: Path


class ModalImageRecord(ImageRecord, frozen=True, kw_only=True):
    """An image at Modal; its id there is None until it is built."""

    modal_image_id: str | None


class DockerImageRecord(ImageRecord, frozen=True, kw_only=True):
    """An image of the Docker engine; None until it is built."""

    docker_image_id: str | None
    docker_image_tag: str | None


class SandboxRecord(Struct, frozen=True, kw_only=True):
    """A sandbox."""

    sandbox_id: str
    image_id: str
    provider: Provider
    created_at: str
    is_closed: bool = False


class LocalSandboxRecord(SandboxRecord, frozen=True, kw_only=True):
    """A local sandbox. `sandbox_path` is its directory below ``~/.crafty/local_sandboxes``: see `get_sandbox`.
    `tmux_session_name` is the session that `connect_to_sandbox` is with.
    """

    sandbox_path: Path
    tmux_session_name: str


class ModalSandboxRecord(SandboxRecord, frozen=True, kw_only=True):
    """A sandbox at Modal; its id there is None until it was created."""

    modal_sandbox_id: str | None


class DockerSandboxRecord(SandboxRecord, frozen=True, kw_only=True):
    """A container; None until it was created."""

    container_id: str | None
    container_name: str | None


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """A process. `tmux_session_name` is None where the sandbox has no tmux; `exit_code` is there once it is known."""

    process_id: str
    name: str
    sandbox_id: str
    created_at: str
    tmux_session_name: str | None
    is_terminated: bool = False
    exit_code: int | None = None


def image_record(image: model.Image, state_dir: str) -> ImageRecord:
    """Return the record of an image. The daemon keeps its files below `state_dir`."""
    provider = Provider(image.provider)
    common: dict[str, Any] = {"image_id": image.image_id, "provider": provider, "created_at": image.created_at}
    match provider:
        case Provider.LOCAL:
            return LocalImageRecord(**common, image_path=Path(state_dir, "images", image.image_id, "root"))
        case Provider.MODAL:
            return ModalImageRecord(**common, modal_image_id=image.modal_image_id)
        case Provider.DOCKER:
            tag = image.docker_image_tag
            return DockerImageRecord(**common, docker_image_id=image.docker_image_id, docker_image_tag=tag)
        case _:
            return ImageRecord(**common)


def sandbox_record(sandbox: model.Sandbox) -> SandboxRecord:
    """Return the record of a sandbox."""
    provider = Provider(sandbox.provider)
    common: dict[str, Any] = {
        "sandbox_id": sandbox.sandbox_id, "image_id": sandbox.image_id, "provider": provider,
        "created_at": sandbox.created_at, "is_closed": sandbox.status in ("stopping", "stopped", "failed", "lost"),
    }  # fmt: skip
    match provider:
        case Provider.LOCAL:
            path = local_directories.path_of(sandbox.sandbox_id)
            return LocalSandboxRecord(**common, sandbox_path=path, tmux_session_name=SHELL_NAME)
        case Provider.MODAL:
            return ModalSandboxRecord(**common, modal_sandbox_id=sandbox.modal_sandbox_id)
        case Provider.DOCKER:
            name = sandbox.container_name
            return DockerSandboxRecord(**common, container_id=sandbox.container_id, container_name=name)
        case _:
            return SandboxRecord(**common)


def process_record(process: model.Process) -> ProcessRecord:
    """Return the record of a process."""
    return ProcessRecord(
        process_id=process.process_id,
        name=process.name,
        sandbox_id=process.sandbox_id,
        created_at=process.requested_at,
        tmux_session_name=process.tmux_session,
        is_terminated=process.status not in ("starting", "running"),
        exit_code=process.exit_code,
    )
