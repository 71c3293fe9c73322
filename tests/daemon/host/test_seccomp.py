"""The filters as programs, of each machine: what they answer to a call, told by an interpreter of classic BPF."""

import struct
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from pathlib import Path

import pytest

from sandkeepd.host import seccomp

X86_64, I386, AARCH64, ARM, RISCV = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028, 0xC00000F3
NEWUSER, THREAD = 0x10000000, 0x3D0F00
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
LOAD, AND, RETURN, JUMP = 0x20, 0x54, 0x06, 0x05
JUMPS = {0x15: lambda a, k: a == k, 0x25: lambda a, k: a > k, 0x35: lambda a, k: a >= k, 0x45: lambda a, k: a & k}


def answer(machine: str, architecture: int, call: int, *arguments: int) -> int:
    """The error number; 0 if it is allowed."""
    program = list(struct.iter_unpack("=HBBI", Path(seccomp.__file__).with_name(f"filter.{machine}").read_bytes()))
    data = struct.pack("=IIQ6Q", call, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    at = accumulator = 0
    while True:
        code, on_true, on_false, value = program[at]
        at += 1
        if code == LOAD:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == AND:
            accumulator &= value
        elif code == JUMP:
            at += value
        elif code == RETURN:
            assert value == ALLOW or value & 0xFFFF0000 == ERRNO, hex(value)
            return 0 if value == ALLOW else value & 0xFFFF
        else:
            at += on_true if JUMPS[code](accumulator, value) else on_false


NAMES = ("read", "socket", "clone", "keyctl", "io_uring", "personality")


@pytest.mark.parametrize(
    ("machine", "architecture", "numbers"),
    [
        ("x86_64", X86_64, (0, 41, 56, 250, 425, 135)),
        ("x86_64", I386, (3, 359, 120, 288, 425, 136)),
        ("aarch64", AARCH64, (63, 198, 220, 219, 425, 92)),
        ("aarch64", ARM, (3, 281, 120, 311, 425, 136)),
    ],
)
def test_each_architecture_is_filtered(machine: str, architecture: int, numbers: tuple[int, ...]) -> None:
    calls = dict(zip(NAMES, numbers, strict=True))

    def said(name: str, *arguments: int) -> int:
        return answer(machine, architecture, calls[name], *arguments)

    assert [said("read"), said("clone", THREAD), said("personality", 0x40000)] == [0, 0, 0]
    assert [said("socket", family) for family in (1, 2, 10, 16)] == [0] * 4
    assert [said("socket", family) for family in (38, 40, 100, 2**31)] == [ENOSYS] * 4
    assert [said("keyctl"), said("io_uring"), said("personality", 0x400000)] == [EPERM, EPERM, ENOSYS]
    assert said("clone", NEWUSER | THREAD) == ENOSYS
    assert answer(machine, architecture, 435) == ENOSYS  # clone3
    assert answer(machine, architecture, 1000) == ENOSYS


def test_there_is_no_other_way_in() -> None:
    assert answer("x86_64", X86_64, 0x40000000) == ENOSYS  # x32's read
    assert answer("x86_64", X86_64, 41, 2**32 + 40) == ENOSYS
    assert [answer("x86_64", I386, 102, call) for call in (1, 2, 3)] == [EAFNOSUPPORT] * 3  # socketcall
    for machine in ("x86_64", "aarch64"):
        assert answer(machine, RISCV, 0) == ENOSYS
