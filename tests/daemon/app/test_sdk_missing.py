"""A daemon beside which the SDKs of buckets are not installed: it says which extra brings them, and all else works."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import refused
from tests.support.snapshots import sh

pytestmark = pytest.mark.needs("bwrap")

WITHOUT = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("boto3", "botocore", "google", "requests"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
"""As if they were not there: what any import of them raises."""


@pytest.fixture
def daemon(new_daemon: Callable[[], RunningDaemon], tmp_path: Path) -> RunningDaemon:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    made = new_daemon()
    made.env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), made.env.get("PYTHONPATH", "")])
    return made


@pytest.fixture
def box(daemon: RunningDaemon, source: str) -> Callable[[Any], str]:
    return lambda client: client.sandbox.create(client.image.create(source).image_id).sandbox_id


@pytest.mark.parametrize(("setting", "extra"), [("FILESYSTEM_SNAPSHOT_BUCKET", "gcs"), ("SANDBOX_S3_BUCKET", "s3")])
def test_archives(daemon: RunningDaemon, box: Callable[[Any], str], setting: str, extra: str) -> None:
    daemon.start(**{setting: "ours"})
    with daemon.connect() as client:
        made = box(client)
        position = client.sandbox.get(made).position
        error = refused("not_supported", lambda: client.snapshot.create(made, archive="bucket"))
        assert f"sandkeep[{extra}]" in error.message
        assert client.sandbox.get(made).position == position, "it is told before anything happens"
        [left] = client.snapshot.gc().left
        assert f"sandkeep[{extra}]" in left
        assert sh(client, made, "cat hello") == "hello\n"


@pytest.mark.parametrize(("setting", "extra"), [("SANDBOX_LOCK_BUCKET", "gcs"), ("SANDBOX_S3_BUCKET", "s3")])
def test_locks(daemon: RunningDaemon, setting: str, extra: str) -> None:
    daemon.start(**{setting: "ours"})
    with daemon.connect() as client:
        for call in (client.lock.acquire, lambda name: client.lock.release(name, force=True)):
            error = refused("not_supported", lambda call=call: call("sandbox-1"))
            assert f"sandkeep[{extra}]" in error.message
        assert client.lock.list(all=True).locks == []
