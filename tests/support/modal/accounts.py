"""Accounts at our double for the provider, and the check that nothing of the SDK is left in this process."""

import contextlib
from collections.abc import Iterator, Mapping

from tests.support.expect import until
from tests.support.modal.sdk import open_sockets
from tests.support.modal.service import Modal

from sandkeepd.providers.modal.sdk import Account


def account_at(service: Modal, token: Mapping[str, str] | None = None) -> Account:
    """Return an account with the service's own token, or another."""
    token = token or service.token
    return Account(server_url=service.url, token_id=token["id"], token_secret=token["secret"])


@contextlib.contextmanager
def leaving_no_descriptors() -> Iterator[None]:
    """Check, at the end of a block, that this process has no more sockets and event loops than before."""
    before = open_sockets()
    yield
    until(lambda: open_sockets() <= before, seen=lambda: open_sockets() - before)
