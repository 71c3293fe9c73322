"""The wheel and the sdist: built, installed into a fresh environment, and used as by a newcomer.

The dependencies are those of the tests' own environment, so that no index is asked.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.patience import patient

from sandkeep.settings.daemon import SOCKET, STATE_DIR
from sandkeep.version import VERSION

ROOT = Path(__file__).parents[2]

BLOCKED = """
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
"""As if these packages were not installed."""

MISSING = {
    "docker": ("docker",),
    "kubernetes": ("kubernetes",),
    "modal": ("modal",),
    "gcs": ("google", "requests"),
    "s3": ("boto3",),
}
"""The packages of what `capabilities` shows, by the word at the beginning of its line."""


def build(kind: str, project: Path, into: Path) -> Path:
    argv = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(argv, cwd=project, check=True, capture_output=True, timeout=patient(120))
    [path] = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return path


class Installation:
    """A virtual environment with the wheel and the dependencies of the tests' own, and a directory for its daemon."""

    def __init__(self, packages: Path, directory: Path) -> None:
        self.packages = packages
        self.directory = directory
        self.python = str(packages.parents[2] / "bin" / "python")
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SANDKEEP_"))},
            STATE_DIR.name: str(directory / "state"), SOCKET.name: str(directory / "socket"),
            "HOME": str(directory), "DOCKER_HOST": f"unix://{directory}/no-docker",
        }  # fmt: skip

    def run(self, program: str, *words: str, **options: Any) -> str:
        """Run a program of the installation, and return its output. Raises CalledProcessError."""
        argv = [str(Path(self.python).parent / program), *words]
        done = subprocess.run(
            argv,
            env=self.environment,
            cwd=self.directory,
            text=True,
            timeout=patient(120),
            capture_output=True,
            **options,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def block(self, *names: str) -> None:
        """Make imports of packages fail, of everything that is started from now on."""
        (self.packages / "blocked.py").write_text(BLOCKED.format(names=set(names)))
        (self.packages / "blocked.pth").write_text("import blocked\n")

    def unblock(self) -> None:
        """Make all imports work again: other tests share the packages."""
        (self.packages / "blocked.pth").unlink(missing_ok=True)
        (self.packages / "blocked.py").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """The directory of packages of a virtual environment into which the wheel is installed."""
    directory = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(directory, with_pip=False, symlinks=True)
    python = str(directory / "bin" / "python")
    argv = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([*argv, str(wheel)], check=True, timeout=patient(120), env=environment)
    [packages] = (directory / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return packages


@pytest.fixture
def installation(tmp_path: Path, packages: Path) -> Iterator[Installation]:
    made = Installation(packages, tmp_path)
    yield made
    if (tmp_path / "socket").exists():
        made.run("sandkeep", "daemon", "stop")
    made.unblock()


def test_the_sdist_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build("sdist", ROOT, tmp_path)) as archive:
        archive.extractall(tmp_path, filter="data")
    again = build("wheel", tmp_path / f"sandkeep-{VERSION}", tmp_path / "again")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {each.filename: each.CRC for each in first.infolist()} == {
            each.filename: each.CRC for each in second.infolist()
        }


@pytest.mark.needs("bwrap")
def test_what_is_installed_works_without_any_extra(installation: Installation) -> None:
    installation.block(*(name for extra in ("kubernetes", "modal", "gcs", "s3") for name in MISSING[extra][:1]))
    assert installation.run("sandkeep", "--version").startswith(f"sandkeep {VERSION}")
    assert "daemon" in installation.run("sandkeep", "--help")
    installation.environment["SANDKEEP_HTTP"] = f"unix:{installation.directory}/http"
    installation.run("sandkeep", "daemon", "--detach")
    assert "healthy    yes" in installation.run("sandkeep", "status", "--wait")
    (installation.directory / "project").mkdir()
    image = installation.run("sandkeep", "image", "create", "./project").strip()
    installation.run("sandkeep", "create", image, "--name", "box")
    assert installation.run("sandkeep", "exec", "box", "--", "echo", "hello") == "hello\n"
    installation.run("sandkeep", "rm", "box")
    assert "sandkeepd" in installation.run("sandkeepd", "--help")
    installation.run("sandkeep-store", "--help")


def test_what_is_missing_is_said_with_the_command_that_installs_it(installation: Installation) -> None:
    installation.block(*(name for names in MISSING.values() for name in names))
    installation.environment.pop("DOCKER_HOST")
    installation.run("sandkeep", "daemon", "--detach")
    lines = installation.run("sandkeep", "capabilities", "--json")
    shown = installation.run("sandkeep", "capabilities")
    for word in MISSING:
        assert f"\n{word} " in f"\n{shown}", shown
    for package in ("docker>=7.1", "kubernetes>=31", "modal==", "google-cloud-storage>=3.4", "boto3>=1.36"):
        assert f"-m pip install '{package}" in lines or f"-m pip install {package}" in lines, lines
    assert "too slow" not in shown


def test_an_incomplete_installation_says_so(installation: Installation) -> None:
    installation.block("eventsourcing")
    done = subprocess.run(
        [str(Path(installation.python).parent / "sandkeep"), "daemon"], env=installation.environment, text=True,
        capture_output=True, timeout=patient(120), check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "the package eventsourcing is missing: run `" in done.stderr
    assert "-m pip install 'eventsourcing" in done.stderr
    assert "Traceback" not in done.stderr
