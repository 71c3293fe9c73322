"""Configuration of sandboxes, from whatever form a program has it in."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, NoReturn, TypeAlias

import msgspec
from msgspec import Meta, Struct, field

from sandkeep.errors import CallerError
from sandkeep.model import MergePolicy, Network
from sandkeep.settings.daemon import parse_size

IGNORED: Final = (".git", "__pycache__", "venv", "node_modules", ".gcri")
"""Names that are not copied into a branch, nor committed from one, at any depth of the project."""

IGNORED_AT_HEAD: Final = (*IGNORED, "env", ".idea", ".vscode")
"""The same of later versions of GCRI, for `SandboxConfig.ignore`."""

BASELINE: Final = ".gcri_baseline"
"""File in each workspace, made once it is set up: what is newer was changed in the branch. It never leaves it."""

SECTION: Final = "sandbox"

Policy: TypeAlias = MergePolicy | Literal["later"]

_AT: Final = re.compile(r" - at `\$\.?(.*)`$")


class SandboxConfig(Struct, frozen=True, kw_only=True):
    """The values of ``config.sandbox``, with these defaults.

    `timeout` is in seconds, `cpu_limit` in processors. Local sandboxes take no `image`, and have no bridge: there
    ``bridge`` is ``none``. `ignore` are names that are left out of branches. With a `writable_root` programs can be
    installed into the system of a container, and ``requirements.txt`` is, as a branch is set up.

    `merge_policy` decides conflicts of a merge: ``fail`` raises `merge_conflict`, ``ours`` takes the version of the
    first source, ``later`` that of the last one which has one, with a warning; see ``branch.merge`` for the others. By
    default it is ``fail`` in `setup_verification_branches`, and ``later`` in `merge_containers`. `file_selection` gives
    paths, with all beneath, to the branch of that index, in merges in which it takes part.
    """

    image: Annotated[str, Meta(min_length=1)] = "python:3.11-slim"
    timeout: Annotated[float, Meta(gt=0)] = 60
    memory_limit: str = "512m"
    cpu_limit: Annotated[float, Meta(gt=0)] = 1.0
    network_mode: Network = "bridge"
    enabled: bool = True
    writable_root: bool = False
    ignore: tuple[str, ...] = IGNORED
    merge_policy: Policy | None = None
    file_selection: dict[str, int] = field(default_factory=dict)


def configuration(config: Any) -> SandboxConfig:
    """Return the values of ``config.sandbox``, or of `config` if that has none, with defaults.

    Both may be objects with attributes, or mappings. Raises `invalid`, and names the key, for an unknown key or a value
    of a wrong type.
    """
    given, where = _section(config)
    values = _values(given, where)
    known = SandboxConfig.__struct_fields__
    for key in values:
        if key not in known:
            _refuse(key, f"{where}.{key}: there is no such key: use one of {', '.join(known)}")
    try:
        made = msgspec.convert(values, SandboxConfig)
    except msgspec.ValidationError as error:
        at = _AT.search(str(error))
        path = at[1] if at is not None else ""
        _refuse(path.partition("[")[0], f"{where}.{path}: {_AT.sub('', str(error))}")
    try:
        parse_size(made.memory_limit)
    except ValueError as error:
        _refuse("memory_limit", f"{where}.memory_limit: {error}")
    return made


def _section(config: Any) -> tuple[Any, str]:
    """Return the section of sandboxes, and its name for messages."""
    if isinstance(config, Mapping):
        return (config[SECTION], f"config.{SECTION}") if SECTION in config else (config, "config")
    return (getattr(config, SECTION), f"config.{SECTION}") if hasattr(config, SECTION) else (config, "config")


def _values(given: Any, where: str) -> dict[str, Any]:
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return {str(key): value for key, value in given.items()}
    known = {name: getattr(given, name) for name in SandboxConfig.__struct_fields__ if hasattr(given, name)}
    try:
        own = vars(given)
    except TypeError:  # it has slots, or is a plain value
        if not known:
            _refuse(where, f"{where}: give a mapping, or an object with attributes, not {type(given).__name__}")
        own = {}
    return {**{name: value for name, value in own.items() if not name.startswith("_")}, **known}


def _refuse(key: str, message: str) -> NoReturn:
    raise CallerError("invalid", message, field=key) from None
