"""Every setting there is, in the order in which the reference tells of them, whatever was imported before."""

from typing import Any, Final

from sandkeep import docker_settings, gvisor_settings, settings, storage_settings
from sandkeep.settings import Setting

ALL_SETTINGS: Final[dict[str, Setting[Any]]] = {
    setting.name: setting
    for module in (settings, docker_settings, gvisor_settings, storage_settings)
    for setting in vars(module).values()
    if isinstance(setting, Setting)
}
