"""The controller of SandboxClaims: a Sandbox from a warm pool, or made from a template."""

from typing import Any

from tests.support.kubernetes.conversion import SHADOW
from tests.support.kubernetes.metadata import copy
from tests.support.kubernetes.reconcile import (
    Delays,
    Key,
    Object,
    Watches,
    condition,
    condition_of,
    controller_of,
    itself,
    key_of,
    name_hash,
    owner,
    reference_to,
    seconds_until,
    set_status,
    soonest,
)
from tests.support.kubernetes.sandboxes import POD_NAME, SANDBOXES
from tests.support.kubernetes.store import Propagation, Store
from tests.support.kubernetes.warm_pools import CREATED_BY, POOLS, TEMPLATE_REF_HASH, TEMPLATES, WARM, new_sandbox

CLAIMS = "sandboxclaims.extensions.agents.x-k8s.io"
CLAIM_UID = "agents.x-k8s.io/claim-uid"
LAUNCH_TYPE = "agents.x-k8s.io/launch-type"
ALLOWED_DOMAINS = ("sandbox.users.io",)
"""Of labels of claims for pods, unless the controller's file `allowed-label-domains` has others."""
RESTRICTED_DOMAINS = ("kubernetes.io", "k8s.io", "agents.x-k8s.io")
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"


