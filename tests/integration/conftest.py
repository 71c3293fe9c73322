"""Clusters of daemons, one for each kind of place that they can share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.sharing import Cluster, of_directory, of_gcs

Make = Callable[..., Cluster]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir(mode=0o755)
    (made / "file").write_text("from the image\n")
    return made


@pytest.fixture
def shared(tmp_path: Path) -> dict[str, str]:
    """Settings by which daemons share directories."""
    root = tmp_path / "shared"
    root.mkdir(mode=0o700)
    return of_directory(root)


@pytest.fixture
def cluster(new_daemon: Any, shared: dict[str, str], source: Path) -> Make:
    """Makes and starts daemons that share directories, or what other settings say."""

    def make(count: int = 2, provider: str = "local", settings: dict[str, str] | None = None) -> Cluster:
        made = Cluster(new_daemon, count, shared if settings is None else settings, source, provider)
        made.start()
        return made

    return make


@pytest.fixture
def in_gcs(gcs_bucket: str) -> dict[str, str]:
    return of_gcs(gcs_bucket)


@pytest.fixture
def in_s3(s3_bucket: str, s3: Any) -> dict[str, str]:
    return {**s3.environ, "SANDBOX_S3_BUCKET": s3_bucket}
