"""OpenAPI v3 schemas of custom resources: pruning, defaults and validation in one walk."""

import re
from datetime import datetime
from typing import Any

from tests.support.kubernetes.metadata import copy

Schema = dict[str, Any]

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


class Findings:
    """Fields that do not validate, as pairs of path and message, and paths of fields that were dropped as unknown."""

    def __init__(self) -> None:
        self.causes: list[tuple[str, str]] = []
        self.unknown: list[str] = []


def conform(schema: Schema, value: Any, path: str, found: Findings, old: Any = None) -> None:
    """Drop unknown fields, fill in defaults, and note what does not validate. Changes `value` in place."""
    if value is None and schema.get("nullable"):
        return
    if not _typed(schema, value):
        found.causes.append(
            (path, f'Invalid value: "{_type(value)}": {path} must be of type {schema["type"]}: "{_type(value)}"')
        )
        return
    if isinstance(value, dict):
        _conform_object(schema, value, path, found, old)
    elif isinstance(value, list):
        for place, item in enumerate(value):
            conform(schema.get("items", {}), item, f"{path}[{place}]", found)
    found.causes += [(path, message) for message in _limits(schema, value, old)]


def _conform_object(schema: Schema, value: dict[str, Any], path: str, found: Findings, old: Any) -> None:
    properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
    for key in [key for key, item in value.items() if item is None and not properties.get(key, {}).get("nullable")]:
        del value[key]
    for key, part in properties.items():
        if "default" in part and key not in value:
            value[key] = copy({"value": part["default"]})["value"]
    found.causes += [(f"{path}.{key}", "Required value") for key in schema.get("required", []) if key not in value]
    before = old if isinstance(old, dict) else {}
    for key in list(value):
        if key in properties:
            conform(properties[key], value[key], f"{path}.{key}", found, before.get(key))
        elif isinstance(extra, dict):
            conform(extra, value[key], f"{path}.{key}", found)
        elif not extra and not schema.get("x-kubernetes-preserve-unknown-fields"):
            found.unknown.append(f"{path}.{key}".lstrip("."))
            del value[key]


def _typed(schema: Schema, value: Any) -> bool:
    if schema.get("x-kubernetes-int-or-string"):
        return isinstance(value, (int, str)) and not isinstance(value, bool)
    wanted = schema.get("type")
    if wanted is None:
        return True
    return isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))


def _type(value: Any) -> str:
    if value is None:
        return "null"
    return next(name for name in ("boolean", *_TYPES) if isinstance(value, _TYPES[name]))


def _limits(schema: Schema, value: Any, old: Any) -> list[str]:
    found = []
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{item}"' for item in schema["enum"])
        found.append(f'Unsupported value: "{value}": supported values: {supported}')
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"Invalid value: {value}: should be greater than or equal to {schema['minimum']}")
    if "maximum" in schema and value > schema["maximum"]:
        found.append(f"Invalid value: {value}: should be less than or equal to {schema['maximum']}")
    size = len(value) if isinstance(value, (str, list, dict)) else 0
    if size < max(schema.get(key, 0) for key in ("minLength", "minItems", "minProperties")):
        found.append("Invalid value: should have more characters or items")
    if size > min(schema.get(key, size) for key in ("maxLength", "maxItems", "maxProperties")):
        found.append("Too long: may not have more characters or items")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"Invalid value: \"{value}\": should match '{schema['pattern']}'")
    if schema.get("format") == "date-time" and not _is_time(value):
        found.append(f'Invalid value: "{value}": must be a date-time in RFC 3339 format')
    rules = [rule["rule"] for rule in schema.get("x-kubernetes-validations", [])]
    if "self == oldSelf" in rules and old is not None and value != old:
        found.append("Invalid value: field is immutable")
    return found


def _is_time(value: str) -> bool:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return bool(re.match(r"^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$", value))
