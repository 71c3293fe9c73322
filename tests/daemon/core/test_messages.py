"""Messages to callers have the names that these gave, and errors the ids in their data."""

from typing import Any

import msgspec
import pytest
from tests.daemon.core.test_naming import ADA
from tests.store.views.test_views import Log, requested_sandbox
from tests.support.boxes import Box

from sandkeep.errors import SandkeepError
from sandkeep.ids import new_id
from sandkeep.model import SandboxList
from sandkeepd.core import messages

pytestmark = pytest.mark.needs("bwrap", "root")


def refusal(call: Any, *args: Any, **given: Any) -> SandkeepError:
    with pytest.raises(SandkeepError) as caught:
        call(*args, **given)
    return caught.value


@pytest.fixture
def named(client: Any, image: str) -> Any:
    made = client.sandbox.create(image, name="spoken-of")
    yield made
    client.sandbox.terminate(made.sandbox_id)


def test_a_sandbox_goes_by_its_name_and_its_id_is_in_the_data(client: Any, named: Any) -> None:
    client.sandbox.suspend("spoken-of")
    for word in ("spoken-of", named.sandbox_id):
        error = refusal(client.sandbox.exec, word, "true")
        assert error.message == "sandbox spoken-of is suspended: resume it"
        assert error.data["sandbox_id"] == named.sandbox_id


def test_a_process_goes_by_its_name(client: Any, named: Any) -> None:
    client.process.launch("spoken-of", ["sleep", "1000"], name="worker")
    process = client.process.get("spoken-of", "worker")
    error = refusal(client.process.write_stdin, "spoken-of", process.process_id, b"x")
    assert "worker" in error.message
    assert process.process_id not in error.message
    error = refusal(client.process.launch, "spoken-of", ["true"], name="worker")
    assert error.message.startswith("process 'worker' of sandbox spoken-of has not ended")


def test_an_image_goes_by_its_name(client: Any, image: str, named: Any) -> None:
    client.image.tag(image, "spoken:1")
    try:
        error = refusal(client.image.tag, image, "img_1")
        assert error.message == "name: a name may not look like an id: choose another"
        error = refusal(client.image.untag, image, "another")
        assert error.message.startswith("name: image spoken:1 is not called 'another'")
        assert error.data["image_id"] == image
    finally:
        client.image.untag(image, "spoken:1")


def test_a_name_that_another_has_by_now_is_not_said(client: Any, image: str) -> None:
    first = client.sandbox.create(image, name="reused").sandbox_id
    client.sandbox.terminate(first)
    second = client.sandbox.create(image, name="reused").sandbox_id
    try:
        assert first in refusal(client.sandbox.exec, first, "true").message
    finally:
        client.sandbox.terminate(second)


def test_what_has_no_name_goes_by_its_id(client: Any, shared_box: Box) -> None:
    error = refusal(client.process.get, shared_box.id, "nothing")
    assert shared_box.id in error.message


def test_sentences_of_answers_have_names_and_other_fields_ids() -> None:
    box, process = new_id("sbx"), new_id("prc")
    log = Log()
    log.add(box, requested_sandbox(name="web"), box)
    error = f"sandbox {box} did not answer process {process}"
    sandbox = msgspec.structs.replace(log.fold().sandboxes[box].view(), error=error, note=error)
    asker: Any = ADA
    for answer in (
        messages.named_answer(log.fold(), asker, sandbox),
        *messages.named_answer(log.fold(), asker, SandboxList(sandboxes=[sandbox])).sandboxes,
    ):
        assert answer.error == answer.note == f"sandbox web did not answer process {process}"
        assert answer.sandbox_id == box
    unchanged = SandboxList(sandboxes=[log.fold().sandboxes[box].view()])
    assert messages.named_answer(log.fold(), asker, unchanged) is unchanged
    assert messages.named_answer(log.fold(), asker, b"") == b""
