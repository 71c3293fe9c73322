"""Every setting, in the order of the reference, independent of the order of imports."""

from typing import Any, Final

from sandkeep.settings import astraforge, daemon, docker, gvisor, kubernetes, modal, storage
from sandkeep.settings.daemon import Setting

ALL_SETTINGS: Final[dict[str, Setting[Any]]] = {
    setting.name: setting
    for module in (daemon, docker, gvisor, kubernetes, modal, storage, astraforge)
    for setting in vars(module).values()
    if isinstance(setting, Setting)
}
