"""Stands for a daemon that is killed: makes a sandbox and processes, tells of them, and dies.

python -m tests.conformance.crashing_daemon KIND STATE_DIR IMAGE_ID LOG_ID DETAILS FILES SOCKET KUBECONFIG ACCOUNT

DETAILS are those of the image, FILES those of plans, as JSON; SOCKET is the Docker engine's, KUBECONFIG the cluster's:
empty for the others. ACCOUNT is that at Modal as JSON, null for the others.
"""

import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import trio
from tests.conformance.conftest import World, start

from sandkeep.ids import PROCESS, new_id
from sandkeepd.providers.modal.sdk import Account


async def main(kind: str, state: str, image_id: str, log_id: str, *more: str) -> None:
    details, files, socket, kubeconfig, account = more
    world = World(
        kind, Path(state), Path(state), socket=socket or None, kubeconfig=kubeconfig or None,
        account=msgspec.json.decode(account, type=Account | None),
    )  # fmt: skip
    world.image_id, world.log_id, world.details, world.files = image_id, log_id, json.loads(details), json.loads(files)
    async with AsyncExitStack() as stack:
        await world.open(stack)
        instance = await world.sandbox(secrets={"SHARED": "kept"})
        ended = await start(instance, "sh", "-c", "exit 6")
        await instance.wait(ended)
        running = await start(instance, "sh", "-c", "echo before; cat; exit 5", stdin=True)
        told = {
            "sandbox_id": instance.sandbox_id, "plan": world.plans[instance.sandbox_id], "handle": instance.handle,
            "isolation": msgspec.to_builtins(instance.isolation), "ended": ended, "running": running,
            "pid": await instance.find(running), "never": new_id(PROCESS),
        }  # fmt: skip
        print(json.dumps(told), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


trio.run(main, *sys.argv[1:])
