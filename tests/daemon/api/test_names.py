"""Names of sandboxes, which are their owner's; and that nothing tells what others have."""

import gzip
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from msgspec import Raw
from tests.support.expect import refused_async
from tests.support.inside import Inside, inside
from tests.support.patience import patient

from sandkeep import events, ids, model
from sandkeep.errors import SandkeepError, StateError
from sandkeep.events import LOG_STREAM, Meta
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.methods import METHODS, REFERENCES, Method
from sandkeep_store.eventlog.log import NewEvent
from sandkeepd.core import core as core_module

ALICE, BOB = 1001, 1002
OLD_LOG = Path(__file__).parents[2] / "contracts/named-log.db.gz"
"""A log as daemons wrote it that had callers choose the ids of sandboxes. One is called ``log``, and as the log's own
stream was called so, too, a redaction went into the sandbox's stream. ALICE has that, ``box`` and ``sbx_mine``, which
ran, and ``old``, which had ended; of BOB's ``bobs`` has ended.
"""


@pytest.fixture
def source(places: str) -> str:
    """A directory that every user can read."""
    folder = Path(places, f"source-{ids.new_id(ids.IMAGE)}")
    folder.mkdir()
    folder.chmod(0o755)
    return str(folder)


@pytest.fixture
async def daemon(state_dir: str) -> AsyncIterator[Inside]:
    async with inside(state_dir) as made:
        yield made
        for sandbox in list(made.core.state.sandboxes.values()):
            if sandbox.handle:
                await made.call("sandbox.terminate", sandbox_id=sandbox.sandbox_id)


async def create(daemon: Inside, source: str, name: str | None, uid: int = ALICE) -> str:
    image = await daemon.call("image.create", uid=uid, source=source, provider="fake")
    made = await daemon.call("sandbox.create", uid=uid, image_id=image.image_id, name=name)
    assert ids.looks_like_id(made.sandbox_id)
    assert made.name == name
    return str(made.sandbox_id)


# -- names ------------------------------------------------------------------------------------------------------------


async def test_a_name_means_the_callers_own_sandbox(daemon: Inside, source: str) -> None:
    hers, his = await create(daemon, source, "box"), await create(daemon, source, "box", BOB)
    for uid, sandbox_id in ((ALICE, hers), (BOB, his)):
        for called in ("box", sandbox_id):
            assert (await daemon.call("sandbox.get", uid=uid, sandbox_id=called)).sandbox_id == sandbox_id
    await refused_async("not_found", daemon.call("sandbox.get", sandbox_id="box"))  # an administrator has none of it
    for sandbox_id in (hers, his):
        assert (await daemon.call("sandbox.get", sandbox_id=sandbox_id)).sandbox_id == sandbox_id


async def test_a_name_is_free_again_when_its_sandbox_has_ended(daemon: Inside, source: str) -> None:
    first = await create(daemon, source, "box")
    image_id = daemon.box("box", ALICE).requested.image_id
    again = {"uid": ALICE, "image_id": image_id, "name": "box"}
    assert (await refused_async("conflict", daemon.call("sandbox.create", **again))).data == {"name": "box"}
    await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="box")
    assert (await daemon.call("sandbox.get", uid=ALICE, sandbox_id="box")).sandbox_id == first
    daemon.fake.faults.create_error = StateError("not_ready", "no")
    await refused_async("not_ready", daemon.call("sandbox.create", **again))
    daemon.fake.faults.create_error = None
    second = (await daemon.call("sandbox.create", **again)).sandbox_id
    assert (await daemon.call("sandbox.get", uid=ALICE, sandbox_id="box")).sandbox_id == second
    assert (await daemon.call("sandbox.get", uid=ALICE, sandbox_id=first)).status == "stopped"


async def test_names_are_the_same_after_a_restart(state_dir: str, source: str) -> None:
    async with inside(state_dir) as daemon:
        ended = await create(daemon, source, "box")
        await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="box")
        second = await create(daemon, source, "box")
        assert ended != second
        await create(daemon, source, "other")
        await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="other")
        names = dict(daemon.core.state._names)
    async with inside(state_dir) as daemon:
        await daemon.reconciler.run()
        assert daemon.core.state._names == names
        daemon.core.state.index_names()
        assert daemon.core.state._names == names
        assert (await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="box")).sandbox_id == second


