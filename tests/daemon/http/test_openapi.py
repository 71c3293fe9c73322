"""The OpenAPI document, and the gateway held against it by schemathesis."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import SESSIONS, Gateway
from tests.support.patience import patient

from sandkeep.protocol.methods import METHODS
from sandkeepd.http.routes import ROWS
from sandkeepd.http.row import PREFIX

pytestmark = pytest.mark.needs("bwrap", "root")

DOCUMENT = f"{PREFIX}/openapi.json"
ENDLESS = (f"{PREFIX}/events/", f"{PREFIX}/sessions/{{id}}/stream/")
"""Paths whose answers do not end."""

ALWAYS_501 = f"{PREFIX}/sessions/{{id}}/stream/view/"
SETTINGS = """
[parameters]
"path.id" = ["box", "other", "none"]
"path.artifact_id" = ["art_none"]

[checks]
# The default, and 431: a path of the greatest length can be longer than a head, when it is encoded.
negative_data_rejection.expected-statuses = [
    400, 401, 403, 404, 405, 406, 409, 415, 422, 428, 429, 431, "5xx",
]
"""


@pytest.fixture
def document(gateway: Gateway) -> Any:
    answer = gateway.ask("GET", DOCUMENT, key=None)
    assert answer.status == 200
    return answer.value


def test_the_document_has_every_route(document: Any) -> None:
    described = {(verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs}
    assert described == {(row.verb, PREFIX + row.path) for row in ROWS}
    ids = [operation["operationId"] for verbs in document["paths"].values() for operation in verbs.values()]
    assert len(ids) == len(set(ids))


def test_statuses_that_are_not_everywhere_are_where_they_are_documented(document: Any) -> None:
    for row in ROWS:
        responses = document["paths"][PREFIX + row.path][row.verb.lower()]["responses"]
        assert "500" not in responses
        provided = METHODS[row.operation].revives or row.operation in ("session.close", "snapshot.import")
        assert ("501" in responses) == (provided or row.path.endswith("/view/")), row


@pytest.mark.parametrize(("examples", "cases"), [(1, 1000), pytest.param(250, 5000, marks=pytest.mark.soak)])
def test_schemathesis_finds_nothing(gateway: Gateway, tmp_path: Path, examples: int, cases: int) -> None:
    """Every answer is as documented, none is a 500, and what breaks the schema is refused."""
    gateway.ask("POST", SESSIONS, {"id": "box", "image": gateway.image_id})
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    excluded = [word for path in (*ENDLESS, ALWAYS_501) for word in ("--exclude-path", path)]
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{gateway.port}{DOCUMENT}"),
        *("--header", f"X-Api-Key: {gateway.key}", "--max-examples", str(examples), *excluded),
        # What a schema cannot say, such as that there is no such image, is refused, too.
        *("--checks", "all", "--exclude-checks", "positive_data_acceptance"),
        *("--phases", "coverage,fuzzing", "--request-timeout", "60", "--suppress-health-check", "all", "--no-shrink"),
    ]
    environ = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=patient(3600))
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.search(r"(\d+) generated", done.stdout)
    assert counted is not None, done.stdout
    assert int(counted[1]) >= cases
