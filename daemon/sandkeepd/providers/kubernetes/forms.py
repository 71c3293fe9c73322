"""The resources that a cluster has for sandboxes, and what a namespace needs before the first."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from sandkeep.errors import ProviderError, SetupError
from sandkeep.kubernetes import versions
from sandkeepd.keeper import program
from sandkeepd.providers.kubernetes import manifests
from sandkeepd.providers.kubernetes.cluster import CONFIG_MAPS, NETWORK_POLICIES, PODS, Api, Json, Kind
from sandkeepd.providers.kubernetes.manifests import Job
from sandkeepd.providers.kubernetes.requests import CONFLICT, ENGINE, RefusedError

Form: TypeAlias = Literal["pod", "sandbox", "claim"]
"""The object that is made: a plain pod, a Sandbox, or a SandboxClaim."""


class Forms(Struct, frozen=True, kw_only=True):
    """The versions of the resources that a cluster has; None for those that it does not."""

    sandboxes: str | None
    claims: str | None
    pod_snapshots: str | None

    def kind(self, form: Form) -> Kind:
        """Return the kind of the objects of a form. Raises `provider_unavailable` if the cluster does not serve it."""
        if form == "sandbox":
            return Kind(versions.AGENTS.name, _served(self.sandboxes, versions.AGENTS), "sandboxes")
        if form == "claim":
            return Kind(versions.EXTENSIONS.name, _served(self.claims, versions.EXTENSIONS), "sandboxclaims")
        return PODS

    def kinds(self) -> list[Kind]:
        """Return all kinds of which a sandbox may have an object, the owners of others first."""
        forms: dict[Form, str | None] = {"claim": self.claims, "sandbox": self.sandboxes, "pod": PODS.version}
        return [self.kind(form) for form, version in forms.items() if version is not None]

    def form_of(self, job: Job) -> Form:
        """Return the form for a new sandbox. Raises `not_supported`."""
        if not job.plan.is_claim:
            return "sandbox" if self.sandboxes is not None else "pod"
        if self.claims is None:
            message = f"the cluster has no {versions.EXTENSIONS.name}: install agent-sandbox's extensions there"
            raise SetupError("not_supported", message)
        return "claim"

    def body(self, form: Form, job: Job) -> Json:
        """Return the object to make."""
        if form == "sandbox":
            return manifests.sandbox(job, self.sandboxes or "")
        return manifests.claim(job, self.claims or "") if form == "claim" else manifests.pod(job)


def _served(version: str | None, group: versions.Group) -> str:
    """Return the version of a group. Its objects may well be there while nobody serves it: they are not lost."""
    if version is None:
        message = f"the cluster does not serve {group.name} now: see that its custom resources are installed"
        raise ProviderError("provider_unavailable", message, engine=ENGINE)
    return version


def discover(api: Api) -> Forms:
    """Ask the cluster for the resources that it has. Blocks."""
    found, choose = msgspec.to_builtins(api.groups()), versions.choose_version
    return Forms(
        sandboxes=choose(found, versions.AGENTS),
        claims=choose(found, versions.EXTENSIONS),
        pod_snapshots=choose(found, versions.POD_SNAPSHOTS),
    )


def prepare_namespace(api: Api, machine: str) -> str:
    """Put the keeper, and the policy of sandboxes without a network, into the namespace. Blocks. Safe to repeat.

    Returns the name of the ConfigMap with the keeper. Raises `provider_unavailable` if somebody has put other content
    there under its name, or another policy: sandboxes would run that with their secrets, or have a network.
    """
    keeper, policy = manifests.keeper_map(program.read(machine)), manifests.closed_policy()
    for kind, body in ((CONFIG_MAPS, keeper), (NETWORK_POLICIES, policy)):
        name = str(body["metadata"]["name"])
        found = api.document(kind, name) or _create(api, kind, body) or api.document(kind, name) or {}
        if _content(found) != _content(body):
            message = f"{name} ({kind.plural}) was changed by another program: find out which, then delete the object"
            raise ProviderError("provider_unavailable", message)
    return str(keeper["metadata"]["name"])


def _create(api: Api, kind: Kind, body: Json) -> Json | None:
    """Create an object; return it, or None if another daemon has just made it."""
    try:
        api.create(kind, body)
    except RefusedError as refused:
        if refused.status != CONFLICT:
            raise
        return None
    return body


def _content(found: Json) -> Json:
    """Return the fields of an object that have an effect, without empty ones, which the API server may leave out."""
    fields = {name: value for name, value in found.items() if name in ("data", "binaryData", "spec")}
    if isinstance(spec := fields.get("spec"), dict):
        fields["spec"] = {name: value for name, value in spec.items() if value}
    return {name: value for name, value in fields.items() if value}
