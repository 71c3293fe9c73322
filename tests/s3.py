"""An S3 service for tests: moto's server, which checks preconditions as the real service does."""

import os
from typing import Any, Self


class S3Server:
    """The service on a port of its own, in this process; `environ` is what a client of it needs."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)

    def __enter__(self) -> Self:
        self._server.start()
        self.port: int = self._server.get_host_and_port()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {
            "SANDBOX_S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def client(self) -> Any:
        """The SDK's own client."""
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="test",
            aws_secret_access_key="test",
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )

    def create_bucket(self, name: str) -> str:
        """A new bucket; answers its name."""
        self.client().create_bucket(Bucket=name)
        return name

    def unfinished(self, bucket: str) -> list[str]:
        """The names of objects whose upload was begun and neither finished nor aborted."""
        return [upload["Key"] for upload in self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])]
