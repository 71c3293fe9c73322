"""The how-to guides, done as they stand by somebody at a terminal, who compares what is seen."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.conftest import RunningDaemon, daemon_in
from tests.support.documents import ROOT, Session, directory, environment, section, steps, steps_of
from tests.support.screen import Screen
from tests.support.users import NOBODY, command_as

from sandkeep.demo import traces

if TYPE_CHECKING:
    from tests.support.gcs import GcsEmulator
    from tests.support.s3 import S3Server

pytestmark = pytest.mark.needs("bwrap", "tmux")

GUIDES = {
    "copy-files": (),
    "give-secrets": (),
    "go-back-in-time": (),
    "sessions": (),  # before http, as an administrator sees the sessions of all
    "http": ("curl",),
    "measure-sandboxes": ("root",),
    "merge-branches": (),
    "mend-a-damaged-log": (),
    "react-to-events": (),
    "tail-logs": ("node",),
    "use-with-astraforge": (),
    "use-with-crafty": (),
    "use-with-gcri": (),
    "write-a-client": ("node", "socat"),
}
"""Each guide with the engines that it needs beside bwrap and tmux."""

PATH = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def daemon(places: str) -> Iterator[RunningDaemon]:
    """One whose stream server is on TCP too, for all guides: lists show what another guide left on record."""
    with daemon_in(places, SANDKEEP_HTTP="tcp://127.0.0.1:0") as daemon:
        daemon.start(SANDKEEP_STREAM=f"unix:{daemon.root}/stream.sock,tls://127.0.0.1:0")
        yield daemon


@pytest.fixture
def place(places: str) -> Iterator[Path]:
    """A directory with the examples. All else that a guide uses it makes."""
    with directory(places) as place:
        (place / "examples").symlink_to(ROOT / "examples")
        yield place


@pytest.fixture
def new_screen(place: Path) -> Iterator[Callable[..., Screen]]:
    made: list[Screen] = []

    def make(shell: str = "bash --norc", cols: int = 100, **env: str) -> Screen:
        ours = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        screen = Screen(place, {"PATH": PATH, "HOME": str(place), **ours, **env}, rows=50, cols=cols)
        made.append(screen)
        screen.enter(f"cd {place} && exec {shell}")
        screen.until_prompt()
        return screen

    yield make
    for screen in made:
        screen.close()


@pytest.mark.parametrize(
    "guide", [pytest.param(guide, marks=pytest.mark.needs(*engines)) for guide, engines in GUIDES.items()]
)
def test_a_guide(guide: str, daemon: RunningDaemon, place: Path, new_screen: Callable[..., Screen]) -> None:
    with daemon.connect() as client:
        try:
            _follow(guide, new_screen(SANDKEEP_SOCKET=daemon.socket), place)
            assert len(client.sandbox.list().sandboxes) <= 1, "only the $BOX that it began with may be left"
        finally:
            for left in client.sandbox.list().sandboxes:
                client.sandbox.terminate(left.sandbox_id)


def test_as_a_normal_user(place: Path, new_screen: Callable[..., Screen]) -> None:
    """As root the guide is followed by somebody who is not."""
    (place / "shell").write_text(f"exec {shlex.join(_user(['bash', '--norc']))}\n")
    place.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    _follow("run-as-a-user", new_screen("sh ./shell"), place)


def test_nothing_is_left_after_an_uninstallation(place: Path, new_screen: Callable[..., Screen]) -> None:
    """By somebody who is not root: what the guide has for root is with `#`, and is not typed."""
    (place / "shell").write_text(f"exec {shlex.join(_user(['bash', '--norc']))}\n")
    place.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(place, NOBODY, NOBODY)
    screen = new_screen("sh ./shell")
    for line in (
        "sandkeep daemon -d", "mkdir project", "IMG=$(sandkeep image create ./project)",
        "sandkeep run $(sandkeep create $IMG) long --detach -- sleep 100000",
    ):  # fmt: skip
        screen.enter(line)
        screen.until_prompt()
    _follow("uninstall", screen, place)
    assert not (place / ".local" / "state" / "sandkeep").exists()
    assert traces.remaining(str(place / ".local")) == []


@pytest.mark.needs("docker")
def test_images_for_docker(dockerd: Any, places: str, place: Path, new_screen: Callable[..., Screen]) -> None:
    """The base that the guide names is an image of this machine's own Python here."""
    status, body = dockerd.ask("POST", f"/images/{dockerd.python()}/tag?repo=python&tag=3.11-slim")
    assert status == 201, body
    with daemon_in(places, DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none") as daemon:
        daemon.start()
        _follow("docker-images", new_screen(SANDKEEP_SOCKET=daemon.socket), place)


BUCKETS = "docs/how-to/keep-archives-in-a-bucket.md"


class Archives:
    """A daemon whose environment is what a section of the guide says, at services of the test's own."""

    def __init__(self, daemon: RunningDaemon, place: Path, new_screen: Callable[..., Screen]) -> None:
        self._daemon = daemon
        self._place = place
        self._new_screen = new_screen
        self._stands_for: dict[str, str] = {}

    def directory(self, named: str, *, made: bool) -> None:
        """Have a directory of this test stand for one that the guide names."""
        self._stands_for[named] = here = f"{self._daemon.root}{named}"
        os.makedirs(here if made else os.path.dirname(here), mode=0o700)

    def follow(self, heading: str, **services: str) -> None:
        """Do what the section says. `services` are variables that say where the test's own are."""
        text = section(BUCKETS, heading)
        said = {name: self._stands_for.get(value, value) for name, value in environment(text).items()}
        self._daemon.start(**{**said, **services})
        with self._daemon.connect() as client:
            image = client.image.create(_project(self._place), clean=True)
            sandbox = client.sandbox.create(image.image_id)
        screen = self._new_screen(cols=240, SANDKEEP_SOCKET=self._daemon.socket, BOX=sandbox.sandbox_id)
        session, begun = Session(screen, self._place), steps_of(text)
        for step in begun:
            session.do(replace(step, seen=[self._as_here(line) for line in step.seen]))
        assert begun

    def _as_here(self, line: str) -> str:
        for named, here in self._stands_for.items():
            line = line.replace(named, here)
        return line


@pytest.fixture
def archives(new_daemon: Callable[[], RunningDaemon], place: Path, new_screen: Callable[..., Screen]) -> Archives:
    return Archives(new_daemon(), place, new_screen)


@pytest.mark.needs("gcs")
def test_archives_in_gcs(archives: Archives, gcs: "GcsEmulator") -> None:
    said = environment(section(BUCKETS, "Google Cloud Storage"))
    for name in {value for key, value in said.items() if key.endswith("_BUCKET")}:
        gcs.create_bucket(name)
    archives.follow("Google Cloud Storage", STORAGE_EMULATOR_HOST=gcs.url)


@pytest.mark.needs("s3")
def test_archives_in_s3(archives: Archives, s3: "S3Server") -> None:
    """Without a scheme in the address and without TLS, as the guide has it; port and key are the test's."""
    heading = "S3, and what speaks it"
    s3.create_bucket(environment(section(BUCKETS, heading))["SANDBOX_S3_BUCKET"])
    archives.follow(heading, **{**s3.environ, "SANDBOX_S3_ENDPOINT_URL": f"127.0.0.1:{s3.port}"})


@pytest.mark.needs("gcs")
def test_archives_on_a_mount(archives: Archives) -> None:
    archives.directory("/mnt/our-snapshots", made=True)
    archives.follow("A bucket that is mounted", STORAGE_EMULATOR_HOST="http://127.0.0.1:9")


def test_archives_in_another_directory(archives: Archives) -> None:
    archives.directory("/srv/sandkeep-archives", made=False)
    archives.follow("Another directory")


@pytest.mark.needs("gcs")
def test_shared_sandboxes(
    new_daemon: Callable[[], RunningDaemon], place: Path, new_screen: Callable[..., Screen], gcs: "GcsEmulator"
) -> None:
    """Two daemons on one machine, which have nothing in common but the bucket."""
    said = environment((ROOT / "docs/how-to/share-sandboxes.md").read_text())
    for bucket in set(said.values()):
        gcs.create_bucket(bucket)
    first, other = daemons = new_daemon(), new_daemon()
    stream = {"SANDKEEP_STREAM": "tls://127.0.0.1:0", "SANDKEEP_CLOUD_RUN_IMAGE": _project(place)}
    for daemon in daemons:
        daemon.start(**said, **stream, STORAGE_EMULATOR_HOST=gcs.url)
    with first.connect() as client:
        image_id = client.image.create(str(place / "project")).image_id
    known = {"SANDKEEP_SOCKET": first.socket, "FIRST": first.socket, "OTHER": other.socket, "IMG": image_id}
    _follow("share-sandboxes", new_screen(**known), place)


def _project(place: Path) -> str:
    """Make the small project of the guides, for those that say in words that an image is there."""
    os.makedirs(place / "project", exist_ok=True)
    (place / "project" / "main.txt").write_text("first\n")
    return str(place / "project")


def _user(command: list[str]) -> list[str]:
    return command_as(NOBODY, command) if os.geteuid() == 0 else command


def _follow(guide: str, screen: Screen, place: Path) -> None:
    session = Session(screen, place)
    for step in steps(f"docs/how-to/{guide}.md"):
        session.do(step)


def test_every_guide_is_followed() -> None:
    """But for those of which `test_docs.UNTOUCHED` says why not. Of one each section with settings is."""
    from tests.contracts.test_docs import UNTOUCHED

    there = {path.stem for path in (ROOT / "docs/how-to").glob("*.md")}
    assert there == {
        *GUIDES,
        "docker-images",
        "run-as-a-user",
        "uninstall",
        "keep-archives-in-a-bucket",
        "share-sandboxes",
        "python",  # test_python_how_to.py
        "write-a-provider",  # its program is run by the tests of providers; test_docs.py compares the two
        *(Path(path).stem for path in UNTOUCHED if "how-to" in path),
    }
