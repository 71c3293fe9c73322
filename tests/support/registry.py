"""A registry of container images, as small as can be: it serves what a test puts into it to engines on this machine."""

import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.patience import patient

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Registry:
    """Names and blobs. `refusing` maps names to the status that whoever asks for them gets."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.refusing: dict[str, int] = {}
        self.address = ""
        self.is_endless = False
        """Blobs go on behind their ends, without end, until whoever asks has gone."""
        self.cut = threading.Event()
        self.hold: threading.Event | None = None
        """While it is there and not set, blobs are begun and not ended."""

    def put(self, name: str, layer: bytes, **config: object) -> str:
        """An image of one layer, a tar archive. Answers its reference."""
        packed = gzip.compress(layer, 1, mtime=0)
        about = {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        described = json.dumps(about).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self._blob(described, "application/vnd.docker.container.image.v1+json"),
            "layers": [self._blob(packed, "application/vnd.docker.image.rootfs.diff.tar.gzip")],
        }
        self.manifests[name] = json.dumps(manifest).encode()
        return f"{self.address}/{name}"

    def _blob(self, content: bytes, kind: str) -> dict[str, object]:
        self.blobs[_digest(content)] = content
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry that can be reached, for the length of a block."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = self.path.strip("/").split("/")
            name, kind, reference = "/".join(parts[1:-2]), parts[-2:-1], parts[-1]
            if parts == ["v2"]:
                self._answer(200, b"{}", "application/json")
            elif name in registry.refusing:
                said = {"errors": [{"code": "DENIED" if registry.refusing[name] == 403 else "UNAUTHORIZED"}]}
                self._answer(registry.refusing[name], json.dumps(said).encode(), "application/json")
            elif kind == ["manifests"]:
                self._manifest(name, reference)
            else:
                self._blob(registry.blobs.get(reference))

        do_HEAD = do_GET

        def _manifest(self, name: str, reference: str) -> None:
            known = {_digest(content): content for content in registry.manifests.values()}
            found = registry.manifests.get(f"{name}:{reference}") or known.get(reference)
            if found is None:
                self._answer(
                    404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}', "application/json"
                )
            else:
                self._answer(200, found, MANIFEST)

        def _blob(self, content: bytes | None) -> None:
            if content is None:
                self._answer(404, b"{}", "application/json")
            elif registry.is_endless and len(content) >= 10_000:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
                    while True:
                        self.wfile.write(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                registry.cut.set()
            elif registry.hold is None or len(content) < 10_000:
                self._answer(200, content, "application/octet-stream")
            else:
                self._begin(200, content, "application/octet-stream")
                self.wfile.write(content[:5000])
                self.wfile.flush()
                registry.hold.wait(patient(60))
                self.close_connection = True

        def _begin(self, status: int, content: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Docker-Content-Digest", _digest(content))
            self.send_header("Docker-Distribution-API-Version", "registry/2.0")
            self.end_headers()

        def _answer(self, status: int, content: bytes, kind: str) -> None:
            self._begin(status, content, kind)
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.address = f"127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        if registry.hold is not None:
            registry.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
