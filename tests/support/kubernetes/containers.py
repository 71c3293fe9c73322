"""The part of a pod that says how a container runs: user, environment, mounts. See `runtime.ContainerSpec`."""

import base64
import os
import re
from typing import Any

from tests.support.kubernetes.runtime import ContainerSpec, Mount
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.volumes import NotReadyError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
Object = dict[str, Any]

_UNITS = {None: 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def container_spec(
    store: Store, pod: Object, container: Object, directory: str, image: str, volumes: dict[str, str]
) -> ContainerSpec:
    """Return how to start one of a pod's containers. Raises NotReadyError."""
    security = {**pod["spec"].get("securityContext", {}), **container.get("securityContext", {})}
    argv = [*container.get("command", []), *container.get("args", [])]
    if not argv:
        raise NotReadyError("CreateContainerError", "no command specified")
    uid = security.get("runAsUser", 0)
    if security.get("runAsNonRoot") and uid == 0:
        why = "container has runAsNonRoot and image will run as root"
        raise NotReadyError("CreateContainerConfigError", why)
    env = {"PATH": PATH, "HOSTNAME": hostname(pod), "HOME": _home(image, uid), **_environment(store, pod, container)}
    variables = {name: value for name, value in env.items() if value is not None}
    process = {
        "argv": [_expanded(word, variables) for word in argv],
        "env": variables,
        "cwd": container.get("workingDir", "/"),
        "uid": uid,
        "gid": security.get("runAsGroup", 0),
        "groups": sorted({*security.get("supplementalGroups", []), *_fs_group(security)}),
        "tty": False,
        "privileged": False,
        "drop_all": "ALL" in security.get("capabilities", {}).get("drop", []),
        "no_new_privileges": not security.get("allowPrivilegeEscalation", True),
    }
    return ContainerSpec(
        directory=directory,
        image=image,
        hostname=hostname(pod),
        read_only=security.get("readOnlyRootFilesystem", False),
        mounts=_mounts(pod, container, volumes),
        process=process,
        fs_group=security.get("fsGroup"),
        memory=_bytes(container.get("resources", {}).get("limits", {}).get("memory")),
    )


def hostname(pod: Object) -> str:
    """Return the host name of a pod."""
    name: str = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return name[:63].rstrip("-.")


def _fs_group(security: Object) -> list[int]:
    return [security["fsGroup"]] if "fsGroup" in security else []


def _bytes(quantity: str | None) -> int | None:
    found = re.fullmatch(r"(\d+)([KMG]i)?", str(quantity))
    return int(found[1]) * _UNITS[found[2]] if found else None


def _home(image: str, uid: int) -> str:
    try:
        with open(f"{image}/etc/passwd", encoding="utf-8") as file:
            fields = [line.strip().split(":") for line in file]
    except OSError:
        return "/"
    return next((line[5] for line in fields if len(line) == 7 and line[2] == str(uid)), "/")


def _environment(store: Store, pod: Object, container: Object) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for entry in container.get("env", []):
        source = entry.get("valueFrom")
        known = {name: value for name, value in found.items() if value is not None}
        found[entry["name"]] = _referenced(store, pod, source) if source else _expanded(entry.get("value", ""), known)
    return found


def _referenced(store: Store, pod: Object, source: Object) -> str | None:
    if "fieldRef" in source:
        value: Any = pod
        for key in source["fieldRef"]["fieldPath"].split("."):
            value = value.get(key, {})
        return value if isinstance(value, str) else ""
    for field, resource in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if field in source:
            return _key_of(store, pod["metadata"]["namespace"], resource, source[field])
    raise NotReadyError("CreateContainerConfigError", f"unsupported valueFrom: {', '.join(source)}")


def _key_of(store: Store, namespace: str, resource: str, reference: Object) -> str | None:
    found = store.get(resource, namespace, reference["name"])
    value: str | None = (found or {}).get("data", {}).get(reference["key"])
    if value is not None:
        return base64.b64decode(value).decode() if resource == "secrets" else value
    if reference.get("optional"):
        return None
    missing = f"couldn't find key {reference['key']} in" if found else ""
    kind = resource.removesuffix("s")
    where = f'{missing} {kind} "{reference["name"]}"'.strip()
    raise NotReadyError("CreateContainerConfigError", where if found else f"{where} not found")


def _expanded(text: str, variables: dict[str, str]) -> str:
    """Replace `$(NAME)` where it is known; `$$` stands for `$`."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]+)\)", value, text)


def _mounts(pod: Object, container: Object, volumes: dict[str, str]) -> list[Mount]:
    kinds = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    found = []
    for mount in container.get("volumeMounts", []):
        empty = "emptyDir" in kinds[mount["name"]]
        source = volumes[mount["name"]]
        if mount.get("subPath"):
            source = os.path.join(source, mount["subPath"])
            if empty:
                os.makedirs(source, exist_ok=True)
        found.append(Mount(source, mount["mountPath"], mount.get("readOnly", False) or not empty, empty))
    return sorted(found, key=lambda mount: mount.target.count("/"))
