"""The HTTP server of the API, and `/double`, by which tests control it."""

import asyncio
from collections import Counter
from typing import Any, Self

import msgspec
from aiohttp import web
from tests.support.doubles.faults import Faults
from tests.support.kubernetes import builtin, discovery
from tests.support.kubernetes.access import Access, Attributes, User
from tests.support.kubernetes.builtin import CRDS
from tests.support.kubernetes.call import Call, PathNotFound, Paths
from tests.support.kubernetes.crds import Definitions
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.faults import Fault
from tests.support.kubernetes.kubelet_api import Component, Kubelet
from tests.support.kubernetes.metadata import timestamp
from tests.support.kubernetes.objects import Objects
from tests.support.kubernetes.resources import Object
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.streams import Streams
from tests.support.kubernetes.watches import Watches

_LARGEST_BODY = 3 << 20
_LARGEST_HEADERS = 1 << 20


class _Request(web.BaseRequest):
    """A request with the limits of Kubernetes."""

    @classmethod
    def make(cls, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Self:
        """Make a request for aiohttp."""
        loop = asyncio.get_running_loop()
        return cls(message, payload, protocol, writer, task, loop, client_max_size=_LARGEST_BODY)


class ApiServer:
    """Serves a store on 127.0.0.1. `components` are the parts of the cluster that tests script."""

    def __init__(self, store: Store, kubelet: Kubelet | None) -> None:
        builtin.install(store)
        self.store = store
        self.definitions = Definitions(store)
        self.access = Access(store)
        self.components: list[Component] = []
        self._objects = Objects(store, self.definitions)
        self._watches = Watches(store, self._objects.outward)
        self._streams = Streams(store, kubelet)
        self._paths = Paths()
        self._faults = Faults(Fault)
        self._requests: Counter[tuple[str, str, str, str]] = Counter()
        self._runner: web.ServerRunner | None = None

    def define(self, manifest: Object) -> None:
        """Create a CustomResourceDefinition and serve it."""
        self.definitions.serve(self.store.create(CRDS, None, manifest))

    async def start(self) -> str:
        """Listen on a free port, and return the URL."""
        self._paths.learn(self.store.resources())
        server = web.Server(
            self._handle,
            request_factory=_Request.make,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=3600,
            max_line_size=_LARGEST_HEADERS,
            max_field_size=_LARGEST_HEADERS,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def stop(self) -> None:
        """Close all connections."""
        if self._runner:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        fault = None
        if not request.path.startswith("/double/"):
            fault = self._faults.match(request.method, request.path_qs)
        try:
            if fault:
                await fault.disturb()
                if not fault.after:
                    _fail(fault, request)
            response = await self._serve(request)
            if fault and fault.after:
                _fail(fault, request)
        except ApiError as error:
            response = _json(error.status(), error.code)
            if fault and fault.retry_after is not None:
                response.headers["Retry-After"] = str(fault.retry_after)
        except PathNotFound:
            response = web.Response(status=404, text="404 page not found\n")
        except msgspec.ValidationError as error:
            response = _json(ApiError(400, message=str(error)).status(), 400)
        return response

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if path.startswith("/double/"):
            return _json(await self._control(request, path.removeprefix("/double/")))
        if path in ("/healthz", "/livez", "/readyz"):
            return web.Response(text="ok")
        if path == "/version":
            return _json(discovery.VERSION)
        user = self.access.authenticate(request.headers.get("Authorization", ""))
        parts = path.count("/")
        if path.startswith("/api") and parts <= (2 if path.startswith("/api/") else 3):
            document = discovery.document(path, self.store.resources())
            if document is None:
                raise PathNotFound
            return _json(document)
        if path.startswith("/apis/authorization.k8s.io/"):
            return await self._review(request, user, path)
        call = self._paths.parse(request, user)
        self._requests[request.method, call.verb, call.resource.key, call.subresource] += 1
        return await self._serve_call(call)

    async def _serve_call(self, call: Call) -> web.StreamResponse:
        wanted = call.attributes
        self.access.authorize(call.user, wanted)
        if call.resource.key == "pods" and call.name and call.subresource not in ("", "status"):
            return await self._serve_pod(call, wanted)
        if call.subresource == "token" and call.resource.key == "serviceaccounts" and call.verb == "create":
            return _json(self._issue_token(call), 201)
        if call.subresource not in ("", "status") or (call.subresource and not call.resource.status):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        if call.verb == "watch":
            return await self._watches.serve(call)
        code, answer = await self._objects.serve(call)
        if call.resource.key == CRDS and call.verb != "get":
            self._paths.learn(self.store.resources())
        return _json(answer, code)

    async def _serve_pod(self, call: Call, wanted: Attributes) -> web.StreamResponse:
        if call.subresource == "exec" and call.request.method in ("GET", "POST"):
            self.access.authorize(call.user, wanted._replace(verb="create"))  # as since Kubernetes 1.35
            return await self._streams.exec(call)
        if call.subresource == "log" and call.verb == "get":
            return await self._streams.log(call)
        if call.subresource == "eviction" and call.verb == "create":
            self.store.delete("pods", call.namespace, call.name or "")
            return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}, 201)
        if call.subresource == "binding" and call.verb == "create":
            node = (await call.body())["target"]["name"]
            bind = {"nodeName": node}
            self.store.update(
                "pods", call.namespace, call.name or "", lambda pod: pod["spec"].update(bind), subresource="binding"
            )
            return _json({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}, 201)
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def _issue_token(self, call: Call) -> Object:
        if self.store.get("serviceaccounts", call.namespace, call.name or "") is None:
            raise ApiError(404, "NotFound", f'serviceaccounts "{call.name}" not found')
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{call.namespace}")
        token = self.access.issue(f"system:serviceaccount:{call.namespace}:{call.name}", groups)
        status = {"token": token, "expirationTimestamp": timestamp(3600)}
        return {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "status": status}

    async def _review(self, request: web.BaseRequest, user: User, path: str) -> web.Response:
        if not path.endswith("/v1/selfsubjectaccessreviews") or request.method != "POST":
            raise PathNotFound
        body = msgspec.json.decode(await request.read())
        asked = body["spec"].get("resourceAttributes", {})
        fields = ("verb", "group", "resource", "subresource", "namespace", "name")
        wanted = Attributes(*(asked.get(field, "") for field in fields))
        body["status"] = {"allowed": self.access.allows(user, wanted)}
        return _json(body | {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}, 201)

    async def _control(self, request: web.BaseRequest, what: str) -> Any:
        """Answer a request of the tests. Raises PathNotFound."""
        data = await request.read()
        body: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any]) if data else {}
        match request.method, what:
            case "GET", "requests":
                return self._counted()
            case "DELETE", "requests":
                self._requests.clear()
            case "GET", "used":
                return self.access.used()
            case "POST", "faults":
                return self._inject(body)
            case _, "faults":
                return self._faults.control(request.method, body)
            case "POST", "script":
                for component in self.components:
                    component.script(**body)
            case "POST", "tokens":
                return {"token": self.access.issue(body["user"], tuple(body.get("groups", ())))}
            case "DELETE", "tokens":
                self.access.revoke(body["token"])
            case _:
                raise PathNotFound
        return {}

    def _inject(self, body: dict[str, Any]) -> Any:
        """Carry out one of `cut_watches`, `cut_exec`, `compact` and `bookmark`, or set a fault; see `Fault`."""
        if "cut_watches" in body:
            return {"cut": self._watches.cut(**body["cut_watches"])}
        if "cut_exec" in body:
            where = body["cut_exec"]
            return {"cut": self._streams.cut(where.get("namespace", ""), where.get("pod", ""))}
        if "compact" in body:
            self._objects.forget_pages()
            self.store.compact()
        elif "bookmark" in body:
            self._watches.bookmark()
        else:
            self._faults.control("POST", body)
        return {}

    def _counted(self) -> dict[str, Any]:
        rows = [
            {"method": method, "verb": verb, "resource": resource, "subresource": subresource, "count": count}
            for (method, verb, resource, subresource), count in self._requests.items()
        ]
        return {"requests": rows, "watches": self._watches.open(), "execs": self._streams.open()}


def _fail(fault: Fault, request: web.BaseRequest) -> None:
    if fault.drop and request.transport:
        request.transport.abort()
        raise ApiError(503, message="connection lost")
    if fault.status:
        raise ApiError(fault.status, fault.reason, fault.message)


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
