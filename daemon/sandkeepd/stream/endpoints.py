"""Which endpoint serves which path: the table of `frames.PATHS`, from the daemon's side."""

from sandkeepd.core import Core
from sandkeepd.history import History
from sandkeepd.processes import Processes
from sandkeepd.stream.events import Events
from sandkeepd.stream.logs import Logs
from sandkeepd.stream.session import Endpoint


def endpoints(core: Core, processes: Processes) -> dict[str, Endpoint]:
    """The endpoints by the first part of their path."""
    return {"logs": Logs(core, processes), "events": Events(core, History(core))}
