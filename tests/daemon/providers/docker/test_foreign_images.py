"""Images of an engine that Sandkeep did not make: whom they serve, by published references and by real registries.

An attack is tried by an ordinary user and by an API key. Each is answered as for an image that does not exist.
"""

import io
import os
import shutil
import socket
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.conftest import DAEMON, RunningDaemon, daemon_in
from tests.daemon.api.test_repeats import Case, made_once
from tests.support import rootfs
from tests.support.docker_registry import PASSWORD, DockerRegistry
from tests.support.engine import PrivateEngine
from tests.support.expect import refused
from tests.support.gateway import SESSIONS, Gateway
from tests.support.patience import patient
from tests.support.registry import MANIFEST, serving
from tests.support.users import as_client

from sandkeep import failpoints
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("docker", "registry", "root", "bwrap")

USER, OTHER = 40_001, 40_002
DOWN = "127.0.0.1:1"
"""An address at which no registry is."""


class Scene(NamedTuple):
    """An engine, a registry for everybody and one with a login, and a daemon with an API key `ci`."""

    engine: PrivateEngine
    public: DockerRegistry
    private: DockerRegistry
    daemon: RunningDaemon
    gateway: Gateway

    def local(self, name: str, marker: str) -> str:
        """An image that the administrator has built in the engine; return its name."""
        dockerfile = f"FROM {self.engine.busybox()}\nENV WHOSE={marker}\nRUN echo {marker} >/whose\n"
        return self.engine.derived(name, dockerfile)

    def pushed(self, registry: DockerRegistry, name: str, marker: str) -> str:
        """An image that a registry has and the engine has not; return its reference."""
        return registry.push(self.engine, self.local(f"made/{marker}:1", marker), name)

    def tag(self, image: str, name: str) -> str:
        """Give an image another name in the engine."""
        repository, _, tag = name.rpartition(":")
        assert self.engine.ask("POST", f"/images/{image}/tag?repo={repository}&tag={tag}")[0] == 201
        return name

    def marker(self, image: Any) -> str:
        """What distinguishes the content of an image of Sandkeep's."""
        variables = self.engine.get(f"/images/sandkeep:{image}/json")["Config"]["Env"]
        return dict(each.split("=", 1) for each in variables).get("WHOSE", "nobody")

    def content(self, uid: int, source: str) -> str:
        """The content of the file `whose` in the image that a user makes of a directory."""
        made = as_client(self.daemon, uid, lambda client: attempt(client, source))
        assert made[0] == "", made
        status, body = self.engine.ask("POST", "/containers/create", {"Image": f"sandkeep:{made[1]}", "Cmd": ["x"]})
        assert status == 201, body
        container = msgspec.json.decode(body)["Id"]
        try:
            status, packed = self.engine.ask("GET", f"/containers/{container}/archive?path=/whose")
        finally:
            self.engine.ask("DELETE", f"/containers/{container}")
        assert status == 200, packed
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            file = archive.extractfile("whose")
            assert file is not None
            return file.read().decode().strip()

    def take(self, uid: int, reference: str, **more: Any) -> str:
        """The marker of the image that a user gets by a reference, else the refusal."""
        return outcome(self, as_client(self.daemon, uid, lambda client: attempt(client, reference, **more)))

    def take_by_key(self, reference: str, session_id: str = "s") -> str:
        """The same of the API key, which gets a session."""
        answer = self.gateway.ask("POST", SESSIONS, {"id": session_id, "image": reference})
        if answer.status != 201:
            return str(answer.problem[1])
        with self.daemon.connect() as client:
            session = next(each for each in client.session.list().sessions if each.session_id == session_id)
            image = client.sandbox.get(session.sandbox_id).image_id
        assert self.gateway.ask("DELETE", f"{SESSIONS}{session_id}/").status in (200, 204)
        return self.marker(image)

    def publish(self, reference: str, *owners: str) -> Any:
        """Publish an image, as root."""
        with self.daemon.connect() as client:
            return client.image.publish(reference, owners=list(owners))

    def unpublish(self, reference: str) -> Any:
        """Withdraw it."""
        with self.daemon.connect() as client:
            return client.image.unpublish(reference)


