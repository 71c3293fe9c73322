"""Starting programs while the rest of the daemon goes on: posix_spawn(3) as a foreign call.

Python's own, and its `subprocess`, keep the interpreter to themselves until the new program runs, since the kernel lets
the caller go on only then. Where there is more to do than there are processors that takes milliseconds, in which no
task of the daemon moves. A foreign call lets go of the interpreter.
"""

import ctypes
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Final

_SETSIGDEF: Final = 0x04  # spawn.h of glibc and musl
_SETSIGMASK: Final = 0x08
_SETSID: Final = 0x80
_ENOUGH_BYTES: Final = 1024
"""For each of the opaque structures, the largest of which has 336."""

_libc: Final = ctypes.CDLL(None)


def start(
    argv: Sequence[str], env: Mapping[str, str], descriptors: Mapping[int, int], default_signals: Collection[int]
) -> int:
    """Start a program, found on our PATH, in a session of its own, with `descriptors`: by its number, the one of ours.

    No signal is blocked in it, and `default_signals` have their defaults. It inherits the namespaces of the calling
    thread. Answers its pid. Blocks until it runs. Raises OSError.
    """
    pid = ctypes.c_int()
    arguments = _strings([os.fsencode(word) for word in argv])
    variables = _strings([os.fsencode(f"{name}={value}") for name, value in env.items()])
    actions, attributes = (ctypes.create_string_buffer(_ENOUGH_BYTES) for _ in range(2))
    _check(_libc.posix_spawn_file_actions_init(actions), argv[0])
    _check(_libc.posix_spawnattr_init(attributes), argv[0])
    try:
        for target, source in descriptors.items():
            _check(_libc.posix_spawn_file_actions_adddup2(actions, source, target), argv[0])
        _set_signals(attributes, default_signals)
        _check(_libc.posix_spawnp(ctypes.byref(pid), arguments[0], actions, attributes, arguments, variables), argv[0])
    finally:
        _libc.posix_spawnattr_destroy(attributes)
        _libc.posix_spawn_file_actions_destroy(actions)
    return pid.value


def _set_signals(attributes: "ctypes.Array[ctypes.c_char]", default_signals: Collection[int]) -> None:
    none, some = (ctypes.create_string_buffer(_ENOUGH_BYTES) for _ in range(2))
    for signals in (none, some):
        _libc.sigemptyset(signals)
    for number in default_signals:
        _libc.sigaddset(some, int(number))
    _libc.posix_spawnattr_setsigmask(attributes, none)
    _libc.posix_spawnattr_setsigdefault(attributes, some)
    _libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSID | _SETSIGMASK | _SETSIGDEF))


def _strings(strings: Sequence[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    if any(b"\0" in string for string in strings):
        raise ValueError("embedded null byte")
    return (ctypes.c_char_p * (len(strings) + 1))(*strings, None)


def _check(number: int, program: str) -> None:
    if number:
        raise OSError(number, os.strerror(number), program)
