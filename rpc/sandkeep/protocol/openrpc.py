"""The OpenRPC document (https://spec.open-rpc.org), made from the table of methods. ``rpc.discover`` answers it."""

import typing
from functools import cache
from typing import Any, Final

import msgspec

import sandkeep
from sandkeep.errors import CODES, MEANINGS
from sandkeep.protocol.jsonrpc import number_of
from sandkeep.protocol.methods import METHODS, Access, Method

VERSION: Final = "1.3.2"
_SCHEMA_REF: Final = "#/components/schemas/{name}"


@cache
def document() -> dict[str, Any]:
    """Describe every method. The same document each time: do not change it."""
    types = [kind for row in METHODS.values() for kind in (row.params, row.result)]
    schemas, components = msgspec.json.schema_components(types, ref_template=_SCHEMA_REF)
    results = schemas[1::2]
    return {
        "openrpc": VERSION,
        "info": {
            "title": "Sandkeep",
            "version": sandkeep.__version__,
            "description": "A daemon that keeps sandboxes. One UTF-8 JSON message a line, on a Unix socket.",
            "license": {"name": "Apache-2.0"},
        },
        "methods": [
            _method(row, components[row.params.__name__], result)
            for row, result in zip(METHODS.values(), results, strict=True)
        ],
        "components": {"schemas": components, "errors": {code: _error(code) for code in CODES}},
    }


def error_codes(row: Method) -> list[str]:
    """Return the codes that a method may answer by its row. Codes of its object and provider are in the message."""
    expected = {
        "invalid": True,
        "not_found": bool(row.references) or row.access is Access.OWNER,
        "permission_denied": row.access is Access.ADMIN or bool(row.admin_if),
        "conflict": row.mutates,
        "not_ready": row.mutates,
        "timeout": row.deadline_s is not None,
        "storage_unavailable": row.mutates,
        "internal": True,
    }
    return [code for code, possible in expected.items() if possible]


def _method(row: Method, schema: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": row.name,
        "summary": row.summary,
        "tags": [{"name": row.name.partition(".")[0]}],
        "paramStructure": "by-name",
        "params": [
            {"name": name, "required": name in schema.get("required", ()), "schema": field}
            for name, field in schema["properties"].items()
        ],
        "result": {"name": _name_of(row.result), "schema": result},
        "errors": [{"$ref": f"#/components/errors/{code}"} for code in error_codes(row)],
        "x-access": row.access.name.lower(),
        "x-admin-if": dict(row.admin_if),
        "x-mutates": row.mutates,
        "x-descriptors": row.descriptors,
        "x-deadline": row.deadline_s,
    }


def _name_of(kind: Any) -> str:
    return "object" if typing.get_origin(kind) else str(kind.__name__)


def _error(code: str) -> dict[str, Any]:
    return {"code": number_of(code), "message": MEANINGS[code], "data": {"code": code}}
