"""Memory that each user's clients make the daemon hold, and the choice of the client to drop over the limit.

Counted are the bytes of incomplete lines and messages, of calls in flight, and of unread answers. The cost of idle
connections is bounded by their number per user.
"""

from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from sandkeep.settings.daemon import CLIENT_MEMORY

CALL_BYTES: Final = 8 * 1024
"""Weight of a call in flight besides its own bytes: its task and related objects."""


class Account:
    """The memory held for one user. `shares` are the connections that hold some, least recently active first.

    Over the limit, a connection with at least the average is dropped: the least recently active of these. So clients
    that never read are dropped, and active ones stay.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.transient = 0
        self.reserved = 0
        self.shares: dict[Share, None] = {}

    @property
    def is_over(self) -> bool:
        """True if the limit is exceeded."""
        return self.transient + self.reserved > self._limit

    def relieve(self) -> None:
        """Drop connections until the rest is within the limit, or none is left."""
        while self.is_over and self.shares:
            average = self.transient / len(self.shares)
            next(share for share in self.shares if share.held >= average).drop()


class Share:
    """The memory held for a connection. `give_up` is called once, when it is dropped; then only kept bytes count."""

    def __init__(self, account: Account, give_up: Callable[[], None]) -> None:
        self._account = account
        self._give_up = give_up
        self._dropped = False
        self.held = 0

    def add(self, size: int) -> None:
        """So many bytes more."""
        if not self._dropped:
            self.held += size
            self._account.transient += size
            self.touch()
            self._account.relieve()

    def subtract(self, size: int) -> None:
        """So many bytes less."""
        if not self._dropped:
            self.held -= size
            self._account.transient -= size
            self.touch()

    def touch(self) -> None:
        """The client took or gave something."""
        shares = self._account.shares
        shares.pop(self, None)
        if self.held and not self._dropped:
            shares[self] = None

    def reserve(self, size: int) -> bool:
        """Add bytes that stay until `release`, beyond the connection's end. False when there is no room."""
        self._account.reserved += size
        self._account.relieve()
        if self._account.is_over or self._dropped:
            self._account.reserved -= size
            return False
        return True

    def release(self, size: int) -> None:
        """So many bytes less that were kept."""
        self._account.reserved -= size

    def drop(self) -> None:
        """Drop the connection."""
        self.close()
        self._give_up()

    def close(self) -> None:
        """Hold nothing any more."""
        self.subtract(self.held)
        self._dropped = True


class Holdings:
    """The accounts of all users. API and stream server share them."""

    def __init__(self, max_bytes_of_user: int | None = None) -> None:
        self._limit = CLIENT_MEMORY() if max_bytes_of_user is None else max_bytes_of_user
        self._accounts: WeakValueDictionary[int, Account] = WeakValueDictionary()

    def share(self, uid: int, give_up: Callable[[], None]) -> Share:
        """The share of a new connection of that user."""
        account = self._accounts.get(uid)
        if account is None:
            account = self._accounts[uid] = Account(self._limit)
        return Share(account, give_up)

    def of(self, uid: int) -> int:
        """Return the bytes held for a user."""
        account = self._accounts.get(uid)
        return account.transient + account.reserved if account is not None else 0
