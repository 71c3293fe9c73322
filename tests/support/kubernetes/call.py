"""Requests to the API: the resource and the object that a path names, and the verb."""

from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.yaml
from aiohttp import web
from tests.support.kubernetes.access import Attributes, User
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.resources import Object, Resource

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class PathNotFound(Exception):
    """A path that names nothing: 404 with a text, as a real API server answers it."""


@dataclass
class Call:
    """One request for a resource."""

    request: web.BaseRequest
    user: User
    resource: Resource
    version: str
    namespace: str | None
    name: str | None
    subresource: str

    @property
    def query(self) -> Any:
        """Parameters of the query, a multi-dict."""
        return self.request.rel_url.query

    @property
    def verb(self) -> str:
        """The verb of RBAC."""
        method = self.request.method
        if method == "GET":
            watched = self.flag("watch") and not self.subresource
            return "watch" if watched else "get" if self.name else "list"
        if method == "DELETE":
            return "delete" if self.name else "deletecollection"
        return _VERBS.get(method, method.lower())

    @property
    def attributes(self) -> Attributes:
        """The request, as RBAC sees it. A list of one name counts as a request for that name."""
        name, selected = self.name, self.query.get("fieldSelector", "")
        if name is None and selected.startswith("metadata.name="):
            name = selected.removeprefix("metadata.name=")
        return Attributes(self.verb, self.resource.group, self.resource.plural, self.subresource, self.namespace, name)

    @property
    def dry_run(self) -> bool:
        """Tell whether nothing shall be stored."""
        return "dryRun" in self.query

    def flag(self, name: str) -> bool:
        """A boolean parameter of the query."""
        return self.query.get(name, "false").lower() in ("true", "1")

    def number(self, name: str) -> int | None:
        """A number of the query. Raises ApiError 400."""
        text = self.query.get(name)
        if not text:
            return None
        if not text.isdigit():
            raise ApiError(400, "BadRequest", f"invalid {name} value: {text!r}")
        return int(text)

    async def body(self) -> Any:
        """The decoded body; None if there is none. Raises ApiError 400 or 415."""
        data = await self.request.read()
        if not data.strip():
            return None
        kind = self.request.content_type
        try:
            return (
                msgspec.yaml.decode(data) if kind.endswith("yaml") and data[:1] != b"{" else msgspec.json.decode(data)
            )
        except msgspec.DecodeError as error:
            if not kind.endswith(("json", "yaml", "octet-stream")):
                message = f"the body of the request was in an unknown format: {kind}"
                raise ApiError(415, "UnsupportedMediaType", message) from error
            raise ApiError(400, "BadRequest", f"error decoding the body: {error}") from error

    async def object(self, *, custom: bool) -> Object:
        """The decoded body, an object of this resource and version; a custom one has to say so. Raises ApiError 400."""
        body = await self.body()
        if not isinstance(body, dict):
            raise ApiError(400, "BadRequest", "the body of the request must be an object")
        expected = {"apiVersion": self.resource.api_version(self.version), "kind": self.resource.kind}
        for field, value in expected.items():
            if custom and field == "kind" and not body.get(field):
                raise ApiError(400, "BadRequest", "Object 'Kind' is missing in the body of the request")
            if body.get(field, value) != value:
                message = f"the {field} in the data ({body[field]}) does not match the expected {field} ({value})"
                raise ApiError(400, "BadRequest", message)
        body["metadata"] = body.get("metadata") or {}
        if not isinstance(body["metadata"], dict):
            raise ApiError(400, "BadRequest", "json: cannot unmarshal into Go value of type v1.ObjectMeta")
        return body


class Paths:
    """The served kinds by (group, version, plural)."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str], Resource] = {}

    def learn(self, resources: list[Resource]) -> None:
        """Take over the kinds that are served now."""
        self._kinds = {(kind.group, version, kind.plural): kind for kind in resources for version in kind.versions}

    def parse(self, request: web.BaseRequest, user: User) -> Call:
        """Find the resource that a path names. Raises PathNotFound."""
        parts = [part for part in request.path.split("/") if part]
        if parts[0] == "api" and len(parts) > 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise PathNotFound
        namespace = None
        if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        kind = self._kinds.get((group, version, rest[0]))
        if kind is None or len(rest) > 3 or (namespace and not kind.namespaced):
            raise PathNotFound
        name, subresource = (*rest[1:], None, None)[:2]
        if name and kind.namespaced and not namespace:
            raise PathNotFound
        return Call(request, user, kind, version, namespace, name, subresource or "")
