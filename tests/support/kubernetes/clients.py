"""The official client, set up for a cluster of ours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.kubernetes.cluster import Cluster
from tests.support.patience import patient

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream


class Clients:
    """APIs of the official client, with the credentials of a kubeconfig (the administrator's by default)."""

    def __init__(self, cluster: Cluster, kubeconfig: Path | None = None) -> None:
        self._kubeconfig = str(kubeconfig or cluster.kubeconfig)
        self._opened: list[client.ApiClient] = []
        self._streams: list[Any] = []
        self.api = self._client()
        self.core: Any = client.CoreV1Api(self.api)
        self.custom: Any = client.CustomObjectsApi(self.api)
        self.extensions: Any = client.ApiextensionsV1Api(self.api)
        self.rbac: Any = client.RbacAuthorizationV1Api(self.api)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._opened:
            opened.rest_client.pool_manager.clear()
        for connection in self._streams:
            connection.sock.shutdown()

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> tuple[int, Any]:
        """Send a request as it is, and return the status and the decoded body."""
        given = self.api.configuration
        headers = {"Content-Type": content_type}
        if token := given.auth_settings().get("BearerToken", {}).get("value"):
            headers["Authorization"] = token
        data = None if body is None else json.dumps(body)
        pool = self.api.rest_client.pool_manager
        answer = pool.request(method, given.host + path, body=data, headers=headers, retries=False)
        return answer.status, answer.json()

    def exec(self, pod: str, *command: str, namespace: str = "default", **options: Any) -> str:
        """Run a command in a pod, and return what it writes within a minute."""
        process = self.open_exec(pod, *command, namespace=namespace, **options)
        process.run_forever(timeout=patient(60))
        return str(process.read_all())

    def open_exec(self, pod: str, *command: str, namespace: str = "default", **options: Any) -> Any:
        """Start a command in a pod: a WSClient, which is closed with these clients."""
        api = client.CoreV1Api(self._client())  # `stream` changes its client for good
        arguments = {"stdin": False, "stdout": True, "stderr": True, "tty": False} | options
        process: Any = stream(
            api.connect_get_namespaced_pod_exec,
            pod,
            namespace,
            command=list(command),
            _preload_content=False,
            **arguments,
        )
        self._streams.append(process)
        return process

    def _client(self) -> client.ApiClient:
        made: client.ApiClient = config.new_client_from_config(self._kubeconfig)  # type: ignore[no-untyped-call]
        self._opened.append(made)
        return made


def refusal(act: Callable[[], object]) -> tuple[int, str]:
    """Status and reason with which the server refuses a request; (200, "") if it does not."""
    try:
        act()
    except ApiException as error:
        try:
            return error.status or 0, json.loads(error.body or "")["reason"]
        except ValueError:
            return error.status, ""
    return 200, ""
