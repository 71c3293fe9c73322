"""Garbage collection by ownerReferences."""

from typing import TYPE_CHECKING

from tests.support.kubernetes.resources import Object

if TYPE_CHECKING:
    from tests.support.kubernetes.store import Store

Address = tuple[str, str, str]  # resource, namespace, name


class Dependents:
    """Objects by the uid of their owners, and the addresses of all objects by uid."""

    def __init__(self) -> None:
        self._by_owner: dict[str, dict[Address, bool]] = {}  # the value: blockOwnerDeletion
        self._addresses: dict[str, Address] = {}

    def index(self, address: Address, old: Object | None, new: Object | None) -> None:
        """Take in that an object was created, changed or removed."""
        for owner in _references(old):
            owned = self._by_owner.get(owner["uid"], {})
            owned.pop(address, None)
            if not owned:
                self._by_owner.pop(owner["uid"], None)
        for owner in _references(new):
            self._by_owner.setdefault(owner["uid"], {})[address] = bool(owner.get("blockOwnerDeletion"))
        if new is not None:
            self._addresses[new["metadata"]["uid"]] = address
        elif old is not None:
            self._addresses.pop(old["metadata"]["uid"], None)

    def of(self, uid: str) -> list[Address]:
        """Objects that name this owner."""
        return list(self._by_owner.get(uid, ()))

    def blocking(self, uid: str) -> bool:
        """Tell whether a dependent with blockOwnerDeletion exists."""
        return any(self._by_owner.get(uid, {}).values())

    def owners(self, obj: Object) -> list[Address]:
        """Addresses of the owners that exist."""
        return [self._addresses[o["uid"]] for o in _references(obj) if o["uid"] in self._addresses]

    def collect(self, store: "Store", uid: str) -> None:
        """Delete what a removed object owned alone; take its reference from what has other owners."""
        for address in self.of(uid):
            dependent = store.get(*address)
            if dependent is None:
                continue
            if self.owners(dependent):
                _take_reference(store, address, uid)
            else:
                store.delete(*address)

    def release(self, store: "Store", uid: str) -> None:
        """Take the reference to an owner from all its dependents."""
        for address in self.of(uid):
            _take_reference(store, address, uid)


def _references(obj: Object | None) -> list[Object]:
    return obj["metadata"].get("ownerReferences", []) if obj else []


def _take_reference(store: "Store", address: Address, uid: str) -> None:
    def change(obj: Object) -> None:
        references = [owner for owner in _references(obj) if owner["uid"] != uid]
        obj["metadata"]["ownerReferences"] = references

    store.update(*address, change)
