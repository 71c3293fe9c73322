"""The daemon's endpoint of each path: the table of `frames.PATHS`."""

from functools import partial

from sandkeepd.core.call import Handler
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sessions.activity import Activity
from sandkeepd.stream.attach import attach
from sandkeepd.stream.cloud_run import CloudRun
from sandkeepd.stream.events import events
from sandkeepd.stream.files import files
from sandkeepd.stream.logs import logs
from sandkeepd.stream.session import Endpoint

CLOUD_RUN = "cloud_run"
"""The endpoint of paths that are another protocol's."""


def endpoints(
    core: Core, handle: Handler, processes: Processes, activity: Activity, cloud_run: CloudRun | None = None
) -> dict[str, Endpoint]:
    """The endpoints by the first part of their path. `handle` answers calls."""
    found: dict[str, Endpoint] = {
        "logs": partial(logs, core, processes, activity),
        "events": partial(events, core, activity),
        "attach": partial(attach, core, processes, activity),
        "files": partial(files, core, handle),
    }
    return found if cloud_run is None else {**found, CLOUD_RUN: cloud_run}
