"""The functions of *crafty*: images, sandboxes and processes by eleven plain functions, over the blocking client.

    image_id = create_image("project", clean=False, provider=Provider.LOCAL)
    sandbox_id = create_sandbox(image_id, Provider.LOCAL)
    launch_background_process("server", sandbox_id, "python3 -m http.server")
    for text in launch_and_stream_process("tests", sandbox_id, "make test"):
        print(text, end="")
    attach_to_process("server", sandbox_id)  # on this terminal; C-b d leaves it
    kill_process("server", sandbox_id)
    terminate_sandbox(sandbox_id)

The ``list_*`` functions return ids, of processes names; each has one beside it that returns records, of a type for each
provider.

Every process has a tmux session of its own wherever the sandbox has tmux. Where it has none the process has no
terminal: all functions work alike, and its output and errors stay apart in the journal. What the originals left open is
decided here as Sandkeep has it: names are unique among the processes of a sandbox that have not ended, ended things are
hidden unless `list_all`, an exit code is kept, and everything outlives both the caller and the daemon.

Each call connects to the daemon that ``SANDKEEP_SOCKET`` names and raises `sandkeep.errors.SandkeepError`.
"""

from sandkeep.compat.crafty.executor import CommandProcess, Executor, SandboxExecutor, get_executor
from sandkeep.compat.crafty.functions import (
    attach_to_process,
    connect_to_sandbox,
    create_image,
    create_sandbox,
    get_image,
    get_process,
    get_sandbox,
    get_ssh,
    kill_process,
    launch_and_stream_process,
    launch_background_process,
    list_images,
    list_images_records,
    list_processes,
    list_processes_records,
    list_sandboxes,
    list_sandboxes_records,
    terminate_sandbox,
)
from sandkeep.compat.crafty.records import (
    DockerImageRecord,
    DockerSandboxRecord,
    ImageRecord,
    LocalImageRecord,
    LocalSandboxRecord,
    ModalImageRecord,
    ModalSandboxRecord,
    ProcessRecord,
    Provider,
    SandboxRecord,
)
from sandkeep.compat.crafty.ssh import SshRecord

__all__ = [
    "CommandProcess",
    "DockerImageRecord",
    "DockerSandboxRecord",
    "Executor",
    "ImageRecord",
    "LocalImageRecord",
    "LocalSandboxRecord",
    "ModalImageRecord",
    "ModalSandboxRecord",
    "ProcessRecord",
    "Provider",
    "SandboxExecutor",
    "SandboxRecord",
    "SshRecord",
    "attach_to_process",
    "connect_to_sandbox",
    "create_image",
    "create_sandbox",
    "get_executor",
    "get_image",
    "get_process",
    "get_sandbox",
    "get_ssh",
    "kill_process",
    "launch_and_stream_process",
    "launch_background_process",
    "list_images",
    "list_images_records",
    "list_processes",
    "list_processes_records",
    "list_sandboxes",
    "list_sandboxes_records",
    "terminate_sandbox",
]
