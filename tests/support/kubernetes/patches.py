"""The patch formats of the API: JSON patch, merge patch and strategic merge patch. All change the target in place."""

from typing import Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.metadata import copy

MERGE_KEYS = {
    "addresses": "type",
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "ephemeralContainers": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "ports": "containerPort",
    "resourceClaims": "name",
    "secrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
_SETS = {"finalizers"}


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386) and return the result."""
    if not isinstance(patch, dict):
        return patch
    result = target if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge(target: Any, patch: Any) -> Any:
    """Apply a strategic merge patch: lists with a merge key are merged by it, others are replaced."""
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    result = {} if directive == "delete" or not isinstance(target, dict) else target
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            field = key.partition("/")[2]
            result[field] = [item for item in result.get(field, []) if item not in value]
        elif key == "$retainKeys":
            for other in result.keys() - set(value):
                del result[other]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(key, result.get(key) or [], value)
        else:
            result[key] = strategic_merge(result.get(key), value)
    return result


def _merge_list(field: str, target: list[Any], patch: list[Any]) -> list[Any]:
    if field in _SETS:
        return target + [item for item in patch if item not in target]
    key = MERGE_KEYS.get(field)
    if key is None or not all(isinstance(item, dict) for item in patch):
        return patch
    if {"$patch": "replace"} in patch:
        return [item for item in patch if item != {"$patch": "replace"}]
    result = list(target)
    for item in patch:
        place = next((i for i, other in enumerate(result) if other.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            result = [other for other in result if other.get(key) != item.get(key)]
        elif place is None:
            result.append(strategic_merge({}, item))
        else:
            result[place] = strategic_merge(result[place], item)
    return result


def json_patch(target: Any, operations: Any) -> Any:
    """Apply a JSON patch (RFC 6902) and return the result. Raises ApiError 400 if malformed, 422 if not applicable."""
    if not isinstance(operations, list) or not all(isinstance(op, dict) for op in operations):
        raise ApiError(400, "BadRequest", "json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    for operation in operations:
        try:
            target = _operate(target, operation)
        except (LookupError, ValueError, TypeError) as error:
            message = "the server rejected our request due to an error in our request"
            raise ApiError(422, "Invalid", message) from error
    return target


def _operate(target: Any, operation: dict[str, Any]) -> Any:
    kind, path = operation["op"], _pointer(operation["path"])
    if kind == "test":
        if _look_up(target, path) != operation["value"]:
            raise ValueError("test failed")
        return target
    if kind == "remove":
        return _remove(target, path)
    if kind == "replace":
        _look_up(target, path)
        return _add(_remove(target, path), path, operation["value"]) if path else operation["value"]
    if kind == "add":
        return _add(target, path, operation["value"])
    if kind in ("move", "copy"):
        source = _pointer(operation["from"])
        value = copy({"value": _look_up(target, source)})["value"]
        return _add(_remove(target, source) if kind == "move" else target, path, value)
    raise ValueError(f"unexpected kind: {kind}")


def _pointer(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise ValueError(path)
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _look_up(target: Any, path: list[str]) -> Any:
    for part in path:
        target = target[int(part)] if isinstance(target, list) else target[part]
    return target


def _add(target: Any, path: list[str], value: Any) -> Any:
    if not path:
        return value
    parent = _look_up(target, path[:-1])
    if isinstance(parent, list):
        place = len(parent) if path[-1] == "-" else int(path[-1])
        if not 0 <= place <= len(parent):
            raise IndexError(path[-1])
        parent.insert(place, value)
    else:
        parent[path[-1]] = value
    return target


def _remove(target: Any, path: list[str]) -> Any:
    parent = _look_up(target, path[:-1])
    del parent[int(path[-1]) if isinstance(parent, list) else path[-1]]
    return target
