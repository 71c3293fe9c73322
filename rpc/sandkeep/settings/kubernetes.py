"""The settings of the Kubernetes provider, for the administrator. See `settings` for the manner."""

from typing import Final

from sandkeep.settings.daemon import Setting, matching, number_between

_DNS_NAME: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

KUBECONFIG = Setting(
    "KUBECONFIG",
    str,
    "that of the pod in which the daemon runs, else `~/.kube/config`",
    "The kubeconfig file of the cluster that the Kubernetes provider uses.",
    default=lambda: "",
)
CONTEXT = Setting(
    "SANDKEEP_KUBERNETES_CONTEXT",
    str,
    "the current one",
    "The context in the kubeconfig file.",
    default=lambda: "",
)
NAMESPACE = Setting(
    "SANDKEEP_KUBERNETES_NAMESPACE",
    matching(_DNS_NAME, "give the name of a namespace: small letters, digits and '-'"),
    "the context's, else default",
    "The namespace in which sandboxes are made. It has to exist.",
    default=lambda: "",
)
MACHINE = Setting(
    "SANDKEEP_KUBERNETES_MACHINE",
    matching(r"amd64|arm64", "give amd64 or arm64"),
    "that of the daemon's machine",
    "The architecture of the nodes on which sandboxes run, `amd64` or `arm64`. The keeper is a program for one.",
    default=lambda: "",
)
RUNTIME_CLASS = Setting(
    "SANDKEEP_KUBERNETES_RUNTIME_CLASS",
    matching(_DNS_NAME, "give the name of a RuntimeClass"),
    "the cluster's default",
    "The RuntimeClass of sandboxes, such as `gvisor`. Templates name their own.",
    default=lambda: "",
)
USER = Setting(
    "SANDKEEP_KUBERNETES_USER",
    matching(r"[0-9]{1,9}(:[0-9]{1,9})?", "give a uid such as 1000, or uid:gid"),
    "1000:1000",
    "The user of sandboxes that ask for none, as `uid` or `uid:gid`. Templates name their own.",
)
START_S = Setting(
    "SANDKEEP_KUBERNETES_START_TIMEOUT",
    number_between(1, 3600),
    "110",
    "Seconds that a pod may take to run: its image is pulled, and a node may have to be added for it.",
)
