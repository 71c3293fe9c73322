"""Carries out one operation on files: the launcher runs this in a sandbox, whose image need not have Python.

The operation is a JSON object with one name. Errors are JSON on stderr.
"""

import errno
import grp
import json
import os
import pwd
import shutil
import stat
import sys
from typing import Any

CHUNK = 1 << 20
KINDS = {
    errno.ENOENT: "NotFound",
    errno.ENOTDIR: "NotDirectory",
    errno.EISDIR: "IsDirectory",
    errno.EEXIST: "PathAlreadyExists",
    errno.ENOTEMPTY: "DirectoryNotEmpty",
    errno.EACCES: "PermissionDenied",
    errno.EPERM: "PermissionDenied",
    errno.EROFS: "PermissionDenied",
}


def write_file(path: str) -> None:
    """Write stdin to a file, whose directory need not exist."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
    with open(path, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, CHUNK)


def read_file(path: str) -> None:
    """Write a file to stdout."""
    with open(path, "rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer, CHUNK)
    sys.stdout.buffer.flush()


def make_directory(path: str, parents: bool) -> None:
    """Make a directory."""
    if parents:
        os.makedirs(path, exist_ok=True)
    else:
        os.mkdir(path)


def remove(path: str, recursive: bool) -> None:
    """Remove a file or a directory."""
    if not os.path.isdir(path) or os.path.islink(path):
        os.remove(path)
    elif recursive:
        shutil.rmtree(path)
    else:
        os.rmdir(path)


def list_files(path: str) -> None:
    """Print the entries of a directory."""
    print(json.dumps([describe(os.path.join(path, name)) for name in sorted(os.listdir(path))]))


def stat_file(path: str) -> None:
    """Print one entry."""
    print(json.dumps(describe(path)))


def describe(path: str) -> dict[str, Any]:
    """Return an entry, without following it if it is a symbolic link."""
    found = os.lstat(path)
    kinds = {stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    return {
        "name": os.path.basename(path),
        "path": path,
        "type": kinds.get(stat.S_IFMT(found.st_mode), "file"),
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "permissions": stat.filemode(found.st_mode),
        "owner": name_of(pwd.getpwuid, found.st_uid),
        "group": name_of(grp.getgrgid, found.st_gid),
        "modified_time": found.st_mtime,
        "symlink_target": os.readlink(path) if stat.S_ISLNK(found.st_mode) else None,
    }


def name_of(database: Any, number: int) -> str:
    """Return a name of the image's users or groups, or the number."""
    try:
        return str(database(number)[0])
    except KeyError:
        return str(number)


OPERATIONS = {
    "WriteFile": write_file,
    "ReadFile": read_file,
    "MakeDirectory": make_directory,
    "Remove": remove,
    "ListFiles": list_files,
    "Stat": stat_file,
}


def main(argv: list[str]) -> int:
    """Carry out an operation; return the exit code."""
    ((name, arguments),) = json.loads(argv[1]).items()
    try:
        if name not in OPERATIONS:
            raise OSError(errno.ENOSYS, name)
        OPERATIONS[name](**arguments)
    except OSError as error:
        kind = KINDS.get(error.errno or 0, "Other")
        print(json.dumps({"error_kind": kind, "message": error.strerror or str(error)}), file=sys.stderr)
        return 1
    return 0