def attempt(client: Any, reference: str, **more: Any) -> tuple[str, str]:
    """Make an image: its id, or the code and the message of the refusal."""
    try:
        return "", client.image.create(reference, clean=True, **more).image_id
    except SandkeepError as error:
        return error.code, error.message


def outcome(scene: Scene, tried: tuple[str, str]) -> str:
    """The code of a refusal, else the marker."""
    return tried[0] or scene.marker(tried[1])


@pytest.fixture(scope="module")
def scene(dockerd: PrivateEngine, places: str) -> Iterator[Scene]:
    with ExitStack() as stack:
        root = tempfile.mkdtemp(dir=places)
        registries = [DockerRegistry(f"{root}/{name}", private=name == "private") for name in ("public", "private")]
        for registry in registries:
            stack.callback(registry.stop)
            registry.start()
        daemon = stack.enter_context(
            daemon_in(
                places, DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none",
                SANDKEEP_REGISTRIES=f"docker.io, {registries[0].address}, {registries[1].address}, {DOWN}",
            )
        )  # fmt: skip
        daemon.env["SANDKEEP_HTTP"] = f"unix:{daemon.root}/http.sock, tcp://127.0.0.1:0"
        Path(root, "config.json").write_text(registries[1].logins())
        daemon.env["DOCKER_CONFIG"] = root
        daemon.start()
        public, private = registries
        yield Scene(dockerd, public, private, daemon, Gateway(daemon))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Writes a directory with a Dockerfile that everybody can read, and returns its path."""
    place = tempfile.mkdtemp()
    os.chmod(place, 0o755)

    def write(dockerfile: str) -> str:
        Path(place, "Dockerfile").write_text(dockerfile)
        return place

    yield write
    shutil.rmtree(place)


# -- what is only in the engine ---------------------------------------------------------------------------------------


def test_an_image_that_an_administrator_built_is_his(scene: Scene) -> None:
    scene.local("corp/base:1", "admin")
    digest = scene.engine.get("/images/corp/base:1/json")["Id"]
    for host in (scene.public.address, scene.private.address, DOWN):
        private, absent = f"{host}/corp/private:1", f"{host}/corp/absent:1"
        scene.tag("corp/base:1", private)
        answers = [
            as_client(scene.daemon, USER, lambda client, name=name: attempt(client, name)) for name in (private, absent)
        ]
        assert [code for code, _ in answers] == ["not_found", "not_found"]
        assert answers[0][1].replace("private", "absent") == answers[1][1].replace("private", "absent")
        assert scene.take_by_key(private) == scene.take_by_key(absent) == "not_found"
        with scene.daemon.connect() as client:
            assert scene.marker(client.image.create(private).image_id) == "admin"
    for text in (digest, digest.removeprefix("sha256:"), f"sandkeep@{digest}"):
        assert scene.take(USER, text) == "invalid"
        assert scene.take_by_key(text) in ("invalid", "not_found", "permission_denied")
    for text in (digest[7:19], f"{DOWN}/corp/private@{digest}", f"{scene.public.address}/corp/private@{digest}"):
        assert scene.take(USER, text) == "not_found"
        assert scene.take_by_key(text) in ("not_found", "permission_denied")


@pytest.mark.parametrize(
    "dockerfile",
    [
        "FROM {private}\n",
        "ARG X={private}\nFROM $X\n",
        "FROM scratch\nCOPY --from={private} /bin /bin\n",
        "FROM scratch AS one\nONBUILD COPY --from={private} /bin /bin\nFROM one\n",
    ],
)
def test_no_build_gets_at_it(scene: Scene, project: Callable[[str], str], dockerfile: str) -> None:
    private = scene.tag(scene.local("corp/base:1", "admin"), f"{scene.public.address}/corp/private:1")
    source = project(dockerfile.format(private=private))
    assert scene.take(USER, source) == "not_found"
    with scene.daemon.connect() as client:
        assert client.image.create(source, clean=True).status == "ready"


@pytest.mark.parametrize(
    "dockerfile",
    [
        "FROM scratch\nCMD one \\\n\x1c\nCOPY --from={private} /whose /\n",
        "FROM scratch\nCMD one \\\n\x1c# two\nCOPY --from={private} /whose /\n",
        "FROM scratch AS one\nONBU\u0130LD COPY --from={private} /whose /\nFROM one\n",
        "FROM scratch AS {simple}\nCOPY --from={simple} /whose /\n",
        "FROM scratch AS {simple}\nCMD one \\\u00a0\nFROM scratch\nCOPY --from={simple} /whose /\n",
        'ARG B={simple}\nARG A="x B=one y"\nFROM scratch AS one\nFROM $B\n',
        "\ufeff\ufeffFROM {private}\n#\\\nFROM scratch\n",
    ],
)
def test_no_build_gets_at_it_by_what_an_engine_reads_otherwise(
    scene: Scene, project: Callable[[str], str], dockerfile: str
) -> None:
    scene.local("corp/base:1", "admin")
    private, simple = (scene.tag("corp/base:1", name) for name in (f"{DOWN}/corp/private:1", "secret:latest"))
    source = project(dockerfile.format(private=private, simple=simple.partition(":")[0]))
    assert scene.take(USER, source) in ("invalid", "not_found")


def test_no_directory_is_put_onto_it(scene: Scene, project: Callable[[str], str]) -> None:
    private = scene.tag(scene.local("corp/base:1", "admin"), f"{scene.public.address}/corp/private:1")
    assert scene.take(USER, project("FROM scratch\n"), base=private) == "not_found"


# -- what a registry gives --------------------------------------------------------------------------------------------


def test_a_registry_for_everybody_and_a_tag_that_is_another_here(scene: Scene, project: Callable[[str], str]) -> None:
    """The local tag does not count, in builds neither; and a tag that is moved there is followed."""
    reference = scene.pushed(scene.public, "team/app:1", "first")
    scene.tag(scene.local("corp/base:1", "admin"), reference)
    assert scene.take(USER, reference) == "first"
    assert scene.take_by_key(reference, "first") == "first"
    assert scene.take(USER, project(f"FROM {reference}\n")) == "first"
    for steps in (f"COPY --from={reference} \\\n  /whose /", f"ONBUILD COPY --from={reference} /whose /\nFROM one"):
        assert scene.content(USER, project(f"FROM scratch AS one\n{steps}\n")) == "first", steps
    scene.pushed(scene.public, "team/app:1", "second")
    assert scene.take(USER, reference) == "second"
    assert scene.take_by_key(reference, "second") == "first", "the key has an image of that reference, which stays"


def test_a_copy_that_is_here_is_not_used_while_its_registry_is_down(scene: Scene) -> None:
    reference = scene.pushed(scene.public, "team/down:1", "down")
    assert scene.take(USER, reference) == "down"
    with scene.daemon.connect() as client:
        client.image.create(reference)
    scene.public.stop()
    try:
        code, message = as_client(scene.daemon, OTHER, lambda client: attempt(client, reference))
        assert (code, "cannot be reached" in message) == ("not_found", True), message
        assert scene.take_by_key(reference) == "not_found"
        with scene.daemon.connect() as client:
            assert client.image.create(reference).status == "ready"
    finally:
        scene.public.start()


def test_a_registry_is_for_others_only_if_an_administrator_chose_it(
    scene: Scene, project: Callable[[str], str]
) -> None:
    """One of their own could send the engine anywhere, or never end: it is not asked, by a name or in a Dockerfile."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        own.settimeout(0)
        reference = f"127.0.0.1:{own.getsockname()[1]}/x/y:1"
        for source in (
            reference,
            project(f"FROM {reference}\n"),
            project(f"FROM scratch\nCOPY --from={reference} / /\n"),
        ):
            code, message = as_client(scene.daemon, USER, lambda client, source=source: attempt(client, source))
            assert (code, "SANDKEEP_REGISTRIES" in message) == ("permission_denied", True), message
        assert scene.take_by_key(reference) == "permission_denied"
        with pytest.raises(BlockingIOError):
            own.accept()


