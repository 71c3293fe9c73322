"""Optional parts of the installation: the extras of the package, and the command that installs a missing one.

The command names the packages that an extra consists of, not the extra: that is right wherever Sandkeep itself came
from, an index, a checkout or a git address. It is for the environment that this process runs in.
"""

import os
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from typing import Final

from sandkeep.errors import SetupError

PROJECT: Final = "sandkeep"

MODULES: Final = {
    "gcs": ("google.cloud.storage", "requests"),
    "s3": ("boto3",),
    "kubernetes": ("kubernetes",),
    "modal": ("modal",),
}
"""The modules of each extra whose presence shows that it is installed."""


def missing(extra: str, purpose: str) -> SetupError | None:
    """Return the error `not_supported` for a purpose whose extra is not installed; None if it is.

    Imports nothing of it: the import of some SDKs takes a second.
    """
    absent = [module for module in MODULES[extra] if not _is_there(module)]
    return not_installed(extra, purpose) if absent else None


def not_installed(extra: str, purpose: str) -> SetupError:
    """Return the error `not_supported` for a purpose whose extra is not installed."""
    message = f"{purpose} needs {PROJECT}[{extra}], which is not installed: run `{install_command(extra)}`"
    return SetupError("not_supported", message, extra=extra)


def incomplete_by(error: ModuleNotFoundError) -> SetupError | None:
    """Return the error `not_supported` for an import that failed; None if it was not of a package that each
    installation has.
    """
    module = (error.name or "").partition(".")[0]
    is_ours = any(_package(each) == _normal(module) for each in _requirements(None))
    return incomplete(module) if is_ours else None


def incomplete(module: str) -> SetupError:
    """Return the error `not_supported` for a package that each installation has and this one lacks."""
    packages = [each for each in _requirements(None) if _package(each) == _normal(module)]
    command = _install(packages or [module])
    message = f"this installation of Sandkeep is not complete, the package {module} is missing: run `{command}`"
    return SetupError("not_supported", message, package=module)


def install_command(extra: str) -> str:
    """Return the command line that installs an extra into this process's environment."""
    return _install(_requirements(extra) or [f"{PROJECT}[{extra}]"])


def _install(packages: list[str]) -> str:
    if os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json")):
        argv = ["pipx", "inject", os.path.basename(sys.prefix)]  # which an upgrade by pipx keeps
    elif _is_there("pip"):
        argv = [sys.executable, "-m", "pip", "install"]
    else:
        argv = ["uv", "pip", "install", "--python", sys.executable]
    return shlex.join([*argv, *packages])


def _requirements(extra: str | None) -> list[str]:
    """Return the requirements of an extra, or those of every installation, as the package's metadata has them."""
    try:
        lines = requires(PROJECT) or []
    except PackageNotFoundError:  # it runs from a directory, and was not installed
        return []
    parts = (line.partition(";") for line in lines)
    return [requirement.strip() for requirement, _, marker in parts if _extra_of(marker) == extra]


def _extra_of(marker: str) -> str | None:
    match = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
    return match[1] if match else None


def _package(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return _normal(match[0]) if match else ""


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package that it would be in
        return False
