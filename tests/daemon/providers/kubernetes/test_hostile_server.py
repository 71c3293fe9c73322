"""An API server that lies, drips or never ends: each answer is one sentence, in time, and ends no task."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import TOKEN, kubeconfig
from tests.support.expect import refused_async
from tests.support.patience import patient

from sandkeep.errors import SandkeepError
from sandkeepd.providers.kubernetes import requests
from sandkeepd.providers.kubernetes.cluster import PODS, Api, Cluster
from sandkeepd.providers.kubernetes.watch import Watch

MINE = {"sandbox.users.io/sandkeep-sandbox": "sbx_1", "sandbox.users.io/sandkeep-log": "log_1"}

Reply = bytes | Callable[[trio.SocketStream], Awaitable[None]]


class Server:
    """A server that answers each request by what `reply` says for its first line."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reply: Callable[[str], Reply] = lambda _: b""
        self.asked: list[str] = []

    async def serve(self, stream: trio.SocketStream) -> None:
        with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            head = b""
            while b"\r\n\r\n" not in head:
                data = await stream.receive_some()
                if not data:
                    return
                head += data
            line = head.partition(b"\r\n")[0].decode()
            self.asked.append(line)
            reply = self.reply(line)
            if isinstance(reply, bytes):
                await stream.send_all(reply)
            else:
                await reply(stream)
        await stream.aclose()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = Server(listener.socket.getsockname()[1])
        nursery.start_soon(trio.serve_listeners, server.serve, [listener])
        yield server
        nursery.cancel_scope.cancel()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


@pytest.fixture
def cluster(server: Server, tmp_path: Path) -> Cluster:
    return Cluster(kubeconfig(tmp_path / "kubeconfig", server.port))


