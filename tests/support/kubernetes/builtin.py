"""The kinds that every cluster has."""

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.resources import Object, Resource
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.validation import admit_data, admit_namespace, admit_plain, admit_pod

RBAC = "rbac.authorization.k8s.io"
CRDS = "customresourcedefinitions.apiextensions.k8s.io"


def _admit_rbac(new: Object, old: Object | None) -> None:
    """Admit names with colons, as `system:node`; the role of a binding is immutable."""
    if old and new.get("roleRef") != old.get("roleRef"):
        raise ApiError(422, "Invalid", f'{new["kind"]} "{new["metadata"]["name"]}" is invalid: roleRef: cannot change')


KINDS = (
    Resource("namespaces", "Namespace", namespaced=False, status=True, short_names=("ns",), admit=admit_namespace),
    Resource("nodes", "Node", namespaced=False, status=True, short_names=("no",), admit=admit_plain),
    Resource("pods", "Pod", status=True, short_names=("po",), admit=admit_pod),
    Resource("configmaps", "ConfigMap", short_names=("cm",), admit=admit_data),
    Resource("secrets", "Secret", admit=admit_data),
    Resource("events", "Event", short_names=("ev",), admit=admit_plain),
    Resource("services", "Service", status=True, short_names=("svc",), admit=admit_plain),
    Resource("serviceaccounts", "ServiceAccount", short_names=("sa",), admit=admit_plain),
    Resource("persistentvolumeclaims", "PersistentVolumeClaim", status=True, short_names=("pvc",), admit=admit_plain),
    Resource("networkpolicies", "NetworkPolicy", "networking.k8s.io", short_names=("netpol",), admit=admit_plain),
    Resource("runtimeclasses", "RuntimeClass", "node.k8s.io", namespaced=False, admit=admit_plain),
    Resource("leases", "Lease", "coordination.k8s.io", admit=admit_plain),
    Resource("roles", "Role", RBAC, admit=_admit_rbac),
    Resource("rolebindings", "RoleBinding", RBAC, admit=_admit_rbac),
    Resource("clusterroles", "ClusterRole", RBAC, namespaced=False, admit=_admit_rbac),
    Resource("clusterrolebindings", "ClusterRoleBinding", RBAC, namespaced=False, admit=_admit_rbac),
)


def install(store: Store) -> None:
    """Register the built-in kinds, and create the namespaces of a new cluster."""
    for kind in KINDS:
        store.register(kind)
    for name in ("default", "kube-system", "kube-public"):
        store.create("namespaces", None, {"metadata": {"name": name}})
        store.create("serviceaccounts", name, {"metadata": {"name": "default"}})
