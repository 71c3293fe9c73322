"""`sandkeep artifact`, as it is typed, against a real daemon."""

import hashlib
import json
import subprocess
from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.printed import said

pytestmark = pytest.mark.needs("bwrap")

CONTENT = b"hello\n"
SETTINGS = {"SANDKEEP_QUOTA": "artifacts=1M", "SANDKEEP_QUOTA_ADMIN": "1"}


def rows(done: "subprocess.CompletedProcess[bytes]") -> list[list[str]]:
    return [line.split() for line in said(done).splitlines()]


def test_they_are_listed_shown_and_removed(cli: Any, client: Any, image: str, box: str) -> None:
    client.session.ensure(id="job", image=image)
    for name in ("job", box):
        client.sandbox.write_file(name, path="out.txt", data=CONTENT)
    first = client.artifact.export("job", path="out.txt").artifact_id
    second = said(cli("artifact", "create", box, "out.txt", "--name", "named.bin", "--type", "text/plain"))
    titles, *listed = rows(cli("artifact", "ls"))
    assert titles == ["ARTIFACT", "NAME", "STATUS", "AGE", "SIZE", "FROM"]
    assert [(row[0], row[2], row[1], row[-1]) for row in listed] == [
        (first, "ready", "out.txt", "job"), (second, "ready", "named.bin", box),
    ]  # fmt: skip
    assert [row[0] for row in rows(cli("artifact", "ls", "--session", "job"))[1:]] == [first]
    assert [row[0] for row in rows(cli("artifact", "ls", box))[1:]] == [second]

    shown = dict(line.split(maxsplit=1) for line in said(cli("artifact", "get", second)).splitlines())
    assert (shown["name"], shown["path"], shown["size"]) == ("named.bin", "out.txt", "6 B")
    assert shown["type"] == "text/plain"
    assert shown["digest"] == f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
    assert cli("artifact", "cat", second).stdout == CONTENT
    line = f"sandkeep artifact rm {first[:-1]}"
    assert until(lambda: cli(line, "", env={"_SANDKEEP_COMPLETE": "bash"}).stdout) == f"word\t{first}\n".encode()

    assert said(cli("artifact", "rm", first, second)).split() == [first, second]
    assert rows(cli("artifact", "ls"))[1:] == []
    assert [each["status"] for each in json.loads(said(cli("artifact", "ls", "--all", "--json")))] == ["deleted"] * 2
    assert json.loads(said(cli("artifact", "get", first, "--json")))["status"] == "deleted"
    client.session.close("job")


def test_the_advice_of_the_quota_frees_it(cli: Any, client: Any, box: str) -> None:
    client.sandbox.exec(box, "head -c 1M /dev/urandom >big")
    kept = client.artifact.export(box, path="big").artifact_id
    message = refused("quota_exceeded", client.artifact.export, box, path="big").message
    assert "`sandkeep artifact rm`" in message
    assert said(cli("artifact", "rm", kept)) == kept
    again = client.artifact.export(box, path="big").artifact_id
    said(cli("artifact", "rm", again))


@pytest.mark.parametrize("verb", ["get", "rm"])
def test_one_that_is_not_there(cli: Any, verb: str) -> None:
    done = cli("artifact", verb, "art_none")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"[not_found]" in done.stderr