@contextmanager
def accounts(scene: Scene, places: str, *uids: int) -> Iterator[tuple[RunningDaemon, dict[int, Path]]]:
    """A daemon on whose machine these uids have home directories."""
    listed = f"docker.io, {scene.public.address}, {scene.private.address}"
    with daemon_in(
        places, DOCKER_HOST=scene.engine.host, SANDBOX_DOCKER_NETWORK="none", SANDKEEP_REGISTRIES=listed
    ) as daemon:
        homes = {uid: Path(daemon.root, f"home{uid}") for uid in uids}
        for uid, home in homes.items():
            (home / ".docker").mkdir(parents=True)
            for path in (home, home / ".docker"):
                os.chown(path, uid, uid)
                path.chmod(0o700)
        table = Path("/etc/passwd").read_text() + "".join(f"u{u}:x:{u}:{u}::{h}:/bin/sh\n" for u, h in homes.items())
        Path(daemon.root, "passwd").write_text(table)
        mount = f'mount --bind {daemon.root}/passwd /etc/passwd && exec "$@"'
        daemon.program = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", mount, "sh", *DAEMON]
        daemon.start()
        yield daemon, homes


def test_a_registry_gives_what_the_callers_own_login_may_have(scene: Scene, places: str) -> None:
    reference = scene.pushed(scene.private, "team/secret:1", "secret")
    with accounts(scene, places, USER, OTHER) as (daemon, homes):

        def take(uid: int) -> str:
            return outcome(scene, as_client(daemon, uid, lambda client: attempt(client, reference)))

        def log_in(uid: int, content: str, mode: int = 0o600) -> None:
            path = homes[uid] / ".docker" / "config.json"
            path.unlink(missing_ok=True)
            path.write_text(content)
            path.chmod(mode)
            os.chown(path, uid, uid)

        assert take(USER) == "not_found"
        log_in(USER, scene.private.logins())
        assert take(USER) == "secret"
        assert take(OTHER) == "not_found", "the copy that is here now is the other user's"
        log_in(OTHER, scene.private.logins("wrong"))
        assert take(OTHER) == "not_found"
        malformed = f'{{"auths": {{"{scene.private.address}": {{"auth": "?"}}}}}}'
        for content in ("{", malformed, "[]", '{"auths": 1}'):
            log_in(OTHER, content)
            assert take(OTHER) == "not_found", content
        path = homes[OTHER] / ".docker" / "config.json"
        path.unlink()
        path.symlink_to(homes[USER] / ".docker" / "config.json")
        assert take(OTHER) == "not_found", "a link is followed with the caller's own rights"
        path.unlink()
        os.mkfifo(path)
        assert take(OTHER) == "not_found"
        assert scene.take_by_key(reference) == "not_found"
        kept = b"".join(file.read_bytes() for file in Path(daemon.state_dir).rglob("*") if file.is_file())
        engine = [Path(scene.engine.root, "log"), *Path(scene.engine.root, "data", "image").rglob("*.json")]
        recorded = b"".join(file.read_bytes() for file in engine if file.is_file())
        assert b"containerd" in recorded
        for word in (PASSWORD, scene.private.logins().split('"')[-2]):
            assert word.encode() not in kept
            assert word.encode() not in recorded, "the engine records it"
            assert word not in daemon.said()


