"""Requests for objects: get, list, create, update, patch and delete."""

import base64
import binascii
import itertools
from collections import OrderedDict
from typing import Any

import msgspec
from tests.support.kubernetes import conversion
from tests.support.kubernetes.apply import apply
from tests.support.kubernetes.builtin import CRDS
from tests.support.kubernetes.call import Call
from tests.support.kubernetes.crds import Definitions
from tests.support.kubernetes.errors import ApiError, not_found
from tests.support.kubernetes.patches import json_patch, merge_patch, strategic_merge
from tests.support.kubernetes.resources import Object
from tests.support.kubernetes.selectors import object_selector
from tests.support.kubernetes.store import Propagation, Store

Answer = tuple[int, Object]

_JSON, _MERGE = "application/json-patch+json", "application/merge-patch+json"
_STRATEGIC, _APPLY = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
_MOST_PAGES = 256


class Objects:
    """The generic part of the registry: it serves every kind alike."""

    def __init__(self, store: Store, definitions: Definitions) -> None:
        self._store = store
        self._definitions = definitions
        self._numbers = itertools.count()
        self._pages: OrderedDict[int, tuple[int, list[Object]]] = OrderedDict()

    async def serve(self, call: Call) -> Answer:
        """Carry out a request that is not a watch. Raises ApiError."""
        if call.verb == "get":
            return 200, self.outward(call, self._existing(call))
        if call.verb == "list":
            return 200, self._list(call)
        if call.verb == "create" and not call.name:
            return await self._create(call)
        if call.verb == "update" and call.name:
            return await self._update(call)
        if call.verb == "patch" and call.name:
            return await self._patch(call)
        if call.verb in ("delete", "deletecollection"):
            return await self._delete(call)
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def outward(self, call: Call, obj: Object) -> Object:
        """An object in the version that was asked for."""
        webhook = self._definitions.has_webhook(call.resource)
        return conversion.from_storage(call.resource, call.version, obj, webhook=webhook)

    def forget_pages(self) -> None:
        """Let all continue tokens expire."""
        self._pages.clear()

    def _existing(self, call: Call) -> Object:
        found = self._store.get(call.resource.key, call.namespace, call.name or "")
        if found is None:
            raise not_found(call.resource.key, call.name or "")
        return found

    def _inward(self, call: Call, obj: Object) -> Object:
        """An object of the request in the stored version; validated as the version that the client speaks."""
        strict = call.query.get("fieldValidation") == "Strict"
        if self._definitions.defines(call.resource) and (strict or call.version != call.resource.storage):
            obj.setdefault("metadata", {}).setdefault(
                "name", call.name or obj["metadata"].get("generateName", "") + "x"
            )
            unknown = self._definitions.check(call.resource, call.version, obj, None)
            if strict and unknown:
                fields = ", ".join(f'unknown field "{field}"' for field in unknown)
                raise ApiError(400, "BadRequest", f"strict decoding error: {fields}")
        webhook = self._definitions.has_webhook(call.resource)
        return conversion.to_storage(call.resource, call.version, obj, webhook=webhook)

    def _list(self, call: Call) -> Object:
        key, revision, start, items, selected = self._page(call)
        limit = call.number("limit") or len(items)
        shown, left = items[start : start + limit], len(items) - start - limit
        meta: Object = {"resourceVersion": str(revision)}
        if left > 0:
            self._pages[key] = (revision, items)
            while len(self._pages) > _MOST_PAGES:
                self._pages.popitem(last=False)
            token = msgspec.json.encode([key, start + limit])
            meta["continue"] = base64.urlsafe_b64encode(token).decode()
            if not selected:
                meta["remainingItemCount"] = left
        kind = f"{call.resource.kind}List"
        return {
            "kind": kind,
            "apiVersion": call.resource.api_version(call.version),
            "metadata": meta,
            "items": [self._item(call, item) for item in shown],
        }

    def _item(self, call: Call, item: Object) -> Object:
        """An object as lists have it: built-in kinds without their names."""
        if call.resource.key == CRDS or self._definitions.defines(call.resource):
            return self.outward(call, item)
        return {key: value for key, value in item.items() if key not in ("kind", "apiVersion")}

    def _page(self, call: Call) -> tuple[int, int, int, list[Object], bool]:
        """Key, revision, first item of the page, all items, and whether they were selected."""
        labels, fields = call.query.get("labelSelector"), call.query.get("fieldSelector")
        token = call.query.get("continue")
        if token:
            try:
                key, start = msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[int, int])
            except (binascii.Error, msgspec.DecodeError) as error:
                raise ApiError(400, "BadRequest", "continue key is not valid") from error
            if key not in self._pages:
                message = "The provided continue parameter is too old to display a consistent list result"
                raise ApiError(410, "Expired", message)
            return key, self._pages[key][0], start, self._pages[key][1], bool(labels or fields)
        items = self._store.list(call.resource.key, call.namespace)
        matches = object_selector(call.resource, labels, fields)
        selected = list(filter(matches, items)) if matches else items
        return next(self._numbers), self._store.revision, 0, selected, matches is not None

    async def _create(self, call: Call) -> Answer:
        body = await call.object(custom=self._definitions.defines(call.resource))
        if call.resource.namespaced and not call.namespace:
            raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
        named = bool(body.get("metadata", {}).get("name"))
        new = self._inward(call, body)
        if not named:
            new.get("metadata", {}).pop("name", None)
        new = self._store.create(call.resource.key, call.namespace, new, dry_run=call.dry_run)
        if call.resource.key == CRDS and not call.dry_run:
            self._definitions.serve(new)
        return 201, self.outward(call, new)

    async def _update(self, call: Call) -> Answer:
        body = await call.object(custom=self._definitions.defines(call.resource))
        meta = body.setdefault("metadata", {})
        if meta.setdefault("name", call.name) != call.name:
            message = f"the name of the object ({meta['name']}) does not match the name on the URL ({call.name})"
            raise ApiError(400, "BadRequest", message)
        if self._definitions.defines(call.resource) and not meta.get("resourceVersion"):
            reason = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise ApiError(422, "Invalid", f'{call.resource.kind} "{call.name}" is invalid: {reason}')
        return 200, self._change(call, lambda _: body)

    async def _patch(self, call: Call) -> Answer:
        kind = call.request.content_type
        body = await call.body()
        custom = self._definitions.defines(call.resource)
        if kind not in (_JSON, _MERGE, _STRATEGIC, _APPLY) or (kind == _STRATEGIC and custom):
            accepted = [_JSON, _MERGE, _APPLY] if custom else [_JSON, _MERGE, _STRATEGIC, _APPLY]
            message = "the body of the request was in an unknown format - accepted media types include: "
            raise ApiError(415, "UnsupportedMediaType", message + ", ".join(accepted))
        if kind != _JSON and not isinstance(body, dict):
            raise ApiError(
                400, "BadRequest", "json: cannot unmarshal array into Go value of type map[string]interface {}"
            )
        if kind == _APPLY:
            return self._apply(call, body, listed=not custom)
        change = {_JSON: json_patch, _MERGE: merge_patch, _STRATEGIC: strategic_merge}[kind]
        return 200, self._change(call, lambda obj: change(obj, body))

    def _apply(self, call: Call, body: Object, *, listed: bool) -> Answer:
        manager = call.query.get("fieldManager")
        if not manager:
            raise ApiError(400, "BadRequest", "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        body.setdefault("apiVersion", call.resource.api_version(call.version))

        def change(obj: Object) -> Object:
            apply(obj, body, manager, force=call.flag("force"), listed=listed)
            return obj

        if self._store.get(call.resource.key, call.namespace, call.name or "") is not None:
            return 200, self._change(call, change)
        if call.subresource:
            raise not_found(call.resource.key, call.name or "")
        empty = {"apiVersion": body["apiVersion"], "kind": call.resource.kind, "metadata": {"name": call.name}}
        new = self._inward(call, change(empty))
        new = self._store.create(call.resource.key, call.namespace, new, dry_run=call.dry_run)
        return 201, self.outward(call, new)

    def _change(self, call: Call, change: Any) -> Object:
        """Update an object by a function of it in the version of the request."""
        if call.subresource not in ("", "status"):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")

        def converted(obj: Object) -> Object:
            changed = change(self.outward(call, obj))
            if not isinstance(changed, dict) or not isinstance(changed.get("metadata", {}), dict):
                raise ApiError(400, "BadRequest", "the patched object is not an object")
            return self._inward(call, changed)

        new = self._store.update(
            call.resource.key,
            call.namespace,
            call.name or "",
            converted,
            subresource=call.subresource or None,
            dry_run=call.dry_run,
        )
        if call.resource.key == CRDS and not call.subresource and not call.dry_run:
            self._definitions.serve(new)
        return self.outward(call, new)

    async def _delete(self, call: Call) -> Answer:
        body = await call.body() or {}
        options = _delete_options(call, body)
        if call.name:
            return 200, self._delete_one(call, call.name, options)
        matches = object_selector(call.resource, call.query.get("labelSelector"), call.query.get("fieldSelector"))
        items = self._store.list(call.resource.key, call.namespace)
        items = [item for item in items if matches is None or matches(item)]
        for item in items:
            meta = item["metadata"]
            if self._store.get(call.resource.key, meta.get("namespace"), meta["name"]):
                self._store.delete(call.resource.key, meta.get("namespace"), meta["name"], **options)
        kind = f"{call.resource.kind}List"
        listed = [self._item(call, item) for item in items]
        meta = {"resourceVersion": str(self._store.revision)}
        return 200, {
            "kind": kind,
            "apiVersion": call.resource.api_version(call.version),
            "metadata": meta,
            "items": listed,
        }

    def _delete_one(self, call: Call, name: str, options: dict[str, Any]) -> Object:
        gone = self._store.delete(call.resource.key, call.namespace, name, **options)
        left = self._store.get(call.resource.key, call.namespace, name)
        if call.resource.key == CRDS and left is None:
            self._definitions.withdraw(name)
        if left is not None or call.resource.key == "pods":
            return self.outward(call, gone)
        details = {"name": name, "kind": call.resource.plural, "uid": gone["metadata"]["uid"]}
        details |= {"group": call.resource.group} if call.resource.group else {}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def _delete_options(call: Call, body: Object) -> dict[str, Any]:
    """The arguments of `Store.delete` that DeleteOptions, in body or query, ask for. Raises ApiError 400 or 422."""
    grace = body.get("gracePeriodSeconds", call.number("gracePeriodSeconds"))
    propagation: Propagation | None = body.get("propagationPolicy", call.query.get("propagationPolicy"))
    if propagation not in (None, "Background", "Foreground", "Orphan"):
        message = f'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "{propagation}"'
        raise ApiError(422, "Invalid", message)
    if grace is not None and (not isinstance(grace, int) or grace < 0):
        raise ApiError(422, "Invalid", 'DeleteOptions.meta.k8s.io "" is invalid: gracePeriodSeconds: Invalid value')
    preconditions = body.get("preconditions") or {}
    return {
        "grace": grace,
        "propagation": propagation,
        "uid": preconditions.get("uid"),
        "resource_version": preconditions.get("resourceVersion"),
        "dry_run": call.dry_run or bool(body.get("dryRun")),
    }
