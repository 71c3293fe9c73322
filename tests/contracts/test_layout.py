"""The frame: packages under three roots, scripts that start, setup scripts that a POSIX shell can read."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from tests.support import order

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = [ROOT / "rpc", ROOT / "store", ROOT / "daemon"]


@pytest.mark.parametrize("name", ["sandkeep", "sandkeep_store", "sandkeepd"])
def test_each_package_is_typed_and_has_a_name_of_its_own(name: str) -> None:
    path = Path(str(import_module(name).__file__)).parent
    assert (path / "py.typed").exists()
    assert path.parent in SOURCES


@pytest.mark.parametrize("target", PROJECT["project"]["scripts"].values())
def test_every_script_can_start(target: str) -> None:
    module, _, function = target.partition(":")
    assert callable(getattr(import_module(module), function))


def test_the_demos_project_is_shipped() -> None:
    """Package data: every file of the packages is in the wheel, by hatchling's rule, so none may be ignored by git."""
    project = ROOT / "rpc" / "sandkeep" / "demo" / "project"
    files = [str(path) for path in project.rglob("*") if path.is_file()]
    assert len(files) >= 4
    ignored = subprocess.run(["git", "check-ignore", *files], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout == ""


@pytest.mark.parametrize("script", ["scripts/setup", "scripts/vm", ".ci/run"])
def test_scripts_are_executable_and_can_be_parsed(script: str) -> None:
    path = ROOT / script
    assert os.access(path, os.X_OK)
    shell = path.read_text().split("\n", 1)[0].split("/")[-1].split()[-1]
    assert subprocess.run([shell, "-n", path], check=False).returncode == 0


def test_setup_is_quick_and_silent_the_second_time(tmp_path: Path) -> None:
    """A stamp that fits means that nothing is to be done; here it is laid by hand, beside a venv that works."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".setup").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    sums = subprocess.run(
        "{ cat pyproject.toml scripts/setup; pwd; } | cksum | tr ' ' '-'",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / ".setup" / f"demo-{sums.stdout.strip()}").touch()
    done = subprocess.run(
        ["scripts/setup", "demo"],
        cwd=tmp_path,
        env={**os.environ, "VENV": "venv"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "making" not in done.stderr


def set_up(root: Path, tools: dict[str, str], **env: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/setup where there is nothing but a POSIX shell's usual tools and `tools`, programs by their text."""
    (root / "bin").mkdir()
    for tool in ("sh", "dirname", "cat", "cksum", "tr", "id", "rm", "mkdir", "tail"):
        (root / "bin" / tool).symlink_to(str(shutil.which(tool)))
    for name, text in tools.items():
        (root / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (root / "bin" / name).chmod(0o755)
    (root / "scripts").mkdir()
    script = (ROOT / "scripts" / "setup").read_text()
    assert "PATH=$PATH:/usr/sbin:/sbin\n" in script
    assert "policy=/usr/sbin/policy-rc.d\n" in script
    script = script.replace("PATH=$PATH:/usr/sbin:/sbin\n", "").replace("/usr/sbin/policy-rc.d", str(root / "policy"))
    (root / "scripts" / "setup").write_text(script)
    shutil.copy(ROOT / "pyproject.toml", root)
    command = [root / "bin" / "sh", "scripts/setup", "demo"]
    env = {"PATH": str(root / "bin"), **env}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


ENGINES = {"bwrap": "", "tmux": ""}


def test_setup_fails_for_an_engine_that_is_required_and_absent(tmp_path: Path) -> None:
    done = set_up(tmp_path, {"tmux": ""}, SANDKEEP_REQUIRE="tmux,bwrap")
    assert done.returncode == 1
    assert "apt-get install bubblewrap" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_setup_says_which_python_is_needed(tmp_path: Path) -> None:
    done = set_up(tmp_path, {**ENGINES, "python3": "exit 1"})
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr
    assert "apt-get install" in done.stderr


def test_setup_says_what_a_python_without_venv_lacks(tmp_path: Path) -> None:
    without = f'case "$*" in *ensurepip*) exit 1 ;; esac; exec {sys.executable} "$@"'
    done = set_up(tmp_path, {**ENGINES, "python3": without})
    assert done.returncode == 1
    assert f"python3.{sys.version_info.minor}-venv" in done.stderr


@pytest.mark.needs("root")
def test_setup_asks_apt_for_what_is_missing_only_and_starts_no_service(tmp_path: Path) -> None:
    """apt-get here writes down what it was asked, and what a package that wants to start its service would be told."""
    told = tmp_path / "told"
    ask = f'[ "$1" = update ] || {{ {tmp_path}/policy; echo "$? $*"; }} >>{told}'
    apt = {"apt-cache": "", "apt-get": ask, "env": 'shift; exec "$@"', "chmod": f'exec {shutil.which("chmod")} "$@"'}
    done = set_up(tmp_path, {"tmux": "", "python3": "exit 1", **apt}, SANDKEEP_REQUIRE="")
    assert "Python 3.11 or newer" in done.stderr  # it ends there
    words = told.read_text().split()
    assert words[:2] == ["101", "install"]
    assert [word for word in words[2:] if not word.startswith("-")] == ["bubblewrap"]
    assert not (tmp_path / "policy").exists()


def test_no_source_names_a_machine_of_ours() -> None:
    pattern = re.compile(r"/work/|/root/\.")
    told = [str(path) for source in SOURCES for path in source.rglob("*.py") if pattern.search(path.read_text())]
    assert told == []


@pytest.mark.parametrize(
    ("program", "needs"),
    [
        pytest.param("kubernetes.server", "kubernetes.kubelet", id="kubernetes"),
        pytest.param("modal.server", "modal.router", id="modal", marks=pytest.mark.needs("modal")),
    ],
)
def test_doubles_know_nothing_of_us(program: str, needs: str) -> None:
    """A double that shared our code, or our ideas, would prove nothing."""
    imports = f"import sys, tests.support.{program}, tests.support.{needs}"
    shows = "print([name for name in sys.modules if name.startswith('sandkeep')])"
    found = subprocess.run(
        [sys.executable, "-c", f"{imports}\n{shows}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"


def test_a_method_without_a_docstring_overrides_one_that_has_it() -> None:
    """Of a base class, by its name, or of a protocol. One that was left behind by a renaming has no callers."""
    classes = [
        node
        for path in (*SOURCES[1].rglob("*.py"), *SOURCES[2].rglob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    bases: dict[str, set[str]] = {}
    documented: dict[str, set[str]] = {}
    for node in classes:
        bases.setdefault(node.name, set()).update(map(class_name, node.bases))
        documented.setdefault(node.name, set()).update(f.name for f in methods(node) if ast.get_docstring(f))
    protocols = set[str]().union(*(documented[name] for name in bases if "Protocol" in bases[name]))

    def overridden(name: str) -> set[str]:
        return protocols.union(*(documented.get(base, set()) | overridden(base) for base in bases.get(name, ())))

    public = (node for node in classes if not node.name.startswith("_"))
    assert [
        f"{node.name}.{method.name}"
        for node in public
        for method in methods(node)
        if not method.name.startswith("_")
        and not ast.get_docstring(method)
        and method.name not in overridden(node.name)
    ] == []


def class_name(base: ast.expr) -> str:
    name = base.value if isinstance(base, ast.Subscript) else base
    return ast.unparse(name).rpartition(".")[2]


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_the_longest_files_of_tests_are_there() -> None:
    assert [name for name in order.LONGEST if not (order.TESTS / name).is_file()] == []