def test_the_login_of_the_daemons_user_is_for_administrators(scene: Scene) -> None:
    reference = scene.pushed(scene.private, "team/roots:1", "roots")
    assert scene.take(USER, reference) == scene.take_by_key(reference) == "not_found"
    with scene.daemon.connect() as client:
        assert scene.marker(client.image.create(reference).image_id) == "roots"
    assert scene.take(USER, reference) == scene.take_by_key(reference) == "not_found"


def test_a_registry_that_only_names_an_image_of_here_has_not_given_it(scene: Scene, places: str) -> None:
    """Its manifest has the image's id: an engine does not ask for the content of what it has."""
    import hashlib
    import json

    digest = scene.engine.get(f"/images/{scene.local('corp/named:1', 'admin')}/json")["Id"]
    with serving() as evil:
        reference = evil.put("evil/app:1", rootfs.bare())
        manifest = json.loads(evil.manifests["evil/app:1"])
        manifest["config"] = {**manifest["config"], "digest": digest}
        evil.manifests["evil/app:1"] = json.dumps(manifest).encode()
        pinned = f"{reference.rpartition(':')[0]}@sha256:{hashlib.sha256(evil.manifests['evil/app:1']).hexdigest()}"
        assert manifest["mediaType"] == MANIFEST
        listed = {"SANDKEEP_REGISTRIES": reference.partition("/")[0]}
        with daemon_in(places, DOCKER_HOST=scene.engine.host, SANDBOX_DOCKER_NETWORK="none", **listed) as daemon:
            daemon.start()
            scene = scene._replace(daemon=daemon)
            for _ in range(2):
                assert scene.take(USER, reference) == scene.take(USER, pinned) == "not_found"
            with daemon.connect() as client:
                assert scene.marker(client.image.create(reference).image_id) == "admin", "this is no attack"


