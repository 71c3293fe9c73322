"""The configuration of the daemon's cluster: a kubeconfig, or the account of the pod in which it runs. All blocks.

Credentials are replaced while the daemon runs: a kubeconfig, and files that it names, may be written anew at any time.
"""

import os
import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import msgspec.yaml

from sandkeep.errors import SetupError
from sandkeep.settings import kubernetes as settings
from sandkeep.system import extras

if TYPE_CHECKING:
    from kubernetes.client import Configuration

REFRESH_S: Final = 5.0
"""Seconds for which credentials are used until it is looked whether they have to be replaced."""

DEFAULT: Final = "~/.kube/config"

_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_NAMED: Final = ("tokenFile", "client-certificate", "client-key", "certificate-authority")

Seen: TypeAlias = tuple[tuple[str, int, int, int] | None, ...]
"""The files of a configuration as they were: path, inode, size and time of the last change of each."""


def is_own_pod(path: str) -> bool:
    """Return True if the configuration is that of the pod in which the daemon runs."""
    return not path and "KUBERNETES_SERVICE_HOST" in os.environ


def load(path: str, connections: int) -> tuple["Configuration", str]:
    """Return the configuration, and its namespace, which may be empty. Raises `not_configured`."""
    try:
        from kubernetes import client, config
    except ImportError:
        raise extras.not_installed("kubernetes", "the provider kubernetes") from None
    configuration = client.Configuration()
    context = settings.CONTEXT() or None
    try:
        if is_own_pod(path):
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            with open(f"{_SERVICE_ACCOUNT}/namespace", encoding="utf-8") as file:
                namespace = file.read().strip()
        else:
            path = path or os.path.expanduser(DEFAULT)
            config.load_kube_config(path, context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]
            contexts = config.list_kube_config_contexts(path)  # type: ignore[no-untyped-call]
            namespace = _namespace_of(contexts, context)
    except (config.ConfigException, OSError, ValueError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        message = f"no cluster is configured: {why}: set KUBECONFIG to a kubeconfig file"
        raise SetupError("not_configured", message, setting="KUBECONFIG") from None
    configuration.connection_pool_maxsize = connections
    _refresh_seldom(configuration)
    return configuration, namespace


def seen(path: str) -> Seen:
    """Return the state of a kubeconfig and of the files that it names; nothing for a pod's account, whose token the
    client reads again by itself.
    """
    if is_own_pod(path):
        return ()
    files = (path or os.path.expanduser(DEFAULT)).split(os.pathsep)
    return tuple(map(_state, [*files, *(name for file in files for name in _named_in(file))]))


def _state(path: str) -> tuple[str, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path, found.st_ino, found.st_size, found.st_mtime_ns


def _named_in(path: str) -> list[str]:
    """Return the files that a kubeconfig names. One that is being written names none: it is read again."""
    try:
        with open(path, "rb") as file:
            document: Any = msgspec.yaml.decode(file.read())
        parts = [each[kind] for kind in ("user", "cluster") for each in document[f"{kind}s"]]
        names = [part[name] for part in parts for name in _NAMED if name in part]
        return [os.path.join(os.path.dirname(path), name) for name in names]
    except (OSError, ValueError, LookupError, TypeError, msgspec.DecodeError):
        return []


def _refresh_seldom(configuration: "Configuration") -> None:
    """Make the client look for a newer token now and then: it does so for each request, by reading all its settings."""
    options: Any = configuration
    if (refresh := options.refresh_api_key_hook) is None:
        return
    due = 0.0

    def refresh_if_due(given: "Configuration") -> None:
        nonlocal due
        if time.monotonic() >= due:
            refresh(given)
            due = time.monotonic() + REFRESH_S

    options.refresh_api_key_hook = refresh_if_due


def _namespace_of(contexts: Any, wanted: str | None) -> str:
    every, current = contexts
    chosen = next((each for each in every if each["name"] == wanted), current)
    return str((chosen or {}).get("context", {}).get("namespace") or "")