def http(body: bytes | object, status: str = "200 OK", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def pod(**changes: Any) -> dict[str, Any]:
    metadata = {"name": "p", "uid": "u-1", "resourceVersion": "7", "labels": MINE, **changes}
    return {"metadata": {name: value for name, value in metadata.items() if value is not None}}


def endless(head: bytes, piece: bytes) -> Reply:
    async def reply(stream: trio.SocketStream) -> None:
        await stream.send_all(head)
        while True:
            await stream.send_all(piece)

    return reply


def dripping(head: bytes, drop: bytes) -> Reply:
    async def reply(stream: trio.SocketStream) -> None:
        await stream.send_all(head)
        while True:
            await stream.send_all(drop)
            await trio.sleep(0.05)

    return reply


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
NONSENSE, SILENCE = "sent an invalid response", "does not answer"
NAMED = [*MINE.items(), ("x" * 70, "y")]

OBJECTS: dict[str, tuple[Reply, str]] = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", SILENCE),
    "nothing": (b"", f"{SILENCE}: it closed the connection without an answer: see"),
    "half of it": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", f"{SILENCE}: it broke off its answer: see"),
    "a page": (http(b"<html>welcome</html>"), NONSENSE),
    "an empty answer": (http(b""), NONSENSE),
    "a list": (http([]), NONSENSE),
    "null": (http(None), NONSENSE),
    "no metadata": (http({}), NONSENSE),
    "metadata null": (http({"metadata": None}), NONSENSE),
    "a name that is a number": (http(pod(name=1)), NONSENSE),
    "an empty uid": (http(pod(uid="")), NONSENSE),
    "no uid": (http(pod(uid=None)), NONSENSE),
    "no version": (http(pod(resourceVersion=None)), NONSENSE),
    "a long name": (http(pod(name="n" * 5000)), NONSENSE),
    "labels that are a list": (http(pod(labels=NAMED)), NONSENSE),
    "conditions that are a text": (http(pod() | {"status": {"conditions": "Ready"}}), NONSENSE),
    "a container without a state": (http(pod() | {"status": {"containerStatuses": [{"state": 3}]}}), NONSENSE),
    "depth": (http(b'{"metadata":' * 100_000), NONSENSE),
    "no UTF-8": (http(b'{"metadata":{"name":"\xff"}}'), NONSENSE),
    "compressed": (http(b"\x1f\x8b\x08\x00", **{"Content-Encoding": "gzip"}), NONSENSE),
    "a huge answer": (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + b" " * (1 << 20), NONSENSE),
    "an endless answer": (endless(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536), NONSENSE),
    "an endless chunk": (endless(CHUNKED + b"FFFFFFFFFF\r\n", b" " * 65536), NONSENSE),
    "endless chunks": (endless(CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"), NONSENSE),
    "a chunk of no length": (CHUNKED + b"zz\r\n{}\r\n", SILENCE),
    "endless headers": (endless(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 1000), SILENCE),
    "an endless header": (endless(b"HTTP/1.1 200 OK\r\nA: ", b"b" * 65536), SILENCE),
    "endless patience": (dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "took longer"),
    "a dripping head": (dripping(b"HTTP/1.1 200 OK\r\nA: ", b"b"), "took longer"),
    "a dripping body": (dripping(b"HTTP/1.1 200 OK\r\n\r\n", b" "), "took longer"),
    "dripping chunks": (dripping(CHUNKED, b"1\r\n \r\n"), "took longer"),
    "a refusal without a body": (http(b"", "500 Oh"), "failed: Oh"),
    "a refusal of a page": (http(b"<html>", "502 Oh"), "failed: Oh"),
    "a refusal of another type": (http({"message": 5}, "418 Pot"), "refused: Pot"),
    "a status that is none": (http(b"{}", "999 Far"), "failed: Far"),
    "an endless refusal": (endless(b"HTTP/1.1 500 Oh\r\n\r\n", b"x" * 65536), NONSENSE),
    "a refusal that quotes the token": (http({"message": f"Bearer {TOKEN} is bad"}, "422 No"), "Bearer *** is bad"),
    "a phrase that quotes the token": (http(b"", f"500 {TOKEN}"), "failed: ***"),
    "control characters": (http({"message": "a\x1b[2J\nb"}, "500 No"), "failed: a [2J b"),
}


@pytest.mark.parametrize("name", OBJECTS)
async def test_an_object(name: str, server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reply, expected = OBJECTS[name]
    server.reply = lambda _: reply
    monkeypatch.setattr(requests, "PAGE_BYTES", 512 * 1024)
    if expected == "took longer":
        monkeypatch.setattr(requests, "CALL_S", 0.3)
    with trio.fail_after(patient(60)), pytest.raises(SandkeepError) as caught:
        await cluster.call(lambda api: api.get(PODS, "p"))
    assert expected in caught.value.message
    assert TOKEN not in str(caught.value)
    assert "\n" not in caught.value.message


async def test_a_call_that_takes_too_long_leaves_no_thread(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "CALL_S", 0.3)
    server.reply = lambda _: dripping(b"HTTP/1.1 200 OK\r\nA: ", b"b")
    await refused_async("provider_unavailable", cluster.call(lambda api: api.get(PODS, "p")))
    with trio.fail_after(patient(60)):
        while cluster._threads.share.borrowed_tokens:
            await trio.sleep(0.01)


async def test_a_redirect_is_not_followed(server: Server, cluster: Cluster) -> None:
    async with serving() as other:
        other.reply = lambda _: http(pod())
        server.reply = lambda _: http(b"", "307 Temporary Redirect", Location=f"http://127.0.0.1:{other.port}/")
        error = await refused_async("provider_unavailable", cluster.call(lambda api: api.get(PODS, "p")))
        assert "redirect" in error.message
        assert other.asked == []


async def test_a_token_that_is_malformed_is_not_shown(server: Server, tmp_path: Path) -> None:
    cluster = Cluster(kubeconfig(tmp_path / "other", server.port, f"{TOKEN}\nX: y"))
    error = await refused_async("not_configured", cluster.call(lambda api: api.get(PODS, "p")))
    assert TOKEN not in str(error)


LISTS: dict[str, tuple[Reply, str]] = {
    "no items": (http({"metadata": {"resourceVersion": "1"}}), NONSENSE),
    "items that are no list": (http({"metadata": {"resourceVersion": "1"}, "items": {}}), NONSENSE),
    "no version": (http({"metadata": {}, "items": []}), NONSENSE),
    "pages without an end": (http({"metadata": {"resourceVersion": "1", "continue": "c"}, "items": [pod()]}), "list"),
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_list(name: str, server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    reply, expected = LISTS[name]
    server.reply = lambda _: reply
    monkeypatch.setattr(requests, "LIST_BYTES", 4096)
    with trio.fail_after(patient(60)):
        error = await refused_async("provider_unavailable", cluster.call(lambda api: api.list(PODS, "")))
    assert expected in error.message


def page(*items: object) -> bytes:
    return http({"metadata": {"resourceVersion": "5"}, "items": items})


def events(*found: object) -> bytes:
    return b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(
        each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in found
    )


def event(of: object, kind: object = "ADDED") -> dict[str, object]:
    return {"type": kind, "object": of}


EVENTS: dict[str, object] = {
    "no JSON": b"hello\n",
    "a list": [],
    "no type": {"object": pod()},
    "a type that is a number": event(pod(), 3),
    "no object": {"type": "ADDED"},
    "an object that is a text": event("pod"),
    "no metadata": event({}),
    "no name": event(pod(name=None)),
    "a bookmark without a version": event({"metadata": {}}, "BOOKMARK"),
    "an error without a code": event({}, "ERROR"),
    "an error that is a text": event("gone", "ERROR"),
    "labels that are numbers": event(pod(labels={"sandbox.users.io/sandkeep-sandbox": 1})),
    "a long line": b"x" * 200_000,
    "no end of a line": b'{"type":',
    "depth": b"[" * 200_000 + b"\n",
}


async def seeing(cluster: Cluster, nursery: trio.Nursery, uid: str) -> Watch:
    """Watch pods until one of that uid is there."""
    watch = Watch(cluster, PODS, "")
    nursery.start_soon(watch.run)
    with trio.fail_after(patient(60)):
        await watch.synced(30)
        while watch.get("sbx_1", uid) is None:
            await trio.sleep(0.01)
    return watch


@pytest.mark.parametrize("name", EVENTS)
async def test_an_event(
    name: str, server: Server, cluster: Cluster, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes first, the watch goes on, and sees what comes next."""
    monkeypatch.setattr(requests, "EVENT_BYTES", 100_000)
    begun = 0

    def reply(line: str) -> Reply:
        nonlocal begun
        if "watch=true" not in line:
            return page(pod(), pod(name="q", uid="u-2")) if begun else page(pod())
        begun += 1
        return events(EVENTS[name]) if begun == 1 else events(event(pod(name="q", uid="u-2", resourceVersion="9")))

    server.reply = reply
    watch = await seeing(cluster, nursery, "u-2")
    assert watch.get("sbx_1", "u-1") is not None, "an object that was not deleted is gone"


async def test_an_object_that_is_malformed_hides_no_other(
    server: Server, cluster: Cluster, nursery: trio.Nursery
) -> None:
    listed = 0

    def reply(line: str) -> Reply:
        nonlocal listed
        if "watch=true" in line:
            return events(event({"code": 410}, "ERROR"))
        listed += 1
        return page(pod(), pod(name="q", uid="u-2")) if listed == 1 else page({"metadata": 1}, pod(name="q", uid="u-3"))

    server.reply = reply
    await seeing(cluster, nursery, "u-3")


DISCOVERIES: dict[str, bytes] = {
    "a page": http(b"<html>"),
    "nothing": http({}),
    "groups that are a text": http({"groups": "agents.x-k8s.io"}),
    "versions that are texts": http({"groups": [{"name": "agents.x-k8s.io", "versions": ["v1beta1"]}]}),
}


@pytest.mark.parametrize("name", DISCOVERIES)
async def test_a_discovery_that_fails_is_none_of_a_cluster_without_resources(
    name: str, server: Server, cluster: Cluster
) -> None:
    server.reply = lambda _: DISCOVERIES[name]
    await refused_async("provider_unavailable", cluster.call(Api.groups))
