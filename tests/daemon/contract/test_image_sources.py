"""What an image is made of, and by which provider: the whole rule; and which references callers may name."""

from typing import Any, cast

import pytest

from sandkeep.errors import SandkeepError
from sandkeep.protocol.methods import ImageCreate
from sandkeepd.contract import image_references, image_sources
from sandkeepd.contract.image_sources import Seen, Source
from sandkeepd.core import rules


def looked_at(seen: str, **fields: Any) -> Source:
    command = ImageCreate(**{"source": "/src", **fields})
    image_sources.dockerfile_path(command)
    return image_sources.seen(command, cast("Seen", seen))


@pytest.mark.parametrize(
    ("seen", "fields", "expected"),
    [
        ("directory", {}, ("local", "directory", "/src", None, None)),
        ("dockerfile", {}, ("docker", "dockerfile", "/src", None, "Dockerfile")),
        ("dockerfile", {"dockerfile": "a//./b"}, ("docker", "dockerfile", "/src", None, "a/b")),
        ("directory", {"base": "alpine"}, ("docker", "directory", "/src", "alpine", None)),
        ("dockerfile", {"base": "alpine"}, ("docker", "directory", "/src", "alpine", None)),
        ("file", {"source": "/src/Dockerfile"}, ("docker", "dockerfile", "/src", None, "Dockerfile")),
        ("file", {"source": "/src/web.dockerfile"}, ("docker", "dockerfile", "/src", None, "web.dockerfile")),
    ],
)
def test_what_is_there_decides(seen: str, fields: dict[str, Any], expected: tuple[str | None, ...]) -> None:
    found = looked_at(seen, **fields)
    assert (found.provider, found.kind, found.source, found.base, found.dockerfile) == expected


@pytest.mark.parametrize(
    ("seen", "fields", "field"),
    [
        ("file", {"source": "/src/notes.txt"}, "source"),
        ("file", {"source": "/src/Dockerfile", "base": "alpine"}, "source"),
        ("file", {"source": "/src/Dockerfile", "dockerfile": "Dockerfile"}, "source"),
        ("directory", {"dockerfile": "Dockerfile"}, "dockerfile"),
        ("dockerfile", {"dockerfile": "../Dockerfile"}, "dockerfile"),
        ("dockerfile", {"dockerfile": "a/../../Dockerfile"}, "dockerfile"),
        ("dockerfile", {"dockerfile": "/etc/Dockerfile"}, "dockerfile"),
        ("dockerfile", {"dockerfile": "."}, "dockerfile"),
        ("dockerfile", {"dockerfile": "Dockerfile", "base": "alpine"}, "base"),
        ("directory", {"base": "/etc"}, "base"),
        ("directory", {"base": "sandkeep:img_1"}, "base"),
    ],
)
def test_what_makes_no_sense_is_refused(seen: str, fields: dict[str, Any], field: str) -> None:
    with pytest.raises(SandkeepError, match="invalid") as caught:
        looked_at(seen, **fields)
    assert caught.value.data["field"] == field


def test_a_reference_is_for_docker() -> None:
    found = image_sources.referred(ImageCreate(source="python:3.11-slim"))
    assert (found.provider, found.kind, found.source) == ("docker", "reference", "python:3.11-slim")


@pytest.mark.parametrize("field", ["base", "dockerfile"])
def test_a_reference_goes_with_nothing_else(field: str) -> None:
    with pytest.raises(SandkeepError, match="invalid") as caught:
        image_sources.referred(ImageCreate(source="python", **{field: "x"}))
    assert caught.value.data["field"] == field


@pytest.mark.parametrize("fields", [{"base": "alpine"}, {"dockerfile": "Dockerfile"}, {"source": "alpine"}])
def test_who_only_copies_takes_a_directory_and_nothing_else(fields: dict[str, Any]) -> None:
    with pytest.raises(SandkeepError, match="not_supported"):
        image_sources.copied(ImageCreate(**{"source": "/src", **fields}), "local")
    assert image_sources.copied(ImageCreate(source="/src"), "local").kind == "directory"


def test_a_plain_directory_gets_the_default_base_of_its_provider() -> None:
    def base(seen: str, default: str | None, **fields: Any) -> str | None:
        command = ImageCreate(source="/src", **fields)
        source = looked_at(seen, **fields)
        return rules.create_image(command, "uid:7", "docker", source, default).base

    assert base("directory", "python:3") == "python:3"
    assert base("directory", "python:3", base="alpine") == "alpine"
    assert base("dockerfile", "python:3") is None
    assert base("directory", None) is None


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("python", "python:latest"),
        ("python:3.11-slim", "python:3.11-slim"),
        ("docker.io/library/python", "python:latest"),
        ("index.docker.io/ada/tool:1", "ada/tool:1"),
        ("localhost/x", "localhost/x:latest"),
        ("localhost:5000/x/y:2", "localhost:5000/x/y:2"),
        ("registry.example.com/a__b/c-d.e:T_1", "registry.example.com/a__b/c-d.e:T_1"),
        ("ada", "ada:latest"),
        (f"python:3@sha256:{'0a' * 32}", f"python@sha256:{'0a' * 32}"),
        ("library/sandkeeper", "sandkeeper:latest"),
    ],
)
def test_a_reference_in_full(text: str, full: str) -> None:
    found = image_references.parse(text, "source")
    assert found.in_full == full
    assert image_references.parse(found.in_full, "source").in_full == full


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "a:", "A", "a b", "a/../b", "-a", "a--/b", "a\n", "a:b:c", "a@sha256:0", "sha256:" + "0a" * 32,
        "0a" * 32, "é", "a" * 600, "http://x/y", "--help", "./a", "sandkeep", "sandkeep:img_1", "library/sandkeep:x",
        "docker.io/sandkeep:x", "docker.io/library/sandkeep", "index.docker.io/library/sandkeep:x",
    ],
)  # fmt: skip
def test_what_is_no_reference_or_not_for_callers(text: str) -> None:
    with pytest.raises(SandkeepError, match="invalid"):
        image_references.parse(text, "source")


def test_the_beginning_of_an_id_is_told_from_a_name() -> None:
    assert image_references.could_be_an_id("ada")
    assert not image_references.could_be_an_id("ada:latest")
    assert not image_references.could_be_an_id("python")
