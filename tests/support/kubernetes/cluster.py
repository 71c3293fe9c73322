"""A cluster in a process of its own, and the handle by which tests start and control it.

    python -m tests.support.kubernetes.cluster --dir DIR [--image NAME=ROOTFS]... [--no-crds | --crds GROUP=V1,V2...]

writes DIR/kubeconfig and DIR/ready (JSON: url, token), and runs until SIGTERM or until its parent ends.
"""

import argparse
import asyncio
import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.doubles import service
from tests.support.kubernetes import sandbox_crds


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs; `start_cluster` owns its process."""

    url: str
    token: str
    directory: Path

    @property
    def kubeconfig(self) -> Path:
        """A file with one context, that of the administrator in namespace `default`."""
        return self.directory / "kubeconfig"

    def faults(self, **options: Any) -> dict[str, Any]:
        """Inject a fault; see `faults.Fault` and `ApiServer`."""
        answer: dict[str, Any] = self.control("POST", "faults", options)
        return answer

    def script(self, **options: Any) -> None:
        """Change the behaviour of kubelet and controllers."""
        self.control("POST", "script", options)

    def requests(self) -> dict[str, Any]:
        """`requests`: counts by method, verb, resource and subresource; `watches` and `execs`: those that are open."""
        answer: dict[str, Any] = self.control("GET", "requests")
        return answer

    def used(self) -> list[dict[str, Any]]:
        """The verbs that each token used."""
        answer: list[dict[str, Any]] = self.control("GET", "used")
        return answer

    def issue_token(self, user: str, *groups: str) -> str:
        """Make a token for a user, or for a service account `system:serviceaccount:NAMESPACE:NAME`."""
        return str(self.control("POST", "tokens", {"user": user, "groups": groups})["token"])

    def revoke_token(self, token: str) -> None:
        """Have the cluster know a token no more."""
        self.control("DELETE", "tokens", {"token": token})

    def write_kubeconfig(self, path: Path, token: str, namespace: str = "default") -> Path:
        """Write a kubeconfig with another token."""
        path.write_text(json.dumps(_kubeconfig(self.url, token, namespace)))
        return path

    def control(self, method: str, what: str, body: Any = None) -> Any:
        """Send a request to `/double/WHAT`."""
        return service.control(self.url, method, what, body)


@contextlib.contextmanager
def start_cluster(
    directory: Path,
    images: Mapping[str, str | Path] | None = None,
    *,
    crds: Mapping[str, Sequence[str]] = sandbox_crds.ALL,
) -> Iterator[Cluster]:
    """Run a cluster whose files are in `directory`. `images` are root file systems by name, `crds` versions by group.

    Without `crds` there are no controllers either: a plain cluster, in which tests may define kinds of their own.
    Raises RuntimeError with its messages if it does not start.
    """
    argv = [part for group, versions in crds.items() for part in ("--crds", f"{group}={','.join(versions)}")]
    argv += [] if crds else ["--no-crds"]
    with service.start("tests.support.kubernetes.cluster", directory, images, argv) as ready:
        yield Cluster(directory=directory, **ready)


def _kubeconfig(url: str, token: str, namespace: str) -> dict[str, Any]:
    context = {"cluster": "double", "user": "double", "namespace": namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "double",
        "clusters": [{"name": "double", "cluster": {"server": url}}],
        "users": [{"name": "double", "user": {"token": token}}],
        "contexts": [{"name": "double", "context": context}],
    }


async def _serve(options: argparse.Namespace, stopped: asyncio.Event, announce: service.Announce) -> None:
    """Assemble the cluster and run it until it is told to stop."""
    from tests.support.kubernetes import controllers, kubelet
    from tests.support.kubernetes.admission import Admission
    from tests.support.kubernetes.server import ApiServer
    from tests.support.kubernetes.store import Store

    store = Store()
    node = kubelet.create(store, str(options.dir), dict(options.image))
    server = ApiServer(store, node)
    for manifest in sandbox_crds.manifests(options.crds):
        server.define(manifest)
    server.components = [node, Admission(store)]
    if options.crds:  # who installs the definitions installs their controllers
        server.components.append(controllers.create(store, node))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(component.run()) for component in server.components]
        url = await server.start()
        token = server.access.admin
        (options.dir / "kubeconfig").write_text(json.dumps(_kubeconfig(url, token, "default")))
        announce({"url": url, "token": token})
        await stopped.wait()
        await server.stop()
        for task in reversed(tasks):
            task.cancel()


def main() -> None:
    """Run a cluster; see the module."""
    parser = service.parser()
    parser.add_argument("--crds", type=service.pair, action="append")
    parser.add_argument("--no-crds", action="store_true")
    options = parser.parse_args()
    if options.no_crds:
        options.crds = {}
    elif options.crds is None:
        options.crds = sandbox_crds.ALL
    else:
        options.crds = {group: versions.split(",") for group, versions in options.crds}
    service.run(options, functools.partial(_serve, options))


if __name__ == "__main__":
    main()