class RefusedError(Exception):
    """A claim that cannot be met: the reason and message of its Ready condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Claims:
    """See `reconcile.Controller`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.watches: Watches = {
            CLAIMS: itself,
            SANDBOXES: owner("SandboxClaim"),
            TEMPLATES: self._waiting,
            POOLS: self._waiting,
        }
        self._delays = Delays()
        self._delay_s = 0.0
        self._hold: Object | None = None

    def script(self, **options: Any) -> None:
        """Options: `claim_delay_s`, seconds before a claim is met; `hold_claims`, `{reason, message}` with which all
        stay not ready, or null.
        """
        self._delay_s = options.get("claim_delay_s", self._delay_s)
        self._hold = options.get("hold_claims", self._hold)

    def _waiting(self, obj: Object) -> list[Key]:
        """Return the claims that have no Sandbox yet."""
        claims = self._store.list(CLAIMS, obj["metadata"]["namespace"])
        return [key_of(claim) for claim in claims if not claim.get("status", {}).get("sandbox")]

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """See `reconcile.Controller`."""
        claim = self._store.get(CLAIMS, namespace, name)
        if claim is None or "deletionTimestamp" in claim["metadata"]:
            return None
        until = self._seconds_left(claim)
        if until is not None and until <= 0:
            self._expire(claim)
            return None
        if self._hold is not None:
            refused = condition("Ready", "False", self._hold["reason"], self._hold.get("message", ""))
            set_status(self._store, CLAIMS, claim, [refused])
            return until
        left = self._delays.left(claim, self._delay_s)
        if left > 0:
            return soonest(left, until)
        try:
            sandbox = self._sandbox(claim)
        except RefusedError as error:
            set_status(self._store, CLAIMS, claim, [condition("Ready", "False", error.reason, str(error))])
            return until
        self._report(claim, sandbox)
        return until

    def _seconds_left(self, claim: Object) -> float | None:
        lifecycle = claim["spec"].get("lifecycle", {})
        finished = condition_of(claim, "Finished")
        kept_s = lifecycle.get("ttlSecondsAfterFinished")
        left = None
        if finished.get("status") == "True" and kept_s is not None:
            left = kept_s + (seconds_until(finished["lastTransitionTime"]) or 0)
        return soonest(seconds_until(lifecycle.get("shutdownTime")), left)

    def _expire(self, claim: Object) -> None:
        policy = claim["spec"]["lifecycle"].get("shutdownPolicy", "Retain")
        uid = claim["metadata"]["uid"]
        if policy != "Retain":
            propagation: Propagation = "Foreground" if policy == "DeleteForeground" else "Background"
            self._store.delete(CLAIMS, *key_of(claim), uid=uid, propagation=propagation)
            return
        sandbox = self._found(claim)
        if sandbox is not None and "deletionTimestamp" not in sandbox["metadata"]:
            self._store.delete(SANDBOXES, *key_of(sandbox), uid=sandbox["metadata"]["uid"])
        set_status(self._store, CLAIMS, claim, [condition("Ready", "False", "ClaimExpired", "Claim has expired")])

    def _report(self, claim: Object, sandbox: Object) -> None:
        ready = condition_of(sandbox, "Ready") or condition("Ready", "False", "SandboxNotReady", "Sandbox is not ready")
        conditions = [_copied(ready), *map(_copied, filter(None, [condition_of(sandbox, "Finished")]))]
        name, addresses = sandbox["metadata"]["name"], sandbox.get("status", {}).get("podIPs", [])
        set_status(self._store, CLAIMS, claim, conditions, sandbox={"name": name, "podIPs": addresses})

    # The Sandbox of a claim

    def _found(self, claim: Object) -> Object | None:
        """Return the Sandbox that a claim has already."""
        namespace, name = key_of(claim)
        known = claim.get("status", {}).get("sandbox", {}).get("name", name)
        sandbox = self._store.get(SANDBOXES, namespace, known)
        owned = controller_of(sandbox) if sandbox is not None else None
        return sandbox if owned is not None and owned["uid"] == claim["metadata"]["uid"] else None

    def _sandbox(self, claim: Object) -> Object:
        """Return the Sandbox of a claim, found or made. Raises RefusedError and ApiError."""
        _check_metadata(claim)
        found = self._found(claim)
        pool, template = self._source(claim)
        if found is not None:
            return self._match(claim, template, found)
        spec = _blueprint(claim, template)
        cold = claim["spec"].get("env") or claim["spec"].get("volumeClaimTemplates")
        warm = self._warm(pool) if pool is not None and not cold else None
        return self._adopt(claim, template, warm) if warm is not None else self._make(claim, template, spec)

    def _match(self, claim: Object, template: Object, sandbox: Object) -> Object:
        """Carry the metadata of pods, which a claim may have changed, into its Sandbox. Raises RefusedError."""
        wanted = _pod_metadata(claim, template)
        if sandbox["spec"]["podTemplate"].get("metadata") == wanted:
            return sandbox

        def change(new: Object) -> None:
            new["spec"]["podTemplate"]["metadata"] = wanted

        return self._store.update(SANDBOXES, *key_of(sandbox), change)

    def _source(self, claim: Object) -> tuple[Object | None, Object]:
        """Return the warm pool, if there is any, and the template. Raises RefusedError."""
        namespace, wanted = claim["metadata"]["namespace"], claim["spec"]["warmPoolRef"]["name"]
        pool = self._store.get(POOLS, namespace, wanted)
        if pool is None and not wanted.startswith(SHADOW):
            raise RefusedError("WarmPoolNotFound", f'SandboxWarmPool "{wanted}" not found')
        name = pool["spec"]["sandboxTemplateRef"]["name"] if pool is not None else wanted.removeprefix(SHADOW)
        template = self._store.get(TEMPLATES, namespace, name)
        if template is None:
            raise RefusedError("TemplateNotFound", f'SandboxTemplate "{name}" not found')
        return pool, template

    def _warm(self, pool: Object) -> Object | None:
        """Return the oldest ready Sandbox of a pool."""
        ready = [
            sandbox
            for sandbox in self._store.list(SANDBOXES, pool["metadata"]["namespace"])
            if (controller_of(sandbox) or {}).get("uid") == pool["metadata"]["uid"]
            and "deletionTimestamp" not in sandbox["metadata"]
            and condition_of(sandbox, "Ready").get("status") == "True"
        ]
        return min(ready, key=lambda sandbox: int(sandbox["metadata"]["resourceVersion"]), default=None)

    def _adopt(self, claim: Object, template: Object, sandbox: Object) -> Object:
        def change(new: Object) -> None:
            meta = new["metadata"]
            meta["ownerReferences"] = [reference_to(claim)]
            meta["labels"].pop(WARM, None)
            meta["labels"] |= {CLAIM_UID: claim["metadata"]["uid"], LAUNCH_TYPE: "warm"}
            meta.setdefault("annotations", {})[POD_NAME] = sandbox["metadata"]["name"]
            new["spec"]["podTemplate"]["metadata"] = _pod_metadata(claim, template)

        return self._store.update(SANDBOXES, *key_of(sandbox), change)

    def _make(self, claim: Object, template: Object, spec: Object) -> Object:
        sandbox = new_sandbox(template, claim, spec)
        meta = sandbox["metadata"]
        meta["name"] = claim["metadata"]["name"]
        meta["labels"] |= {CLAIM_UID: claim["metadata"]["uid"], LAUNCH_TYPE: "cold"}
        return self._store.create(SANDBOXES, claim["metadata"]["namespace"], sandbox)


