"""The volumes of a pod, as directories of the node: emptyDir, configMap, secret, projected of both."""

import base64
import os
from typing import Any

from tests.support.kubernetes.store import Store

Object = dict[str, Any]


class NotReadyError(Exception):
    """A container that cannot be created yet: the reason and the message of its waiting state."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def make_volumes(store: Store, pod: Object, directory: str) -> dict[str, str]:
    """Make the volumes of a pod below `directory`; return their paths by name. Raises NotReadyError."""
    group = pod["spec"].get("securityContext", {}).get("fsGroup")
    found = {}
    for volume in pod["spec"].get("volumes", []):
        path = found[volume["name"]] = f"{directory}/{volume['name']}"
        if "emptyDir" in volume:
            os.makedirs(path, exist_ok=True)
            os.chown(path, -1, -1 if group is None else group)
            os.chmod(path, 0o777 if group is None else 0o2777)
        elif not os.path.lexists(f"{path}/..data"):
            _write(path, _files(store, pod["metadata"]["namespace"], volume), group)
    return found


def _files(store: Store, namespace: str, volume: Object) -> dict[str, tuple[bytes, int]]:
    """Return the content and mode of the files of a volume by path."""
    if "projected" in volume:
        projected = volume["projected"]
        sources = [{"projected": projected, **source} for source in projected.get("sources", [])]
        mode = projected.get("defaultMode", 0o644)
        return {name: file for source in sources for name, file in _of(store, namespace, source, mode).items()}
    return _of(store, namespace, volume, 0o644)


def _of(store: Store, namespace: str, volume: Object, mode: int) -> dict[str, tuple[bytes, int]]:
    if "configMap" in volume:
        source, resource, name = volume["configMap"], "configmaps", volume["configMap"]["name"]
    elif "secret" in volume:
        source, resource = volume["secret"], "secrets"
        name = source.get("secretName") or source["name"]
    else:
        raise NotReadyError("ContainerCreating", f"unsupported volume: {', '.join(volume)}")
    found = store.get(resource, namespace, name)
    if found is None and not source.get("optional"):
        kind = resource.removesuffix("s")
        raise NotReadyError("ContainerCreating", f'MountVolume.SetUp failed: {kind} "{name}" not found')
    return _selected(_data(resource, found or {}), source, source.get("defaultMode", mode))


def _data(resource: str, found: Object) -> dict[str, bytes]:
    data = found.get("data") or {}
    if resource == "secrets":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary = {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}
    return {**{key: value.encode() for key, value in data.items()}, **binary}


def _selected(data: dict[str, bytes], source: Object, mode: int) -> dict[str, tuple[bytes, int]]:
    if "items" not in source:
        return {key: (value, mode) for key, value in data.items()}
    missing = [item["key"] for item in source["items"] if item["key"] not in data]
    if missing and not source.get("optional"):
        raise NotReadyError("ContainerCreating", f"references non-existent config key: {missing[0]}")
    return {
        item["path"]: (data[item["key"]], item.get("mode", mode)) for item in source["items"] if item["key"] in data
    }


def _write(path: str, files: dict[str, tuple[bytes, int]], group: int | None) -> None:
    """Write files as the kubelet does: links through `..data` to a directory that an update would replace."""
    os.makedirs(f"{path}/..1", 0o755)
    for name, (content, mode) in files.items():
        place = f"{path}/..1/{name}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(content)
            os.fchown(file.fileno(), -1, -1 if group is None else group)
            os.fchmod(file.fileno(), mode if group is None else mode | 0o440)
    for name in sorted({name.split("/")[0] for name in files}):
        os.symlink(f"..data/{name}", f"{path}/{name}")
    os.symlink("..1", f"{path}/..data")
