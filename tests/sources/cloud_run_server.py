"""A plugin of pytest for the tests of cloud-run-sandbox's server: their client of an application in the same process
speaks to the address in CLOUD_RUN_URL. Additions to the protocol, which their clients ignore, are left out.
"""

import json
import os
import ssl
from typing import Any, Final, Self

import fastapi.testclient
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

ADDITIONS: Final = ("exit_code", "message")
"""Keys of statuses that cloud-run-sandbox does not have."""


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send_json(self, message: Any) -> None:
        self._connection.send(json.dumps(message))

    def receive_json(self) -> Any:
        try:
            message = json.loads(self._connection.recv(timeout=60))
        except ConnectionClosed as closed:
            raise WebSocketDisconnect(closed.rcvd.code if closed.rcvd else 1006) from closed
        if message["event"] == "status_update":
            return {key: value for key, value in message.items() if key not in ADDITIONS}
        return message


class TestClient:
    def __init__(self, app: object) -> None:
        pass

    def websocket_connect(self, path: str) -> Socket:
        trusted = ssl.create_default_context(cafile=os.environ["SSL_CERT_FILE"])
        return Socket(connect(os.environ["CLOUD_RUN_URL"] + path, ssl=trusted))


fastapi.testclient.TestClient = TestClient
