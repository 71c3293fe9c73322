"""The controllers of the double: sandboxes, claims, warm pools, and pod snapshots."""

from tests.support.kubernetes.claims import Claims
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.pod_snapshots import Snapshots, Triggers, show_controller
from tests.support.kubernetes.reconcile import Manager
from tests.support.kubernetes.sandboxes import Sandboxes
from tests.support.kubernetes.snapshot_rules import is_served
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.warm_pools import WarmPools


def create(store: Store, kubelet: Kubelet) -> Manager:
    """Make the controllers, as one `Component`."""
    if is_served(store):
        show_controller(store, present=True)
    snapshots = (Triggers(store, kubelet), Snapshots(store, kubelet))
    return Manager(store, [Sandboxes(store), Claims(store), WarmPools(store), *snapshots])
