"""The double of Modal's service builds images as the real one does, and mounts local files."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes.images import BUSYBOX, TOOLS
from tests.support.modal.boxes import Boxes, boxes_of, new_app, output
from tests.support.modal.sdk import open_sdk
from tests.support.modal.service import Modal

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("modal")]


@pytest.fixture(scope="module")
def sdk(modal: Modal) -> Iterator[Any]:
    with open_sdk(modal, MODAL_BUILD_VALIDATION="ignore") as sdk:
        yield sdk


@pytest.fixture
def boxes(sdk: Any) -> Iterator[Boxes]:
    with boxes_of(sdk, new_app(sdk)) as boxes:
        yield boxes


def shell(boxes: Boxes, image: Any, script: str) -> str:
    """Run a script in a sandbox of an image, as its command."""
    made = boxes.create("sh", "-c", script, image=image)
    made.wait()
    assert made.returncode == 0, made.stderr.read()
    return str(made.stdout.read())


def test_an_image_is_built_once(boxes: Boxes, sdk: Any, modal: Modal) -> None:
    def build() -> str:
        image = sdk.Image.from_registry(BUSYBOX).run_commands("date +%N > /built").build(boxes.app)
        return str(image.object_id)

    first = build()
    modal.forget_calls()
    assert build() == first
    assert "ImageJoinStreaming" not in modal.calls()["counts"]


@pytest.mark.parametrize("reference", ["busybox", "library/busybox", "docker.io/library/busybox:latest"])
def test_references_are_completed(boxes: Boxes, sdk: Any, reference: str) -> None:
    assert sdk.Image.from_registry(reference).build(boxes.app).object_id


def test_a_reference_that_is_unknown(boxes: Boxes, sdk: Any) -> None:
    with pytest.raises(sdk.exception.ImageBuildError, match="nowhere"):
        sdk.Image.from_registry("nowhere/at:all").build(boxes.app)


def test_a_command_that_fails_is_tried_again_the_next_time(boxes: Boxes, sdk: Any, modal: Modal) -> None:
    image = sdk.Image.from_registry(BUSYBOX).run_commands("echo broken >&2; exit 5")
    with pytest.raises(sdk.exception.ImageBuildError, match="non-zero code: 5"):
        image.build(boxes.app)
    modal.forget_calls()
    with pytest.raises(sdk.exception.ImageBuildError):
        sdk.Image.from_registry(BUSYBOX).run_commands("echo broken >&2; exit 5").build(boxes.app)
    assert modal.calls()["counts"]["ImageJoinStreaming"] == 1


def test_a_dockerfile(boxes: Boxes, sdk: Any, tmp_path: Path) -> None:
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "a.txt").write_text("a")
    (tmp_path / "context" / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "context" / "folder" / "deep" / "b.txt").write_text("b")
    (tmp_path / "context" / "run.sh").write_text("#!/bin/sh\necho ran $0 $*\n")
    (tmp_path / "context" / "run.sh").chmod(0o755)
    (tmp_path / "Dockerfile").write_text(
        """# with all that it may have
ARG BASE=busybox
FROM ${BASE}:latest
ARG VERSION=1
ENV NAME="some name" OTHER=$VERSION
ENV OLD style
WORKDIR /work/place
COPY a.txt renamed.txt
COPY folder into/
COPY *.sh /usr/local/bin/
RUN echo "$NAME" "$SECRET" > /name && \\
    pwd > /where
ENTRYPOINT ["run.sh", "always"]
CMD ["default"]
"""
    )
    secret = sdk.Secret.from_dict({"SECRET": "hidden"})
    image = sdk.Image.from_dockerfile(
        tmp_path / "Dockerfile", context_dir=tmp_path / "context", build_args={"VERSION": "2"}, secrets=[secret]
    )
    made = boxes.create(image=image)
    made.wait()
    assert made.stdout.read() == "ran /usr/local/bin/run.sh always default\n"
    waits = boxes.create(image=image.entrypoint([]).cmd(["sleep", "100000"]))
    script = "cat /name /where renamed.txt into/deep/b.txt; pwd; echo $NAME-$OTHER-$OLD-$SECRET"
    assert output(waits.exec("sh", "-c", script))[0] == (
        "some name hidden\n/work/place\nab/work/place\nsome name-2-style-\n"
    )


def test_a_dockerfile_that_is_wrong(boxes: Boxes, sdk: Any, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM busybox\nNOTHING here\n")
    with pytest.raises(sdk.exception.ImageBuildError, match="unknown instruction: NOTHING"):
        sdk.Image.from_dockerfile(tmp_path / "Dockerfile", context_dir=tmp_path).build(boxes.app)


def test_what_a_layer_removes_stays_away(boxes: Boxes, sdk: Any) -> None:
    image = sdk.Image.from_registry(TOOLS).run_commands("echo 1 > /one; echo 2 > /two", "rm /one; rm /etc/passwd")
    image = image.run_commands("echo 3 > /three")
    assert shell(boxes, image, "ls /one /two /three /etc/passwd 2>/dev/null; true") == "/three\n/two\n"


@pytest.mark.parametrize("copy", [False, True])
def test_local_files_are_in_the_sandbox(boxes: Boxes, sdk: Any, tmp_path: Path, copy: bool) -> None:
    code = tmp_path / "code"
    (code / "package").mkdir(parents=True)
    (code / "package" / "module.py").write_text("x = 1")
    (code / "tool").write_text("#!/bin/sh\necho tool")
    (code / "tool").chmod(0o755)
    (tmp_path / "large").write_bytes(os.urandom(5 << 20))  # goes by an upload
    image = sdk.Image.from_registry(TOOLS).add_local_dir(code, "/srv/code", copy=copy)
    image = image.add_local_file(tmp_path / "large", "/srv/large", copy=copy)
    script = "cat /srv/code/package/module.py; /srv/code/tool; stat -c %s /srv/large; ls /etc/passwd"
    assert shell(boxes, image, script) == f"x = 1tool\n{5 << 20}\n/etc/passwd\n"


def test_a_sandbox_with_local_files_has_snapshots(boxes: Boxes, sdk: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("local")
    image = sdk.Image.from_registry(BUSYBOX).add_local_file(tmp_path / "file", "/srv/file")
    made = boxes.create(image=image)
    assert output(made.exec("sh", "-c", "echo more > /srv/more"))[2] == 0
    assert shell(boxes, made.snapshot_filesystem(), "cat /srv/file /srv/more") == "localmore\n"


def test_a_snapshot_of_a_directory(boxes: Boxes) -> None:
    made = boxes.create()
    assert output(made.exec("sh", "-c", "mkdir -p /data/in; echo x > /data/in/f"))[2] == 0
    files = made.snapshot_directory("/data")
    assert files.object_id
    with pytest.raises(boxes.sdk.exception.NotFoundError):
        made.snapshot_directory("/nowhere")


def test_secrets_with_names(boxes: Boxes, sdk: Any) -> None:
    sdk.Secret.objects.create("named", {"A": "1"}, allow_existing=True)
    made = boxes.create(secrets=[sdk.Secret.from_name("named")])
    assert output(made.exec("sh", "-c", "echo $A"))[0] == "1\n"
    with pytest.raises(sdk.exception.NotFoundError):
        boxes.create(secrets=[sdk.Secret.from_name("unknown")])