def _copied(found: Object) -> Object:
    return {key: value for key, value in found.items() if key not in ("lastTransitionTime", "observedGeneration")}


def _pod_metadata(claim: Object, template: Object) -> Object:
    """Return the metadata of pods of a claim's Sandbox: the template's, the controller's and the claim's. Raises
    RefusedError for values that contradict the template's.
    """
    have = template["spec"]["podTemplate"].get("metadata", {})
    given = claim["spec"].get("additionalPodMetadata", {})
    for field in ("labels", "annotations"):
        for key, value in given.get(field, {}).items():
            if have.get(field, {}).get(key, value) != value:
                why = f'{field[:-1]} "{key}" conflicts: template has "{have[field][key]}", claim has "{value}"'
                raise RefusedError("InvalidMetadata", why)
    marks = {CLAIM_UID: claim["metadata"]["uid"], TEMPLATE_REF_HASH: name_hash(template["metadata"]["name"])}
    if creator := claim["metadata"].get("labels", {}).get(CREATED_BY):
        marks[CREATED_BY] = creator
    labels = {**have.get("labels", {}), **marks, **given.get("labels", {})}
    annotations = {**have.get("annotations", {}), **given.get("annotations", {})}
    return {**have, "labels": labels, **({"annotations": annotations} if annotations else {})}


def _blueprint(claim: Object, template: Object) -> Object:
    """Return the spec of a new Sandbox for a claim. Raises RefusedError."""
    spec = copy(template["spec"])
    spec["podTemplate"]["metadata"] = _pod_metadata(claim, template)
    _check_volumes(claim, spec)
    _add_environment(claim, spec)
    return spec


def _check_metadata(claim: Object) -> None:
    """Refuse labels outside the domains that are allowed by default, and annotations of the system's own."""
    given = claim["spec"].get("additionalPodMetadata", {})
    for key in given.get("labels", {}):
        domain, slash, _ = key.lower().rpartition("/")
        if not slash:
            raise RefusedError("InvalidMetadata", f'label "{key}" must have a domain prefix')
        if not _is_in(domain, ALLOWED_DOMAINS):
            raise RefusedError("InvalidMetadata", f'label domain "{domain}" is not in the allowlist')
    for key in given.get("annotations", {}):
        domain = key.lower().rpartition("/")[0]
        if _is_in(domain, RESTRICTED_DOMAINS) and key != SAFE_TO_EVICT:
            raise RefusedError("InvalidMetadata", f'restricted system domain: "{key}" is not allowed')


def _is_in(domain: str, domains: tuple[str, ...]) -> bool:
    return any(domain == each or domain.endswith(f".{each}") for each in domains)


def _check_volumes(claim: Object, spec: Object) -> None:
    templates = claim["spec"].get("volumeClaimTemplates")
    if not templates:
        return
    policy = spec.get("volumeClaimTemplatesPolicy", "Disallowed")
    have = {found["metadata"]["name"] for found in spec.get("volumeClaimTemplates", [])}
    names = {found["metadata"]["name"] for found in templates}
    if policy == "Disallowed" or (policy == "Allowed" and have & names):
        raise RefusedError("VolumeClaimTemplatesError", f"volumeClaimTemplates are not allowed: policy is {policy}")
    kept = [found for found in spec.get("volumeClaimTemplates", []) if found["metadata"]["name"] not in names]
    spec["volumeClaimTemplates"] = [*kept, *templates]


def _add_environment(claim: Object, spec: Object) -> None:
    policy = spec.get("envVarsInjectionPolicy", "Disallowed")
    pod = spec["podTemplate"]["spec"]
    containers = {found["name"]: found for found in [*pod.get("initContainers", []), *pod["containers"]]}
    for variable in claim["spec"].get("env", []):
        name = variable.get("containerName") or pod["containers"][0]["name"]
        if policy == "Disallowed":
            raise RefusedError("EnvVarsInjectionRejected", "environment variable injection is not allowed")
        if name not in containers:
            raise RefusedError("EnvVarsInjectionRejected", f'container "{name}" not found in template')
        env = containers[name].setdefault("env", [])
        if policy != "Overrides" and any(known["name"] == variable["name"] for known in env):
            why = f'environment variable "{variable["name"]}" is already set in container "{name}"'
            raise RefusedError("EnvVarsInjectionRejected", why)
        env[:] = [known for known in env if known["name"] != variable["name"]]
        env.append({"name": variable["name"], "value": variable["value"]})