async def test_one_of_many_that_take_a_name_at_once_gets_it(daemon: Inside, source: str) -> None:
    image_id = (await daemon.call("image.create", uid=ALICE, source=source, provider="fake")).image_id
    codes: list[str] = []

    async def attempt() -> None:
        try:
            await daemon.call("sandbox.create", uid=ALICE, image_id=image_id, name="box")
        except SandkeepError as error:
            codes.append(error.code)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(attempt)
    assert codes == ["conflict"] * 5


async def test_a_command_given_again_means_the_sandbox_that_it_meant(daemon: Inside, source: str) -> None:
    """Although its name is another's by now."""
    first = await create(daemon, source, "box")
    launch: dict[str, Any] = {"uid": ALICE, "sandbox_id": "box", "name": "p", "command": ["sleep", "60"]}
    started = await daemon.call("process.launch", **launch, command_id="launch")
    assert await daemon.call("process.launch", **launch, command_id="launch") == started
    signal: dict[str, Any] = {"uid": ALICE, "sandbox_id": "box", "name": "p", "signal": "KILL", "command_id": "kill"}
    await daemon.call("process.signal", **signal)
    await daemon.call("process.wait", uid=ALICE, sandbox_id="box", name="p")
    resize: dict[str, Any] = {"uid": ALICE, "sandbox_id": "box", "name": "p", "data": b"", "command_id": "in"}
    await refused_async("not_ready", daemon.call("process.write_stdin", **resize))
    end = {"uid": ALICE, "sandbox_id": "box", "command_id": "end"}
    ended = await daemon.call("sandbox.terminate", **end)
    second = await create(daemon, source, "box")
    assert await daemon.call("sandbox.terminate", **end) == ended
    assert ended.sandbox_id == first
    assert (await daemon.call("process.signal", **signal)).sandbox_id == first
    assert (await daemon.call("process.launch", **launch, command_id="launch")).process_id == started.process_id
    await refused_async("conflict", daemon.call("process.write_stdin", **resize))  # nobody knows which was meant
    assert (await daemon.call("sandbox.get", uid=ALICE, sandbox_id="box")).sandbox_id == second


async def test_a_command_given_again_is_known_although_its_words_mean_nothing_any_more(
    daemon: Inside, source: str
) -> None:
    """As those of an id's beginning do once another id begins so. Nobody else learns anything of it."""
    first = await create(daemon, source, None)
    launch: dict[str, Any] = {"uid": ALICE, "sandbox_id": first[:8], "command": ["true"], "command_id": "launch"}
    started = await daemon.call("process.launch", **launch)
    await create(daemon, source, None)
    assert (await daemon.call("process.launch", **launch)).process_id == started.process_id
    await refused_async("conflict", daemon.call("process.launch", **{**launch, "command": ["false"]}))
    await refused_async("invalid", daemon.call("process.launch", **{**launch, "command_id": "another"}))
    await refused_async("not_found", daemon.call("process.launch", **{**launch, "uid": BOB}))
    await refused_async("not_found", daemon.call("process.launch", **{**launch, "uid": BOB, "sandbox_id": first}))


# -- logs in which callers chose ids ----------------------------------------------------------------------------------


@pytest.fixture
def old_log(state_dir: str) -> str:
    os.makedirs(state_dir, mode=0o700)
    Path(state_dir, "events.db").write_bytes(gzip.decompress(OLD_LOG.read_bytes()))
    return state_dir


async def test_ids_of_older_logs_are_names_too(old_log: str, source: str) -> None:
    async with inside(old_log) as daemon:
        assert daemon.core.problems == []
        await daemon.reconciler.run()
        listed = (await daemon.call("sandbox.list", uid=ALICE, all=True)).sandboxes
        told = {box.sandbox_id: (box.name, box.status) for box in listed}
        assert told == {
            "log": ("log", "lost"), "box": ("box", "lost"), "sbx_mine": (None, "lost"), "old": ("old", "stopped"),
        }  # fmt: skip
        image_id = daemon.core.state.sandboxes["box"].requested.image_id
        await refused_async("conflict", daemon.call("sandbox.create", uid=ALICE, image_id=image_id, name="box"))
        await refused_async("not_found", daemon.call("sandbox.get", uid=BOB, sandbox_id="box"))
        assert (await daemon.call("sandbox.get", sandbox_id="box")).owner == f"uid:{ALICE}"  # by its id
        await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="box")
        for name, uid in (("box", ALICE), ("old", ALICE), ("box", BOB), ("log", BOB), ("sbx", BOB)):
            made = await create(daemon, source, name, uid)
            assert (await daemon.call("sandbox.get", uid=uid, sandbox_id=name)).sandbox_id == made
            await daemon.call("sandbox.terminate", uid=uid, sandbox_id=name)
        assert (await daemon.call("sandbox.get", uid=ALICE, sandbox_id="sbx_mine")).status == "lost"
        for sandbox_id in ("log", "sbx_mine"):
            await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id=sandbox_id)