def test_a_base_that_copies_from_it_by_a_trigger(scene: Scene, project: Callable[[str], str]) -> None:
    private = scene.tag(scene.local("corp/base:1", "admin"), f"{scene.public.address}/corp/private:1")
    name = "made/trigger:1"
    scene.engine.derived(name, f"FROM {scene.engine.busybox()}\nONBUILD COPY --from={private} /bin /stolen\n")
    source = project(f"FROM {scene.public.push(scene.engine, name, 'evil/trigger:1')}\n")
    assert scene.take(USER, source) == "invalid"
    with scene.daemon.connect() as client:
        assert client.image.create(source).status == "ready", "this is no attack"


# -- what is published ------------------------------------------------------------------------------------------------


def test_an_image_is_published_to_owners_until_it_is_withdrawn(scene: Scene, project: Callable[[str], str]) -> None:
    reference = scene.tag(scene.local("made/one:1", "one"), f"{DOWN}/corp/shared:1")
    published = scene.publish(reference, f"uid:{USER}")
    assert published.published == {reference: [f"uid:{USER}"]}
    assert scene.take(USER, reference) == "one"
    assert scene.take(USER, project(f"FROM {reference}\nCOPY --from={reference} /etc /copied\n")) == "one"
    assert scene.take(USER, project("FROM scratch\n"), base=reference) == "one"
    assert scene.take(OTHER, reference) == scene.take_by_key(reference) == "not_found"
    scene.publish(reference, "key:ci")
    assert scene.take(USER, reference) == "not_found"
    scene.publish(reference)
    assert scene.take(OTHER, reference) == scene.take_by_key(reference, "shared") == "one"
    with scene.daemon.connect() as client:
        refused("in_use", lambda: client.image.remove(published.image_id))
    mine = as_client(scene.daemon, USER, lambda client: attempt(client, reference))[1]
    scene.unpublish(reference)
    assert scene.take(USER, reference) == "not_found"
    assert as_client(scene.daemon, USER, lambda client: client.image.get(mine).status) == "ready"
    with scene.daemon.connect() as client:
        refused("not_found", lambda: client.image.unpublish(reference))
        assert client.image.remove(published.image_id).status == "removed"


def test_a_published_reference_stays_the_image_that_it_was(scene: Scene) -> None:
    reference = scene.tag(scene.local("made/one:1", "one"), f"{DOWN}/corp/pinned:1")
    first = scene.publish(reference)
    scene.tag(scene.local("made/two:1", "two"), reference)
    assert scene.take(USER, reference) == "one"
    second = scene.publish(reference)
    assert scene.take(USER, reference) == "two"
    with scene.daemon.connect() as client:
        assert client.image.get(first.image_id).published == {}
        scene.daemon.stop()
    scene.daemon.start()
    assert scene.take(OTHER, reference) == "two"
    assert second.image_id == scene.unpublish(reference).image_id


