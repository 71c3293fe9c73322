"""How the daemon speaks to Google Cloud Storage."""

import pytest

from sandkeep_store.buckets import gcs_client
from sandkeep_store.buckets.gcs_client import connect

pytestmark = pytest.mark.needs("gcs")


def test_proxies_and_certificates_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is asked once, and not before each request."""
    settings = {
        "STORAGE_EMULATOR_HOST": "http://storage.example:4443",
        "HTTP_PROXY": "http://proxy.example:3128",
        "REQUESTS_CA_BUNDLE": "/etc/our-own.pem",
    }
    for name in ("http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    gcs_client._connect.cache_clear()
    session = connect().http
    monkeypatch.undo()
    gcs_client._connect.cache_clear()
    used = session.merge_environment_settings("http://storage.example:4443/x", {}, None, None, None)
    assert used["proxies"]["http"] == "http://proxy.example:3128"
    assert used["verify"] == "/etc/our-own.pem"
    assert session.trust_env is False
