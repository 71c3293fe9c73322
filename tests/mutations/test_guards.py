"""Each guard against hostile code is taken away, and a test fails: see `guards.py` for the list.

What is changed is a copy of the whole tree, and it is seen that the copy is what the tests and the daemon run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.mutations.attacks import ATTACKS, numbers
from tests.mutations.guards import DOCUMENT, GUARDS, ROOT, Guard, linked_files, listed, written
from tests.support.patience import patient

PACKAGES = ("rpc", "store", "daemon")
COPIED = (*PACKAGES, "tests", "examples", "scripts", "pyproject.toml", "README.md", "Makefile")
PATIENCE_S = patient(300.0)
SLOWER = 4
"""A test that takes so many times as long without a guard, and 20 s at least, comes to no end."""

FAILED = 1
"""What pytest ends with when tests have failed; with anything else none was run, or it could not be."""

by_name = pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)


@by_name
def test_a_guard_is_where_the_list_says(guard: Guard) -> None:
    assert (ROOT / guard.file).read_text().count(guard.text) == 1
    assert guard.instead != guard.text
    path, _, test = guard.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / path).read_text()


def test_no_guard_is_named_twice() -> None:
    assert len({guard.name for guard in GUARDS}) == len(GUARDS)


def test_every_link_in_the_list_leads_to_one_file() -> None:
    assert listed().count("\n[") == len(linked_files())


@pytest.mark.parametrize("test", numbers())
def test_each_attack_has_its_test(test: str) -> None:
    path, _, name = test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_no_attack_is_named_twice() -> None:
    assert len({(attack.asset, attack.mechanism) for attack in ATTACKS}) == len(ATTACKS)


def test_the_document_has_the_list() -> None:
    document = DOCUMENT.read_text()
    assert document == written(document), "write it anew: python -m tests.mutations.guards"


class Copy:
    """A copy of the tree, whose tests run on what is in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, place / name, symlinks=True, ignore=ignored)
            else:
                shutil.copy2(source, place / name)
        for path in (place, *place.rglob("*")):  # other users run it, too
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o644))
        self.takes: dict[str, float] = {}
        self.passes = cache(self._passes)

    def run(self, test: str, patience_s: float = PATIENCE_S) -> "subprocess.CompletedProcess[str]":
        """Run one test."""
        path = os.pathsep.join(str(self.place / name) for name in PACKAGES)
        words = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-m", ""]
        with tempfile.TemporaryDirectory(prefix="skt-mutated-") as base:
            os.chmod(base, 0o711)
            return subprocess.run(
                [*words, "--rootdir", str(self.place), "--basetemp", f"{base}/pytest-0", test],
                cwd=self.place, env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True, text=True, check=False, timeout=patience_s,
            )  # fmt: skip

    def _passes(self, test: str) -> None:
        """See that a test passes as things are; skip where it does."""
        began = time.monotonic()
        done = self.run(test)
        self.takes[test] = time.monotonic() - began
        if " skipped" in done.stdout and " passed" not in done.stdout:
            pytest.skip(f"{test} skips here")
        assert done.returncode == 0, f"{test} does not pass as it is:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"

    def fails(self, test: str) -> bool:
        """Tell if a test fails, or comes to no end."""
        try:
            done = self.run(test, max(20.0, SLOWER * self.takes[test]))
        except subprocess.TimeoutExpired:
            return True
        assert done.returncode in (0, FAILED), done.stdout[-3000:] + done.stderr[-1000:]
        return done.returncode == FAILED

    def fails_without(self, file: str, text: str, instead: str, test: str) -> bool:
        """Tell if a test fails while a text is replaced."""
        path = self.place / file
        before = path.read_text()
        assert before.count(text) == 1
        path.write_text(before.replace(text, instead))
        try:
            return self.fails(test)
        finally:
            path.write_text(before)


@pytest.fixture(scope="module")
def copy() -> Iterator[Copy]:
    with tempfile.TemporaryDirectory(prefix="skt-copy-") as place:
        os.chmod(place, 0o755)
        yield Copy(Path(place))


@pytest.mark.soak
@pytest.mark.parametrize(
    "file", ["daemon/sandkeepd/main.py", "store/sandkeep_store/eventlog/log.py", "rpc/sandkeep/ids.py"]
)
def test_the_copy_is_what_the_daemon_runs(copy: Copy, file: str) -> None:
    """A program that ends as it begins is noticed, so it is the copy's, also in processes that tests start."""
    copy.passes(_A_REAL_DAEMON)
    first = (copy.place / file).read_text().split('"""')[1]
    poison = f'{first}"""\nimport sys\nif "pytest" not in sys.modules: sys.exit("poisoned")\n_REST = """'
    assert copy.fails_without(file, first, poison, _A_REAL_DAEMON)


_A_REAL_DAEMON = "tests/daemon/core/test_access.py::test_a_user_has_images_and_sandboxes_of_their_own"


@pytest.mark.soak
@by_name
def test_a_test_fails_without_the_guard(copy: Copy, guard: Guard) -> None:
    copy.passes(guard.test)
    assert copy.fails_without(guard.file, guard.text, guard.instead, guard.test), f"{guard.test} does not need it"