def test_everybody_sees_what_is_published_to_them(scene: Scene) -> None:
    image = scene.local("made/one:1", "one")
    public, some = (scene.tag(image, f"{DOWN}/corp/{name}:1") for name in ("public", "some"))
    scene.publish(public)
    scene.publish(some, f"uid:{USER}", f"uid:{OTHER + 1}")

    def listed(client: Any) -> list[dict[str, list[str]]]:
        return [each.published for each in client.image.list(published=True).images]

    with scene.daemon.connect() as client:
        assert {public: [], some: [f"uid:{USER}", f"uid:{OTHER + 1}"]} in listed(client)
    assert {public: [], some: [f"uid:{USER}"]} in as_client(scene.daemon, USER, listed)
    assert {public: []} in as_client(scene.daemon, OTHER, listed)
    table = scene.daemon.cli("image", "ls", "--published").stdout.decode()
    assert f"uid:{USER}, uid:{OTHER + 1}" in table
    for each in (public, some):
        assert scene.daemon.cli("image", "unpublish", each).returncode == 0


def test_only_administrators_publish(scene: Scene) -> None:
    reference = scene.tag(scene.local("made/one:1", "one"), f"{DOWN}/corp/mine:1")

    def publish(client: Any) -> list[str]:
        codes = []
        for method in (client.image.publish, client.image.unpublish):
            try:
                method(reference)
            except SandkeepError as error:
                codes.append(error.code)
        return codes

    assert as_client(scene.daemon, USER, publish) == ["permission_denied", "permission_denied"]
    done = scene.daemon.cli("image", "publish", reference, "--for", "everybody")
    assert (done.returncode, b"invalid" in done.stderr) == (1, True), done.stderr


def test_each_publication_is_made_once(scene: Scene) -> None:
    names = [scene.tag(scene.local("made/one:1", "one"), f"{DOWN}/corp/{name}:1") for name in ("on", "off", "other")]
    scene.publish(names[1])
    scene.publish(names[2])

    def count(kind: str) -> int:
        with scene.daemon.connect() as client:
            return [each.type for each in client.follow_events(type=kind, follow=False)].count(kind)

    before = count("image.published"), count("image.unpublished")
    cases = {
        "image.publish": Case(
            lambda _: {"reference": names[0], "owners": ["key:ci"]}, {"owners": []},
            lambda _: count("image.published") == before[0] + 1,
            like=lambda answer: answer["image_id"],
        ),
        "image.unpublish": Case(
            lambda _: {"reference": names[1]}, {"reference": names[2]},
            lambda _: count("image.unpublished") == before[1] + 1,
            like=lambda answer: answer["image_id"],
        ),
    }  # fmt: skip
    with scene.daemon.connect() as client:
        box = client.sandbox.create(client.image.create(names[0]).image_id).sandbox_id
    made_once(scene.daemon, SimpleNamespace(box=box), cases)
    for name in (names[0], names[2]):
        scene.unpublish(name)


@pytest.mark.parametrize("side", [failpoints.BEFORE, failpoints.AFTER])
def test_a_daemon_that_dies_while_it_publishes(scene: Scene, places: str, side: str) -> None:
    name = scene.tag(scene.local("made/one:1", "one"), f"{DOWN}/corp/dies:1")
    with daemon_in(places, DOCKER_HOST=scene.engine.host) as daemon:
        daemon.start(**{failpoints.SETTING: f"image.published:{side}"})

        def publish() -> Any:
            with daemon.connect(patience_s=0) as client:
                return client.image.publish(name, command_id="the-publication")

        with pytest.raises(SandkeepError):
            publish()
        assert daemon.process is not None
        daemon.process.wait(patient(60))
        daemon.process = None
        daemon.start()
        assert publish().published == {name: []}
        with daemon.connect() as client:
            assert len(client.image.list().images) == 1


def test_the_default_base_is_everybodys_if_an_administrator_chose_it(
    scene: Scene, places: str, project: Callable[[str], str]
) -> None:
    base = scene.tag(scene.local("made/one:1", "one"), f"{DOWN}/corp/default:1")
    with daemon_in(places, DOCKER_HOST=scene.engine.host, SANDKEEP_DOCKER_BASE=base) as daemon:
        daemon.env["SANDKEEP_HTTP"] = f"unix:{daemon.root}/http.sock, tcp://127.0.0.1:0"
        daemon.start()
        other = scene._replace(daemon=daemon, gateway=Gateway(daemon))
        os.unlink(f"{(place := project(''))}/Dockerfile")
        assert other.take(USER, place, provider="docker") == "one"
        assert other.take(USER, base) == other.take_by_key(base) == "one"
