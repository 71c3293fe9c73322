"""Services for buckets, each in a process of its own, as they are anywhere else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SERVE = """
import sys
from tests.support.{where} import {kind}
with {kind}() as service:
    service.create_bucket("bench")
    print(service.url, flush=True)
    sys.stdin.read()
"""
KINDS = {"gcs": "GcsEmulator", "s3": "S3Server"}


@contextmanager
def bucket(where: str) -> Iterator[dict[str, str]]:
    """A bucket called `bench`, for the length of a block; what a client of it has to find in its environment."""
    command = [sys.executable, "-c", SERVE.format(where=where, kind=KINDS[where])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        try:
            url = service.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the service for {where} did not start")
            yield _environment(where, url)
        finally:
            service.stdin.close()
            service.wait()


def _environment(where: str, url: str) -> dict[str, str]:
    if where == "gcs":
        return {"STORAGE_EMULATOR_HOST": url, "FILESYSTEM_SNAPSHOT_BUCKET": "bench"}
    return {
        "SANDBOX_S3_BUCKET": "bench",
        "SANDBOX_S3_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
