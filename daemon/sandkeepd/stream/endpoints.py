"""The daemon's endpoint of each path: the table of `frames.PATHS`."""

from functools import partial

from sandkeepd.core.core import Core
from sandkeepd.sandboxes.files import Files
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.runtimes import Runtimes
from sandkeepd.stream.attach import attach
from sandkeepd.stream.events import events
from sandkeepd.stream.files import files
from sandkeepd.stream.logs import logs
from sandkeepd.stream.session import Endpoint


def endpoints(core: Core, runtimes: Runtimes, processes: Processes) -> dict[str, Endpoint]:
    """The endpoints by the first part of their path."""
    return {
        "logs": partial(logs, core, processes),
        "events": partial(events, core),
        "attach": partial(attach, core, processes),
        "files": partial(files, core, Files(core, runtimes)),
    }
