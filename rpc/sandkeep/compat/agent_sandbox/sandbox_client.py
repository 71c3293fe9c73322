"""A sandbox for the length of a block: a claim, its pod, and commands and files in that."""

import logging
import os
import secrets
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final

from sandkeep.compat.agent_sandbox.cluster import PODS, Cluster, Resource
from sandkeep.compat.agent_sandbox.execution import Container, ExecutionResult
from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.kubernetes.claims import (
    CLAIMS,
    SANDBOXES,
    TEMPLATES,
    WARM_POOLS,
    claim_body,
    pod_of,
    pool_of,
    raise_if_terminal,
    sandbox_of,
)
from sandkeep.kubernetes.names import label_value
from sandkeep.kubernetes.objects import Object, is_ready, name_of, text_at, value_at
from sandkeep.kubernetes.pod_snapshots import OWNER_LABEL
from sandkeep.kubernetes.versions import AGENTS, EXTENSIONS, served_versions

if TYPE_CHECKING:
    from typing import Self

    from kubernetes.client import ApiClient

logger = logging.getLogger(__name__)

SESSION_LABEL: Final = "sandkeep.session"
"""Of claims and triggers: the client object that made them."""

_ALPHA: Final = "v1alpha1"


class SandboxClient:
    """A sandbox of a SandboxTemplate, which is claimed when the block begins and deleted when it ends.

    `labels` are for its pod: those of the template, and others if the cluster allows their domains. `owner` is whom it
    is for, by default this user as ``uid:N``; an application that serves several gives each its own. `api_client` is a
    configured client of the official library.
    """

    def __init__(
        self,
        template_name: str,
        labels: Mapping[str, str] | None = None,
        namespace: str = "default",
        *,
        server_port: int = 8888,
        sandbox_ready_timeout: float = 180,
        owner: str | None = None,
        api_client: "ApiClient | None" = None,
    ) -> None:
        self.template_name = template_name
        self.labels = dict(labels or {})
        self.namespace = namespace
        self.server_port = server_port
        self.sandbox_ready_timeout = sandbox_ready_timeout
        self.owner = owner or f"uid:{os.getuid()}"
        self.claim_name: str | None = None
        self.sandbox_name: str | None = None
        self.pod_name: str | None = None
        self._container: Container | None = None
        self._cluster = Cluster(namespace, api_client)
        self._own_labels = {OWNER_LABEL: label_value(self.owner), SESSION_LABEL: secrets.token_hex(8)}

    def __enter__(self) -> "Self":
        try:
            self._start({})
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._clean_up()

    def is_ready(self) -> bool:
        """Return True between the beginning and the end of the block."""
        return self._container is not None

    def run(self, command: str, timeout: float = 60) -> ExecutionResult:
        """Run a shell command. After `timeout` seconds it is killed, and its exit code is 124."""
        return self._running().run(command, timeout)

    def write(self, path: str, content: bytes | str, timeout: float = 60) -> None:
        """Write a file, and the directories above it; text as UTF-8."""
        self._running().write(path, content.encode() if isinstance(content, str) else content, timeout)

    def read(self, path: str, timeout: float = 60) -> bytes:
        """Return the bytes of a file. Raises `not_found` if it cannot be read."""
        return self._running().read(path, timeout)

    def _running(self) -> Container:
        if self._container is None:
            raise StateError("not_ready", "there is no sandbox: use its client in a `with` block", status="not started")
        return self._container

    # -- the claim ----------------------------------------------------------------------------------------------------

    def _start(self, annotations: Mapping[str, str]) -> None:
        """Claim a sandbox, with annotations for its pod, and wait until it is ready."""
        deadline = time.monotonic() + self.sandbox_ready_timeout
        claim = self._claim(annotations)
        self._await_sandbox(claim, deadline)
        self._before_ready(deadline)
        self._await_ready(deadline)
        pod = self._cluster.read(PODS, self.pod_name or "")
        if pod is None:
            raise ProviderError("provider_unavailable", f"sandbox {self.sandbox_name!r} is ready and has no pod")
        self._check_pod(pod)
        self._container = Container(self._cluster, name_of(pod), _first_container(pod))

    def _before_ready(self, deadline: float) -> None:
        """Do what comes between the making of the sandbox and its being ready."""

    def _check_pod(self, pod: Object) -> None:
        """Raise an error if the pod of the ready sandbox may not be used."""

    def _template(self) -> Object:
        templates = self._cluster.resource(EXTENSIONS, TEMPLATES)
        template = self._cluster.read(templates, self.template_name)
        if template is None:
            message = f"there is no SandboxTemplate {self.template_name!r} in namespace {self.namespace!r}"
            raise CallerError("not_found", message)
        return template

    def _claim(self, annotations: Mapping[str, str]) -> Object:
        have = value_at(self._template(), "spec", "podTemplate", "metadata", "labels")
        have = have if isinstance(have, Mapping) else {}
        new_labels = {key: value for key, value in self.labels.items() if have.get(key) != value}
        version, source = self._source()
        self.claim_name = f"sandbox-claim-{secrets.token_hex(4)}"
        body = claim_body(
            version,
            self.claim_name,
            source,
            labels=self._own_labels,
            pod_labels={**new_labels, OWNER_LABEL: self._own_labels[OWNER_LABEL]},
            pod_annotations=annotations,
        )
        return self._cluster.create(Resource(EXTENSIONS.name, version, CLAIMS), body)

    def _source(self) -> tuple[str, str]:
        """Return the version in which to claim, and what.

        A claim names a pool, since v1beta1; only older ones name a template.
        """
        version = self._cluster.resource(EXTENSIONS, CLAIMS).version
        if version == _ALPHA:
            return version, self.template_name
        pool = pool_of(self._cluster.objects(self._cluster.resource(EXTENSIONS, WARM_POOLS)), self.template_name)
        if pool is not None:
            return version, pool
        if _ALPHA in served_versions(self._cluster.discovery, EXTENSIONS.name):
            return _ALPHA, self.template_name
        message = f"no SandboxWarmPool is of template {self.template_name!r}: make one; it may have 0 replicas"
        raise CallerError("not_found", message)

    def _await_sandbox(self, claim: Object, deadline: float) -> None:
        claims = self._cluster.resource(EXTENSIONS, CLAIMS)
        for state in self._cluster.states(claims, name_of(claim), deadline, f"sandbox claim {name_of(claim)!r}", claim):
            if state is None:
                raise _deleted(name_of(claim))
            raise_if_terminal(state)
            self.sandbox_name = sandbox_of(state) or (name_of(claim) if is_ready(state) else None)
            if self.sandbox_name is not None:
                return

    def _await_ready(self, deadline: float) -> None:
        sandboxes, name = self._cluster.resource(AGENTS, SANDBOXES), self.sandbox_name or ""
        for sandbox in self._cluster.states(sandboxes, name, deadline, f"sandbox {name!r}"):
            if sandbox is None:
                raise _deleted(name)
            raise_if_terminal(sandbox)
            if is_ready(sandbox):
                self.pod_name = pod_of(sandbox)
                return

    def _clean_up(self) -> None:
        """Delete the claim, and with it the sandbox. A failure is logged."""
        self._container = None
        try:
            if self.claim_name is not None:
                self._cluster.delete(self._cluster.resource(EXTENSIONS, CLAIMS), self.claim_name)
        except SandkeepError:
            logger.exception("a sandbox claim is left", extra={"claim": self.claim_name})
        finally:
            self._cluster.close()


def _first_container(pod: Object) -> str | None:
    containers = value_at(pod, "spec", "containers")
    return text_at(containers[0], "name") or None if isinstance(containers, list) and containers else None


def _deleted(name: str) -> StateError:
    return StateError("not_ready", f"sandbox {name!r} was deleted before it was ready", status="deleted")
