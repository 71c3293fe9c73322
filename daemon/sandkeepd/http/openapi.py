"""The OpenAPI document of the gateway, made from the table of routes and the types of its bodies."""

import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct

from sandkeep.model import Name
from sandkeep.protocol.methods import METHODS, Mutation
from sandkeep.version import VERSION
from sandkeepd.http.problems import MEDIA_TYPE, Problem
from sandkeepd.http.row import JSON, PREFIX, Row

_IN_PATH: Final = re.compile(r"{(\w+)}")
_REFERENCE: Final = "#/components/schemas/{name}"
_ALWAYS: Final = (400, 401, 403, 404, 409, 429, 503, 504)
"""Statuses of problems that any route may answer."""


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the document."""
    types = [Problem, *_types(rows)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    schema_of = dict(zip(map(_key, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for row in rows:
        paths.setdefault(PREFIX + row.path, {})[row.verb.lower()] = _operation(row, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sandkeep",
            "version": VERSION,
            "summary": "Sandbox sessions over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}, {"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    }


def _types(rows: Sequence[Row]) -> list[Any]:
    found: dict[str, Any] = {}
    for row in rows:
        for kind in (row.body, row.answer, row.query):
            if kind is not None:
                found[_key(kind)] = kind
    return list(found.values())


def _key(kind: Any) -> str:
    return str(kind)


def _operation(row: Row, schema_of: Mapping[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": row.name, "summary": row.summary}
    parameters = list(_parameters(row, schema_of, components))
    if parameters:
        found["parameters"] = parameters
    if row.body is not None:
        found["requestBody"] = {"required": True, "content": {row.takes: {"schema": schema_of[_key(row.body)]}}}
    elif row.takes != JSON:
        found["requestBody"] = {"required": True, "content": {row.takes: {}}}
    found["responses"] = {**_successes(row, schema_of), **_problems(row, schema_of)}
    return found


def _parameters(row: Row, schema_of: Mapping[str, Any], components: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in _IN_PATH.findall(row.path):
        yield {"name": name, "in": "path", "required": True, "schema": msgspec.json.schema(Name)}
    query = components.pop(schema_of[_key(row.query)]["$ref"].rpartition("/")[2], None) or _schema(row.query)
    for name, schema in query.get("properties", {}).items():
        described = {"name": name, "in": "query", "required": name in query.get("required", ()), "schema": schema}
        yield described
    if issubclass(METHODS[row.operation].params, Mutation):
        summary = "Given again within a day, with the same request, it gives the first answer again."
        yield {"name": "Idempotency-Key", "in": "header", "description": summary, "schema": msgspec.json.schema(Name)}


def _schema(kind: type[Struct]) -> dict[str, Any]:
    [_], components = msgspec.json.schema_components([kind])
    [schema] = components.values()
    return dict(schema)


def _successes(row: Row, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in row.statuses:
        found[str(status)] = {"description": HTTPStatus(status).phrase}
        if row.answer is not None:
            found[str(status)]["content"] = {row.sends: {"schema": schema_of[_key(row.answer)]}}
        elif row.sends != JSON:
            found[str(status)]["content"] = {row.sends: {}}
        if status == HTTPStatus.CREATED:
            found[str(status)]["headers"] = {"Location": {"schema": {"type": "string"}}}
    return found


def _problems(row: Row, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    statuses = {*_ALWAYS, *row.problems}
    if row.body is not None:
        statuses |= {408, 413}
    if row.verb != "GET":
        statuses |= {415}
    content = {MEDIA_TYPE: {"schema": schema_of[_key(Problem)]}}
    found = {str(status): {"description": HTTPStatus(status).phrase, "content": content} for status in sorted(statuses)}
    too_large = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE  # which no route answers, and so without a body
    return found | {str(too_large.value): {"description": too_large.phrase}}
