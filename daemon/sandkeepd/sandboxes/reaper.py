"""The reaper: the only place that decides by itself to end a sandbox, but for shared ones that are saved first.

A sandbox's lifetime is looked at first, then whether it is idle; one in which a process runs is never idle.
"""

import logging
from functools import partial

import trio

from sandkeep.protocol.clock import now_us
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.core import rules
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.termination import Termination

logger = logging.getLogger("sandkeepd")

LOOK_EVERY_S = 1.0


def reason_to_end(sandbox: SandboxState, moment_us: int) -> str | None:
    """``max_lifetime`` or ``idle_timeout`` when one of them has passed for a sandbox that runs or is suspended, else
    None.
    """
    if sandbox.status not in rules.STANDING:
        return None
    spec = sandbox.spec
    if spec.max_lifetime_s is not None and moment_us >= sandbox.requested_us + spec.max_lifetime_s * 1e6:
        return "max_lifetime"
    idle = spec.idle_timeout_s is not None and not sandbox.active
    if idle and moment_us >= sandbox.last_activity_us + (spec.idle_timeout_s or 0) * 1e6:
        return "idle_timeout"
    return None


async def run(core: Core, termination: Termination) -> None:
    """End sandboxes that are due, once a second, until cancelled. After a disk failure, retry in the next round."""
    while True:
        await trio.sleep(LOOK_EVERY_S)
        moment = now_us()
        for sandbox in list(core.state.sandboxes.values()):
            shared = sandbox.spec.shared
            reason = None if shared is not None and shared.is_movable else reason_to_end(sandbox, moment)
            if reason is not None and sandbox.sandbox_id not in termination.unrecorded:
                logger.info("reaping", extra={"sandbox_id": sandbox.sandbox_id, "reason": reason})
                await core.run_logged(partial(termination.end, sandbox.sandbox_id, reason), "reaping")
