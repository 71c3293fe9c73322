"""The daemon's endpoint of each path: the table of `frames.PATHS`."""

from sandkeepd.core.core import Core
from sandkeepd.eventlog.history import History
from sandkeepd.sandboxes.files import Files
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.runtimes import Runtimes
from sandkeepd.stream.attach import Attach
from sandkeepd.stream.events import Events
from sandkeepd.stream.files import FileStreams
from sandkeepd.stream.logs import Logs
from sandkeepd.stream.session import Endpoint


def endpoints(core: Core, runtimes: Runtimes, processes: Processes) -> dict[str, Endpoint]:
    """The endpoints by the first part of their path."""
    return {
        "logs": Logs(core, processes),
        "events": Events(core, History(core)),
        "attach": Attach(core, processes),
        "files": FileStreams(core, Files(core, runtimes)),
    }
