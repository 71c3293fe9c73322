"""Names that callers give to objects: one rule for all kinds, whose list comes from the table of methods."""

from typing import Any

import pytest
from tests.support.boxes import Box

from sandkeep.errors import SandkeepError
from sandkeep.protocol.methods import METHODS

pytestmark = pytest.mark.needs("bwrap", "root")

NO_NAMES = [
    "", ".", "..", "...", ".a", "-a", "a/b", "../a", "a b", " a", "a\n", "a\x00", "a\x1b[31m", "a\x9b31m", "a\u202eb",
    "a\u200b", "\ufeffa", "é", "a" * 65, "a:b", "a\\b",
]  # fmt: skip
IDS = ["sbx_1", "img_1", "snp_01jz", "prc_x", "lck_", "log_1"]

NO_FILE_NAMES = [".", "..", "...", " ", ". .", "a/b", "/", "a\n", "a\x00", "a\x1b", "a\x9b", "a\u202eb", "a\u200b", ""]
NO_LABELS = ["", "a\n", "a\x00", "a\x1b", "a\x9b31m", "a\u202eb", "a\u2066", "a\u200b", "\ufeff"]

GIVEN = {
    "volume.create": ("name", {"provider": "docker"}),
    "session.ensure": ("id", {"image": "IMAGE"}),
    "sandbox.create": ("name", {"image_id": "IMAGE"}),
    "sandbox.fork": ("names", {"sandbox_id": "BOX"}),
    "sandbox.restore_at": ("name", {"sandbox_id": "BOX", "position": 1}),
    "branch.create": ("names", {"sandbox_id": "BOX"}),
    "branch.merge": ("name", {"sandbox_ids": ["BOX", "BOX"]}),
    "process.launch": ("name", {"sandbox_id": "BOX", "command": ["true"]}),
    "snapshot.create": ("name", {"sandbox_id": "BOX"}),
    "snapshot.restore": ("name", {"snapshot_id": "SNAPSHOT"}),
    "checkpoint.create": ("name", {"sandbox_id": "BOX"}),
    "checkpoint.restore": ("names", {"checkpoint_id": "ckp_1"}),
    "lock.acquire": ("name", {}),
    "key.create": ("name", {}),
}
"""The methods by which an object gets a name of the one rule: the parameter, and what else they need."""

OTHER = {
    "image.create", "image.tag", "snapshot.promote",  # names of images, as `py:3.12`
    "snapshot.import",  # a call with descriptors, which has the same parameter as snapshot.create
    "artifact.export",  # the name of a file
    "image.untag", "volume.remove", "process.signal", "process.write_stdin", "process.resize", "lock.release",
    "key.remove",  # names that are there
}  # fmt: skip
NEEDS_MORE = {"sandbox.restore_at", "branch.merge", "checkpoint.create", "checkpoint.restore"}
"""They look for what they begin with before the name."""


def test_every_method_that_gives_a_name_is_tried() -> None:
    named = {
        name
        for name, row in METHODS.items()
        if (row.mutates or name.startswith("key.")) and {"name", "names", "id"} & {*row.params.__struct_fields__}
    }
    assert named == GIVEN.keys() | OTHER


@pytest.fixture(scope="module")
def snapshot(client: Any, shared_box: Box) -> str:
    return str(client.snapshot.create(shared_box.id).snapshot_id)


def refusal(client: Any, method: str, params: dict[str, Any]) -> SandkeepError:
    with pytest.raises(SandkeepError) as caught:
        client.call(method, params)
    return caught.value


@pytest.mark.parametrize("method", GIVEN)
def test_a_text_that_is_no_name_is_refused(
    client: Any, shared_box: Box, image: str, snapshot: str, method: str
) -> None:
    field, others = GIVEN[method]
    filled = _filled(others, shared_box.id, image, snapshot)
    for text in NO_NAMES:
        error = refusal(client, method, filled | {field: [text] if field == "names" else text})
        assert (error.code, error.data["field"]) == ("invalid", field), (text, error.message)
        assert len(text) > 64 or "must be an id or name: 1 to 64 letters, digits, '_', '.' or '-'" in error.message
    for text in [] if method in NEEDS_MORE else ["lck_"] if method == "lock.acquire" else IDS:
        error = refusal(client, method, filled | {field: [text] if field == "names" else text})
        assert "a name may not look like an id: choose another" in error.message, (text, error.message)


def _filled(params: dict[str, Any], box: str, image: str, snapshot: str) -> dict[str, Any]:
    words = {"BOX": box, "IMAGE": image, "SNAPSHOT": snapshot}
    filled = {key: words.get(value, value) if isinstance(value, str) else value for key, value in params.items()}
    return filled | ({"sandbox_ids": [box, box]} if "sandbox_ids" in params else {})


@pytest.mark.parametrize("name", NO_FILE_NAMES)
def test_a_text_that_is_no_file_name_names_no_artifact(client: Any, shared_box: Box, name: str) -> None:
    error = refusal(client, "artifact.export", {"sandbox_id": shared_box.id, "path": "/etc/hostname", "name": name})
    assert (error.code, error.data["field"]) == ("invalid", "name"), error.message


@pytest.mark.parametrize("name", ["Bericht für Müller.pdf", "...a", ".profile", "世界 (1).tar.gz", "a\u0301"])
def test_an_artifact_has_any_other_name(client: Any, shared_box: Box, name: str) -> None:
    shared_box.sh("echo hello >file")
    made = client.artifact.export(shared_box.id, "file", name=name)
    assert made.name == name
    client.artifact.remove(made.artifact_id)


@pytest.mark.parametrize("key", NO_LABELS)
def test_a_label_that_cannot_be_read_is_refused(client: Any, image: str, key: str) -> None:
    error = refusal(client, "sandbox.create", {"image_id": image, "labels": {key: "value"}})
    assert (error.code, error.data["field"]) == ("invalid", "labels"), error.message
