"""Forks of local sandboxes, with a real daemon: what they begin with, that nobody hears of anybody, what they share."""

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import layers, on_both_deep, paths, sh, tree
from tests.support.users import command_as, let_in

from sandkeepd.providers.common.layers import MOST_LAYERS

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture(scope="module")
def client(keeping_daemon: Any) -> Any:
    with keeping_daemon.connect() as client:
        yield client


@pytest.fixture(scope="module")
def image(client: Any, image_of: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    source = tmp_path_factory.mktemp("source")
    let_in(source)
    (source / "gone").mkdir()
    (source / "gone" / "old").write_text("old\n")
    (source / "file").write_text("from the image\n")
    return str(client.image.create(str(source), **image_of).image_id)


CHANGE = (
    "rm file; rm -r gone; mkdir gone; echo young >gone/young; mkdir -m 700 closed; echo s >closed/s; chmod 0 closed"
)


def end(client: Any, *boxes: str) -> None:
    for box in boxes:
        client.sandbox.terminate(box)


@on_both_deep
def test_forks_begin_with_what_their_source_has_and_go_on_alone(client: Any, box: str) -> None:
    sh(client, box, CHANGE)
    before = tree(client, box)
    forked = client.sandbox.fork(box, count=3, labels={"try": "yes"})
    assert forked.pause_ms > 0
    first, second, third = (made.sandbox_id for made in forked.sandboxes)
    for made in forked.sandboxes:
        assert (made.forked_from, made.status, made.spec.labels) == (box, "running", {"try": "yes"})
        assert tree(client, made.sandbox_id) == before
    sh(client, first, "chmod 700 closed; rm -r closed; echo 1 >mine; echo changed >gone/young; mkdir file")
    sh(client, box, "echo later >later; rm -r gone")
    assert tree(client, second) == tree(client, third) == before
    assert paths(client, first) == {"file", "gone", "gone/young", "mine"}
    assert paths(client, box) == {"closed", "later"}
    end(client, first, second, third)


def test_forks_of_forks(client: Any, box: str, shared_daemon: Any) -> None:
    made, shown = [box], []
    for generation in range(3):
        sh(client, made[-1], f"echo {generation} >own-{generation}; rm -f own-{generation - 2}")
        shown.append(tree(client, made[-1]))
        made.append(client.sandbox.fork(made[-1]).sandboxes[0].sandbox_id)
        assert tree(client, made[-1]) == shown[-1]
    own = [layer for layer in layers(shared_daemon) if layer.startswith("frk_")]
    end(client, made[1], made[2])
    assert tree(client, made[3]) == shown[2]
    end(client, made[3])
    until(lambda: not set(own[-3:]) & set(layers(shared_daemon)))


def test_many_generations_do_not_pile_up(client: Any, box: str) -> None:
    made = box
    for generation in range(MOST_LAYERS + 2):
        sh(client, made, f"echo {generation} >{generation}; rm -f ./{generation - 1}; chmod 600 {generation} file")
        older, made = made, client.sandbox.fork(made).sandboxes[0].sandbox_id
        if older != box:
            end(client, older)
    assert paths(client, made) == {"file", "gone", "gone/old", f"{MOST_LAYERS + 1}"}
    assert sh(client, made, "cat file; stat -c %u file gone | uniq") == f"from the image\n{sh(client, box, 'id -u')}"
    end(client, made)


def test_what_is_shared_is_there_once_and_goes_with_the_last(client: Any, box: str, shared_daemon: Any) -> None:
    sh(client, box, "head -c 4M /dev/urandom >large")
    before = set(layers(shared_daemon))
    made = [one.sandbox_id for one in client.sandbox.fork(box, count=4).sandboxes]
    [layer] = set(layers(shared_daemon)) - before
    uppers = [f"{shared_daemon.state_dir}/sandboxes/{one}/upper" for one in made]
    assert [os.listdir(upper) for upper in uppers] == [[]] * 4
    for one in made[:3]:
        client.sandbox.terminate(one)
    assert layer in layers(shared_daemon)
    assert sh(client, made[3], "stat -c %s large") == f"{4 << 20}\n"
    client.sandbox.terminate(made[3])
    until(lambda: layer not in layers(shared_daemon))


@on_both_deep
def test_an_image_stays_while_forks_have_its_files(client: Any, image: str, shared_daemon: Any) -> None:
    own = client.image.create(client.image.get(image).source, clean=True).image_id
    source = client.sandbox.create(own).sandbox_id
    made = client.sandbox.fork(source).sandboxes[0].sandbox_id
    client.sandbox.terminate(source)
    refused("in_use", lambda: client.image.remove(own))
    end(client, made)
    client.image.remove(own)


@on_both_deep
def test_secrets_are_given_again(client: Any, image: str) -> None:
    source = client.sandbox.create(image, secrets={"KEY": "s3cret"}).sandbox_id
    assert "KEY" in refused("secret_missing", lambda: client.sandbox.fork(source)).message
    made = client.sandbox.fork(source, secrets={"KEY": "another"}).sandboxes[0]
    assert made.secrets == ["KEY"]
    assert sh(client, made.sandbox_id, "echo $KEY") == "another\n"
    end(client, source, made.sandbox_id)


@on_both_deep
def test_names_of_ones_own(client: Any, box: str) -> None:
    made = client.sandbox.fork(box, count=2, names=["left", "right"]).sandboxes
    assert [one.name for one in made] == ["left", "right"]
    refused("conflict", lambda: client.sandbox.fork(box, names=["left"]))
    refused("conflict", lambda: client.sandbox.fork(box, count=2, names=["up", "up"]))
    refused("invalid", lambda: client.sandbox.fork(box, count=2, names=["up"]))
    refused("invalid", lambda: client.sandbox.fork(box, names=["snp_mine"]))
    end(client, "left", "right")


@on_both_deep
def test_a_command_given_again_makes_no_more(client: Any, box: str) -> None:
    first = client.sandbox.fork(box, count=2, command_id="fork-again")
    again = client.sandbox.fork(box, count=2, command_id="fork-again")
    assert [one.sandbox_id for one in again.sandboxes] == [one.sandbox_id for one in first.sandboxes]
    end(client, *(one.sandbox_id for one in first.sandboxes))


@on_both_deep
def test_lineage_is_told(client: Any, box: str) -> None:
    made = client.sandbox.fork(box).sandboxes[0].sandbox_id
    of_source = [event.type for event in client.sandbox.history(box).events]
    assert of_source[-2:] == ["sandbox.fork_requested", "sandbox.forked"]
    requested = client.sandbox.history(made).events[0]
    assert requested.type == "sandbox.create_requested"
    assert requested.data["forked_from"] == box
    end(client, made)


@on_both_deep
def test_one_that_failed_can_be_forked_and_one_that_ended_cannot(client: Any, image: str) -> None:
    source = client.sandbox.create(image).sandbox_id
    sh(client, source, "echo saved >saved")
    os.kill(client.sandbox.history(source).events[1].data["handle"]["first"]["pid"], 9)
    until(lambda: client.sandbox.get(source).status == "failed")
    made = client.sandbox.fork(source).sandboxes[0].sandbox_id
    assert sh(client, made, "cat saved") == "saved\n"
    end(client, source)
    refused("not_ready", lambda: client.sandbox.fork(source))
    refused("not_found", lambda: client.sandbox.fork("never-was"))
    end(client, made)


@on_both_deep
def test_several_at_once_of_one_that_changes(client: Any, box: str, keeping_daemon: Any) -> None:
    """Each has the two files as they were at one moment."""
    writer = "i=0; while :; do i=$((i+1)); echo $i >>one; echo $i >>two; done"
    client.process.launch(box, ["sh", "-c", writer], name="writer")
    until(lambda: sh(client, box, "cat two 2>/dev/null || true"))

    def fork(_: int) -> list[str]:
        with keeping_daemon.connect() as own:
            return [made.sandbox_id for made in own.sandbox.fork(box, count=2).sandboxes]

    with ThreadPoolExecutor(3) as pool:
        made = [one for pair in pool.map(fork, range(3)) for one in pair]
    for one in made:
        first, second = (int(count) for count in sh(client, one, "wc -l <one; wc -l <two").split())
        assert 0 <= first - second <= 1
    client.process.signal(box, "writer", "KILL")
    end(client, *made)


def test_a_fork_that_cannot_be_copied_leaves_nothing(client: Any, box: str, shared_daemon: Any) -> None:
    place = f"{shared_daemon.state_dir}/sandboxes/{box}/upper"
    os.rename(place, f"{place}.away")
    before = layers(shared_daemon)
    try:
        refused("not_ready", lambda: client.sandbox.fork(box, names=["lost"]))
    finally:
        os.rename(f"{place}.away", place)
    assert set(layers(shared_daemon)) <= set(before)  # those of earlier tests may be on their way
    assert client.sandbox.fork(box, names=["lost"]).sandboxes[0].name == "lost"
    end(client, "lost")


def test_without_isolation(client: Any, image: str) -> None:
    source = client.sandbox.create(image, isolation="none").sandbox_id
    sh(client, source, "echo mine >mine; rm file")
    made = client.sandbox.fork(source).sandboxes[0].sandbox_id
    assert paths(client, made) == {"gone", "gone/old", "mine"}
    snapshot = client.snapshot.create(made)
    assert snapshot.member_count == 4
    end(client, source, made)


FEW = "go_on_alone or exactly_the_files or stays_gone or files_back or (all_that_was_changed and (closed or full))"
ALL = f"{FEW} or of_forks or image_alone or promoted or pile_up or all_that_was_changed"


@pytest.mark.needs("root")
@pytest.mark.parametrize("these", [pytest.param(FEW, id="few"), pytest.param(ALL, marks=pytest.mark.soak, id="all")])
def test_the_same_of_a_users_own_daemon(these: str) -> None:
    """Again, and snapshots too, as an ordinary user, who can neither map uids nor mount outside a namespace."""
    uid = 54_321
    files = [__file__, *(str(Path(__file__).with_name(f"test_{name}.py")) for name in ("snapshots", "much_changed"))]
    with tempfile.TemporaryDirectory(prefix="sandkeep-user-") as base:
        os.chown(base, uid, uid)
        suite = [
            sys.executable, "-B", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider",
            "--basetemp", f"{base}/tmp", "-k", f"({these}) and not users_own and not docker", *files,
        ]  # fmt: skip
        done = subprocess.run(
            command_as(uid, suite), cwd=Path(__file__).parents[3], env={**os.environ, "HOME": base},
            capture_output=True, text=True, check=False, timeout=patient(240),
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
