"""Copies files of a build's context as COPY does: the launcher runs this in the container of the build.

copy MODE CONTEXT SOURCE... TARGET
mkdir TARGET
"""

import glob
import os
import shutil


def main(argv: list[str]) -> int:
    """Copy, or make a directory; return the exit code."""
    if argv[0] == "mkdir":
        os.makedirs(argv[1], exist_ok=True)
        return 0
    _, mode, context, *sources, target = argv
    into = target.endswith("/") or os.path.isdir(target) or target == "."
    for pattern in sources:
        found = glob.glob(os.path.normpath(f"{context}/{pattern}"))
        if not found:
            raise FileNotFoundError(f"{pattern}: no such file in the build context")
        for source in found:
            copy(source, target, into or len(found) + len(sources) > 2, int(mode, 8) if mode else None)
    return 0


def copy(source: str, target: str, into: bool, mode: int | None) -> None:
    """Copy a file to or into a target, or what a directory has into it."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        for name in os.listdir(source):
            copy(os.path.join(source, name), os.path.join(target, name), False, mode)
        return
    path = os.path.join(target, os.path.basename(source)) if into else target
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    shutil.copy(source, path, follow_symlinks=False)
    if mode is not None:
        os.chmod(path, mode)