async def test_a_sandbox_that_shares_the_logs_old_stream_can_be_ended(old_log: str) -> None:
    async with inside(old_log) as daemon:
        await daemon.reconciler.run()
        old = daemon.core.state.sandboxes["old"]
        with trio.fail_after(patient(30)):
            assert (await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="log")).status == "stopped"
            await daemon.call("store.redact", position=15)
        [asked, done] = await daemon.core.log.read(0, 10, stream=LOG_STREAM)
        assert (asked.type, done.type) == ("log.redact_requested", "log.redacted")
        types = [fact.type for fact in await daemon.core.log.read(18, 10, stream="log")]
        assert types == [
            "log.redact_requested", "log.redacted", "sandbox.lost",
            "sandbox.terminate_requested", "sandbox.terminated",
        ]  # fmt: skip
        assert old.status == "stopped"
    async with inside(old_log) as daemon:
        assert daemon.core.problems == []
        assert daemon.core.log.verify() == []
        assert daemon.core.state.sandboxes["log"].status == "stopped"


async def test_a_sandbox_called_as_the_log_was(daemon: Inside, source: str) -> None:
    for name in ("log", "daemon"):
        await create(daemon, source, name)
    await create(daemon, source, "ended")
    await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="ended")
    history = await daemon.call("sandbox.history", uid=ALICE, sandbox_id="ended")
    report = await daemon.call("store.redact", position=history.events[0].position)
    assert report.places == ["log"]
    with trio.fail_after(patient(30)):
        for name in ("log", "daemon"):
            assert (await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id=name)).status == "stopped"


# -- what never fits --------------------------------------------------------------------------------------------------

ORDERS = {
    "sandbox.terminate": "sandbox.terminate_requested",
    "sandbox.suspend": "sandbox.suspend_requested",
}


@pytest.mark.parametrize("method", ORDERS)
async def test_a_revision_that_never_fits_ends_in_an_error(
    daemon: Inside, source: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(daemon, source, "box")
    append, tries = daemon.core.log.append, list[str]()

    async def count(new: Any, meta: Meta, **more: Any) -> Any:
        tries.extend(entry.event.type for entry in new)
        return await append(new, meta, **more)

    monkeypatch.setattr(daemon.core.log, "append", count)
    sandbox = daemon.box("box", ALICE)
    right, sandbox.revision = sandbox.revision, sandbox.revision + 1
    try:
        with trio.fail_after(patient(60)):
            await refused_async("conflict", daemon.call(method, uid=ALICE, sandbox_id="box"))
    finally:
        sandbox.revision = right
        monkeypatch.undo()
    assert tries == [ORDERS[method]] * (len(core_module.TRY_AGAIN_S) + 1)


async def test_an_order_that_another_got_ahead_of_is_made_anew(daemon: Inside, source: str) -> None:
    """Which the pauses between tries must not forget."""
    sandbox_id = await create(daemon, source, "box")
    sandbox = daemon.box("box", ALICE)
    sandbox.revision -= 1  # as if what went on record just now had not been told yet

    async def told() -> None:
        await trio.testing.wait_all_tasks_blocked()
        sandbox.revision += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(told)
        assert (await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id=sandbox_id)).status == "stopped"


# -- what others have -------------------------------------------------------------------------------------------------


class Objects(msgspec.Struct):
    """One of each kind that somebody has."""

    sandbox: str
    image: str
    snapshot: str
    checkpoint: str
    process: str
    session: str
    artifact: str
    merge: str
    commit: str

    def of(self, kind: str) -> str:
        """Its id."""
        return str(getattr(self, kind))


