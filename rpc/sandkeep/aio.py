"""The client on asyncio, with the same methods as that on trio.

    async with sandkeep.aio.connect() as client:
        result = await client.sandbox.exec(sandbox_id, ["true"])

Any number of tasks may call at the same time; their calls are carried out side by side. There is no task in the
background. All tasks that use a client belong to one event loop.
"""

from sandkeep.clients.aio import Client, Events, Handed, connect

__all__ = ["Client", "Events", "Handed", "connect"]
