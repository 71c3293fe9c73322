"""Authentication by bearer tokens, and RBAC."""

from collections import Counter
from collections.abc import Iterator
from secrets import token_hex
from typing import Any, NamedTuple

from tests.support.kubernetes.builtin import RBAC
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.resources import Object
from tests.support.kubernetes.store import Store


class User(NamedTuple):
    """A client, as its token identifies it."""

    name: str
    groups: tuple[str, ...] = ()
    token: str = ""

    @property
    def is_admin(self) -> bool:
        """Tell whether authorization is skipped."""
        return "system:masters" in self.groups


class Attributes(NamedTuple):
    """What a request does, as RBAC sees it."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str | None = None
    name: str | None = None

    @property
    def target(self) -> str:
        """The resource as rules name it, `pods/exec`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Access:
    """Tokens, and a record of the verbs that each used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._users: dict[str, User] = {}
        self._used: Counter[tuple[User, str, str, str, str]] = Counter()
        self.admin = self.issue("kubernetes-admin", ("system:masters",))

    def issue(self, name: str, groups: tuple[str, ...] = ()) -> str:
        """Make a token for a user or a service account (`system:serviceaccount:NAMESPACE:NAME`)."""
        token = token_hex(16)
        self._users[token] = User(name, (*groups, "system:authenticated"), token)
        return token

    def revoke(self, token: str) -> None:
        """Forget a token."""
        self._users.pop(token, None)

    def authenticate(self, header: str) -> User:
        """The user of an Authorization header. Raises ApiError 401."""
        kind, _, token = header.partition(" ")
        user = self._users.get(token.strip())
        if kind.lower() != "bearer" or user is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        return user

    def authorize(self, user: User, wanted: Attributes) -> None:
        """Record the use of a verb. Raises ApiError 403 if no rule allows it."""
        if not self.allows(user, wanted):
            plural = f"{wanted.resource}.{wanted.group}" if wanted.group else wanted.resource
            subject = f'{plural} "{wanted.name}"' if wanted.name else plural
            where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
            act = f'cannot {wanted.verb} resource "{wanted.target}" in API group "{wanted.group}" {where}'
            details = {"name": wanted.name or "", "group": wanted.group, "kind": wanted.resource}
            raise ApiError(403, "Forbidden", f'{subject} is forbidden: User "{user.name}" {act}', **details)
        self._used[user, wanted.verb, wanted.group, wanted.resource, wanted.subresource] += 1

    def allows(self, user: User, wanted: Attributes) -> bool:
        """Tell whether a rule allows this."""
        return user.is_admin or any(_permits(rule, wanted) for rule in self._rules(user, wanted.namespace))

    def used(self) -> list[dict[str, Any]]:
        """The verbs that each token used, and how often."""
        return [
            {
                "token": user.token,
                "user": user.name,
                "verb": verb,
                "group": group,
                "resource": resource,
                "subresource": subresource,
                "count": count,
            }
            for (user, verb, group, resource, subresource), count in self._used.items()
        ]

    def _rules(self, user: User, namespace: str | None) -> Iterator[Object]:
        bindings = self._store.list(f"clusterrolebindings.{RBAC}")
        if namespace:
            bindings = bindings + self._store.list(f"rolebindings.{RBAC}", namespace)
        for binding in bindings:
            default = binding["metadata"].get("namespace")
            if any(_is_subject(user, subject, default) for subject in binding.get("subjects", [])):
                reference = binding["roleRef"]
                cluster = reference["kind"] == "ClusterRole"
                kind = f"clusterroles.{RBAC}" if cluster else f"roles.{RBAC}"
                role = self._store.get(kind, None if cluster else default, reference["name"])
                yield from (role or {}).get("rules", [])


def _is_subject(user: User, subject: Object, default_namespace: str | None) -> bool:
    if subject["kind"] == "ServiceAccount":
        namespace = subject.get("namespace", default_namespace)
        return user.name == f"system:serviceaccount:{namespace}:{subject['name']}"
    return subject["name"] in ((user.name,) if subject["kind"] == "User" else user.groups)


def _permits(rule: Object, wanted: Attributes) -> bool:
    resources = rule.get("resources", [])
    return (
        bool({"*", wanted.verb} & set(rule.get("verbs", [])))
        and bool({"*", wanted.group} & set(rule.get("apiGroups", [])))
        and bool({"*", wanted.target, f"*/{wanted.subresource or '-'}"} & set(resources))
        and (not rule.get("resourceNames") or wanted.name in rule["resourceNames"])
    )