async def things(daemon: Inside, source: str, uid: int) -> Objects:
    """Make one of each kind. The fake provider keeps no files, so that snapshots and checkpoints are only on record."""
    owner = f"uid:{uid}"
    box = await create(daemon, source, "box", uid)
    state = daemon.core.state.sandboxes[box]
    started = await daemon.call("process.launch", uid=uid, sandbox_id=box, name="web", command=["sleep", "600"])
    archives = f"{os.path.dirname(source)}/archives"
    place = model.Place(where="state", base=archives, path="x", uri=f"{archives}/x")
    snapshot, checkpoint = ids.new_id(ids.SNAPSHOT), ids.new_id(ids.CHECKPOINT)
    asked = events.SnapshotCreateRequested(
        owner=owner, kind="full", format="tar.gz", places=[place], sandbox_id=box, image_id=state.requested.image_id,
        provider="fake",
    )  # fmt: skip
    stored = events.SnapshotStored(digest="sha256:0", size_bytes=1, member_count=1, content_bytes=1, format="tar.gz")
    saving = events.CheckpointCreateRequested(
        owner=owner, sandbox_id=box, image_id=state.requested.image_id, provider="fake", spec=state.spec, place=place,
        leave_running=True,
    )  # fmt: skip
    saved = events.CheckpointStored(files=[], processes=0)
    told = [(snapshot, asked), (snapshot, stored), (checkpoint, saving), (checkpoint, saved)]
    await daemon.core.log.append([NewEvent(stream, event, box) for stream, event in told], Meta(owner=owner))
    exporting = events.ArtifactExportRequested(owner=owner, sandbox_id=box, path="x")
    exported = events.ArtifactExported(name="x", media_type="text/plain", size_bytes=0)
    artifact = ids.new_id(ids.ARTIFACT)
    made = [NewEvent(artifact, exporting), NewEvent(artifact, exported)]
    await daemon.core.log.append(made, Meta(owner=owner))
    merge, commit = ids.new_id(ids.MERGE), ids.new_id(ids.COMMIT)
    merging = events.BranchMergeRequested(
        owner=owner, branches={"box": box}, points={}, base_id=state.requested.image_id, base_plan={},
        image_id=state.requested.image_id, provider="fake", spec=state.spec,
    )  # fmt: skip
    conflicted = events.BranchConflicted(conflicts=1, changed=1, points=[], record="absent", size_bytes=1)
    committing = events.BranchCommitRequested(
        owner=owner, sandbox_id=box, target="/nowhere", uid=uid, gid=uid, base_id=state.requested.image_id
    )
    committed = events.BranchCommitted(added=0, changed=0, deleted=0, provenance="")
    branched = [(merge, merging), (merge, conflicted), (commit, committing), (commit, committed)]
    await daemon.core.log.append([NewEvent(stream, event) for stream, event in branched], Meta(owner=owner))
    session = (await daemon.call("session.ensure", uid=uid, id="pinned", image=state.requested.image_id)).session.key
    return Objects(
        box, state.requested.image_id, snapshot, checkpoint, started.process_id, session, artifact, merge, commit
    )


def made_up(like: str) -> str:
    """An id that nobody has, of the same kind and length."""
    kind, _, number = like.partition("_")
    return f"{kind}_{number[:-3]}{'zzz' if not number.endswith('zzz') else 'yyy'}"


def values(method: Method, mine: Objects) -> dict[str, Any]:
    """Parameters with which the method says nothing against them."""
    filled = {
        "command": ["true"], "name": "web", "path": "/f", "data": b"", "rows": 24, "cols": 80, "transfer_id": "t",
        "source": "/nowhere", "size_bytes": 0, "position": 1, "client": "test", "disk_bytes": 1 << 30,
        "sandbox_ids": [mine.sandbox], "decisions": [model.Resolution(path="f", delete=True)], "sha256": "0" * 64,
        "target": "/nowhere",
    }  # fmt: skip
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(method.params):
        if field.name in REFERENCES and field.required:
            given[field.name] = mine.of(REFERENCES[field.name])
        elif field.required:
            given[field.name] = filled[field.name]
    return given


