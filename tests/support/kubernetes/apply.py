"""Server-side apply: merge what a field manager applies, and remove what it applied before and no longer does."""

from itertools import pairwise
from typing import Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.metadata import copy, timestamp
from tests.support.kubernetes.patches import MERGE_KEYS
from tests.support.kubernetes.resources import Object

Path = tuple[str, ...]
_SERVERS = ("apiVersion", "kind", "status")


def apply(target: Object, applied: Object, manager: str, *, force: bool, listed: bool) -> None:
    """Change `target` in place; `listed` merges lists by the keys of pods. Raises ApiError 409 on a conflict."""
    target_meta, wanted = target.setdefault("metadata", {}), copy(applied)
    wanted.get("metadata", {}).pop("managedFields", None)
    owners: dict[str, set[Path]] = {
        entry["manager"]: set(_paths(entry["fieldsV1"]))
        for entry in target_meta.get("managedFields", [])
        if entry["operation"] == "Apply"
    }
    leaves = _leaves(wanted, listed)
    for other, paths in owners.items():
        clash = [p for p in leaves if p in paths and other != manager and _read(target, p) != leaves[p]]
        if clash and not force:
            fields = ", ".join("".join(f".{part}" for part in path) for path in clash)
            raise ApiError(
                409, "Conflict", f'Apply failed with {len(clash)} conflict: conflict with "{other}": {fields}'
            )
        owners[other] = paths - set(clash)
    for path in owners.get(manager, set()) - leaves.keys():
        if not any(path in paths for other, paths in owners.items() if other != manager):
            _erase(target, path)
    for path, value in leaves.items():
        _write(target, path, value)
    owners[manager] = set(leaves)
    target_meta["managedFields"] = [
        {
            "manager": name,
            "operation": "Apply",
            "apiVersion": applied["apiVersion"],
            "time": timestamp(),
            "fieldsType": "FieldsV1",
            "fieldsV1": _fields(paths),
        }
        for name, paths in sorted(owners.items())
        if paths
    ]


def _leaves(value: Any, listed: bool, path: Path = ()) -> dict[Path, Any]:
    if isinstance(value, dict) and value:
        found: dict[Path, Any] = {}
        for key, item in value.items():
            if path or key not in _SERVERS:
                found |= _leaves(item, listed, (*path, f"f:{key}"))
        return found
    key = MERGE_KEYS.get(path[-1][2:]) if path and listed else None
    if key and isinstance(value, list) and all(isinstance(item, dict) and key in item for item in value):
        found = {}
        for item in value:
            found |= _leaves(item, listed, (*path, f"k:{key}={item[key]}"))
        return found
    return {path: value} if path not in (("f:metadata", "f:name"), ("f:metadata", "f:namespace")) else {}


def _step(value: Any, part: str, *, make: bool) -> Any:
    if part.startswith("f:"):
        if not isinstance(value, dict):
            return None
        return value.setdefault(part[2:], {}) if make else value.get(part[2:])
    key, _, wanted = part[2:].partition("=")
    found = next((item for item in value or [] if str(item.get(key)) == wanted), None)
    if found is None and make:
        found = {key: int(wanted) if wanted.isdigit() else wanted}
        value.append(found)
    return found


def _read(target: Any, path: Path) -> Any:
    for part in path:
        target = _step(target, part, make=False)
    return target


def _write(target: Any, path: Path, value: Any) -> None:
    for part, following in pairwise(path):
        if following.startswith("k:") and not isinstance(target.get(part[2:]), list):
            target[part[2:]] = []
        target = _step(target, part, make=True)
    target[path[-1][2:]] = value


def _erase(target: Any, path: Path) -> None:
    parent = _read(target, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1][2:], None)


def _fields(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        node = tree
        for part in path:
            node = node.setdefault(part, {})
    return tree


def _paths(tree: Object, path: Path = ()) -> list[Path]:
    return [leaf for key, node in tree.items() for leaf in _paths(node, (*path, key))] if tree else [path]
