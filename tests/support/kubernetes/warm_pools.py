"""The controller of SandboxWarmPools: Sandboxes that wait for a claim."""

import json
from typing import Any

from tests.support.kubernetes.reconcile import (
    Key,
    Object,
    Watches,
    condition_of,
    controller_of,
    itself,
    key_of,
    name_hash,
    owner,
    reference_to,
    set_status,
)
from tests.support.kubernetes.sandboxes import SANDBOXES
from tests.support.kubernetes.store import Store

POOLS = "sandboxwarmpools.extensions.agents.x-k8s.io"
TEMPLATES = "sandboxtemplates.extensions.agents.x-k8s.io"
WARM = "agents.x-k8s.io/warm-pool-sandbox"
TEMPLATE_REF = "agents.x-k8s.io/sandbox-template-ref"
TEMPLATE_REF_HASH = "agents.x-k8s.io/sandbox-template-ref-hash"
TEMPLATE_HASH = "agents.x-k8s.io/sandbox-template-hash"
CREATED_BY = "agents.x-k8s.io/created-by"
BLUEPRINT = ("podTemplate", "service", "volumeClaimTemplates")


class WarmPools:
    """See `reconcile.Controller`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.watches: Watches = {POOLS: itself, SANDBOXES: self._pool_of, TEMPLATES: self._users}

    def script(self, **options: Any) -> None:
        """See `Component`; there is nothing to script."""

    def _pool_of(self, sandbox: Object) -> list[Key]:
        """Return the pool that has a Sandbox, or from which a claim has just taken it."""
        found = owner("SandboxWarmPool")(sandbox)
        name = sandbox["metadata"].get("labels", {}).get(CREATED_BY)
        return found or ([(sandbox["metadata"]["namespace"], name)] if name else [])

    def _users(self, template: Object) -> list[Key]:
        pools = self._store.list(POOLS, template["metadata"]["namespace"])
        wanted = template["metadata"]["name"]
        return [key_of(pool) for pool in pools if pool["spec"]["sandboxTemplateRef"]["name"] == wanted]

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """See `reconcile.Controller`."""
        pool = self._store.get(POOLS, namespace, name)
        if pool is None or "deletionTimestamp" in pool["metadata"]:
            return None
        template = self._store.get(TEMPLATES, namespace, pool["spec"]["sandboxTemplateRef"]["name"])
        sandboxes = [
            sandbox
            for sandbox in self._store.list(SANDBOXES, namespace)
            if (controller_of(sandbox) or {}).get("uid") == pool["metadata"]["uid"]
            and "deletionTimestamp" not in sandbox["metadata"]
        ]
        if template is not None:
            self._adjust(pool, template, sandboxes)
        ready = [found for found in sandboxes if condition_of(found, "Ready").get("status") == "True"]
        selector = f"{WARM}={name_hash(name)}"
        fields: Object = {"replicas": len(sandboxes), "readyReplicas": len(ready), "selector": selector}
        set_status(self._store, POOLS, pool, [], (), **fields, observedGeneration=pool["metadata"]["generation"])
        return None

    def _adjust(self, pool: Object, template: Object, sandboxes: list[Object]) -> None:
        """Bring the number of Sandboxes to that which is wanted."""
        wanted = template_hash(template)
        if pool["spec"].get("updateStrategy", {}).get("type") == "Recreate":
            for sandbox in list(sandboxes):
                if sandbox["metadata"]["labels"].get(TEMPLATE_HASH) != wanted:
                    self._store.delete(SANDBOXES, *key_of(sandbox))
                    sandboxes.remove(sandbox)
        replicas = pool["spec"].get("replicas", 1)
        while len(sandboxes) > replicas:
            self._store.delete(SANDBOXES, *key_of(sandboxes.pop()))
        while len(sandboxes) < replicas:
            sandbox = new_sandbox(template, pool, template["spec"])
            name = pool["metadata"]["name"]
            sandbox["metadata"] |= {"generateName": f"{name}-"}
            sandbox["metadata"]["labels"] |= {WARM: name_hash(name), CREATED_BY: name}
            sandboxes.append(self._store.create(SANDBOXES, pool["metadata"]["namespace"], sandbox))


def template_hash(template: Object) -> str:
    """Return a hash of what Sandboxes take from a template."""
    return name_hash(json.dumps(template["spec"], sort_keys=True))


def new_sandbox(template: Object, parent: Object, spec: Object) -> Object:
    """Return a Sandbox of a template without a name, owned by a claim or a pool."""
    name = template["metadata"]["name"]
    labels = {TEMPLATE_REF_HASH: name_hash(name), TEMPLATE_HASH: template_hash(template)}
    meta = {"labels": labels, "annotations": {TEMPLATE_REF: name}, "ownerReferences": [reference_to(parent)]}
    return {"metadata": meta, "spec": {key: spec[key] for key in BLUEPRINT if key in spec}}