def mentions() -> Iterator[tuple[str, str, str]]:
    """Each parameter that may name an object, with its kind: also where a page goes on, and a process."""
    for method in METHODS.values():
        for field in method.params.__struct_fields__:
            if field in method.references:
                yield method.name, field, method.references[field]
            elif field == "after" and method.name.endswith((".list", ".stats")) and not method.name.startswith("event"):
                noun = method.name.partition(".")[0]
                yield method.name, field, noun if noun in Objects.__struct_fields__ else "sandbox"
            elif field == "name" and method.name.startswith("process.") and method.name != "process.launch":
                yield method.name, field, "process"


async def said(daemon: Inside, method: str, params: Mapping[str, Any], patience_s: float = patient(60)) -> bytes:
    """The answer, as it is sent, but for figures that grow."""
    result: Any = "it waits"
    try:
        with trio.move_on_after(patience_s):
            result = await daemon.call(method, uid=BOB, **params)
    except SandkeepError as error:
        return jsonrpc.error(Raw(b"1"), error)
    answer = [one.sandbox_id for one in result.sandboxes] if method == "sandbox.stats" else result
    return jsonrpc.result(Raw(b"1"), jsonrpc.encode(answer))


async def test_anothers_object_and_none_at_all_give_the_same_answer(daemon: Inside, source: str) -> None:
    hers, his = await things(daemon, source, ALICE), await things(daemon, source, BOB)
    looked = set[str]()
    for method, field, kind in mentions():
        if METHODS[method].access.name == "ADMIN":
            continue
        theirs, none = hers.of(kind), made_up(hers.of(kind))
        before = daemon.core.log.head
        answers = []
        for text in (theirs, none):
            answer = await said(daemon, method, values(METHODS[method], his) | {field: text})
            assert hers.sandbox.encode() not in answer or text == hers.sandbox
            answers.append(answer.replace(text.encode(), b"ID"))
        assert answers[0] == answers[1], (method, field)
        causes = [msgspec.json.decode(fact.meta, type=Meta) for fact in await daemon.core.log.read(before, 100)]
        assert [cause for cause in causes if cause.owner is not None] == [], (method, field)
        if field in REFERENCES:
            assert b'"code":"not_found"' in answers[0], (method, field, answers[0])
            patience_s = 10 if METHODS[method].mutates else 1  # a change goes on when nobody waits for it
            own = await said(daemon, method, values(METHODS[method], his) | {field: his.of(kind)}, patience_s)
            assert f"there is no {kind}".encode() not in own, (method, field, own)
        looked.add(field)
        his = await whole(daemon, source, his)
    assert looked == {*REFERENCES, "after", "name"}


async def whole(daemon: Inside, source: str, mine: Objects) -> Objects:
    """What is there of somebody after a call that may have ended some of it."""
    state = daemon.core.state
    ready = state.sandboxes[mine.sandbox].status == "running" and state.images[mine.image].status == "ready"
    kept = state.snapshots[mine.snapshot].status == state.checkpoints[mine.checkpoint].status == "ready"
    if ready and kept and not state.processes[mine.process].ended:
        return mine
    await daemon.call("sandbox.terminate", uid=BOB, sandbox_id=mine.sandbox)
    return await things(daemon, source, BOB)


async def test_anothers_names_ids_and_commands_are_free(daemon: Inside, source: str) -> None:
    hers = await things(daemon, source, ALICE)
    image = await daemon.call("image.create", uid=ALICE, source=source, provider="fake", command_id="c", clean=True)
    his = await daemon.call("image.create", uid=BOB, source=source, provider="fake", command_id="c")
    assert his.image_id != image.image_id
    answers = []
    for name in ("box", "none"):
        made = await daemon.call("sandbox.create", uid=BOB, image_id=his.image_id, name=name, command_id=name)
        answers.append(made.name)
        await refused_async("not_found", daemon.call("sandbox.get", uid=BOB, sandbox_id=hers.sandbox))
    assert answers == ["box", "none"]
    status = await daemon.call("daemon.status", uid=BOB)
    assert (status.sandboxes, status.running_processes) == ({"running": 2}, 0)
    seen = b"".join(msgspec.json.encode(event) for event in (await daemon.call("event.list", uid=BOB)).events)
    for kind in Objects.__struct_fields__:
        assert hers.of(kind).encode() not in seen
