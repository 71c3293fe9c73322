"""Label and field selectors."""

import re
from collections.abc import Callable
from typing import Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.resources import Object, Resource

Labels = dict[str, str]
Test = Callable[[Labels], bool]

_NAME = r"(?:[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)"
_KEY = rf"(?:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_NAME}"
_EQUALITY = re.compile(rf"^(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_NAME}?)$")
_SET = re.compile(rf"^(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)$")
_EXISTENCE = re.compile(rf"^(?P<operator>!?)\s*(?P<key>{_KEY})$")

_FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "pods": {
        "spec.nodeName": ("spec", "nodeName"),
        "spec.restartPolicy": ("spec", "restartPolicy"),
        "spec.schedulerName": ("spec", "schedulerName"),
        "spec.serviceAccountName": ("spec", "serviceAccountName"),
        "status.phase": ("status", "phase"),
        "status.podIP": ("status", "podIP"),
    },
    "namespaces": {"status.phase": ("status", "phase")},
    "secrets": {"type": ("type",)},
    "events": {
        "involvedObject.kind": ("involvedObject", "kind"),
        "involvedObject.name": ("involvedObject", "name"),
        "involvedObject.namespace": ("involvedObject", "namespace"),
        "involvedObject.uid": ("involvedObject", "uid"),
        "reason": ("reason",),
        "type": ("type",),
    },
}
_METADATA = {"metadata.name": ("metadata", "name"), "metadata.namespace": ("metadata", "namespace")}


def label_selector(text: str) -> Test:
    """Parse `a=b,c!=d,e in (f,g),h notin (i),j,!k`. Raises ApiError 400."""
    tests = [_requirement(part.strip()) for part in re.split(r",(?![^(]*\))", text) if part.strip()]
    return lambda labels: all(test(labels) for test in tests)


def matches_selector(selector: dict[str, Any], labels: Labels) -> bool:
    """Tell whether a LabelSelector object (matchLabels, matchExpressions) selects these labels."""
    equal = all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return equal and all(
        _test(part["key"], part["operator"].lower(), part.get("values", []))(labels)
        for part in selector.get("matchExpressions", [])
    )


def object_selector(resource: Resource, labels: str | None, fields: str | None) -> Callable[[Object], bool] | None:
    """The test that a list or watch applies; None if it takes every object. Raises ApiError 400."""
    if not labels and not fields:
        return None
    by_label = label_selector(labels or "")
    by_field = _field_selector(resource, fields or "")
    return lambda obj: by_label(obj["metadata"].get("labels", {})) and by_field(obj)


def _requirement(text: str) -> Test:
    if found := _EQUALITY.match(text):
        operator = "notin" if found["operator"] == "!=" else "in"
        return _test(found["key"], operator, [found["value"]])
    if found := _SET.match(text):
        return _test(found["key"], found["operator"], [value.strip() for value in found["values"].split(",")])
    if found := _EXISTENCE.match(text):
        return _test(found["key"], "doesnotexist" if found["operator"] else "exists", [])
    raise ApiError(400, "BadRequest", f"unable to parse requirement: found '{text}'")


def _test(key: str, operator: str, values: list[str]) -> Test:
    tests: dict[str, Test] = {
        "in": lambda labels: labels.get(key) in values,
        "notin": lambda labels: labels.get(key) not in values,
        "exists": lambda labels: key in labels,
        "doesnotexist": lambda labels: key not in labels,
    }
    return tests[operator]


def _field_selector(resource: Resource, text: str) -> Callable[[Object], bool]:
    known = _METADATA | _FIELDS.get(resource.key, {})
    terms: list[tuple[tuple[str, ...], bool, str]] = []
    for part in filter(None, text.split(",")):
        found = re.match(r"^([^=!]+)(==|=|!=)(.*)$", part)
        if found is None:
            raise ApiError(400, "BadRequest", f"invalid field selector: {part}")
        if found[1] not in known:
            message = f'Unable to find "{resource.key}" that match: field label not supported: {found[1]}'
            raise ApiError(400, "BadRequest", message)
        terms.append((known[found[1]], found[2] != "!=", found[3]))
    return lambda obj: all((_field(obj, path) == value) is equal for path, equal, value in terms)


def _field(obj: Object, path: tuple[str, ...]) -> str:
    value: Any = obj
    for part in path:
        value = value.get(part, {})
    return value if isinstance(value, str) else ""
