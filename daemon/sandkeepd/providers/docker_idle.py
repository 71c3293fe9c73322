"""The first program of a container whose image has no shell: it waits for ever, and needs nothing of the image.

It is so small that it is written here as the bytes that it is: a header, and a few instructions. Whatever the code
inside leaves behind becomes a child of the first process, and would stay as a remnant when it ends; but a process that
ignores SIGCHLD leaves that to the kernel, which then keeps no remnants. That is all there is to do.
"""

import os
import struct
from typing import Final

_ADDRESS: Final = 0x400000
"""Where the program lies in memory: where programs that are not to be moved usually do."""

_HEADER_BYTES: Final = 64 + 56
"""The header of the file, and that of its one segment. The instructions follow at once."""

_ACTION: Final = struct.pack("<QQQQ", 1, 0, 0, 0)
"""What to do about a signal, as the kernel reads it: SIG_IGN; no flags, no way back, and nothing masked meanwhile."""

_X86_64: Final = bytes.fromhex(
    "b80d000000"      # mov  eax, 13            rt_sigaction(
    "bf11000000"      # mov  edi, 17              SIGCHLD,
    "488d3513000000"  # lea  rsi, [rip + 19]      the action, behind the last instruction,
    "31d2"            # xor  edx, edx             NULL,
    "41ba08000000"    # mov  r10d, 8              the bytes of a mask
    "0f05"            # syscall                 )
    "b822000000"      # mov  eax, 34            pause(
    "0f05"            # syscall                 )
    "ebf7"            # jmp  -9                 and again, from the last `mov` on
)  # fmt: skip

_AARCH64: Final = struct.pack(
    "<14I",
    0xD2800220,  # mov  x0, #17                 rt_sigaction( SIGCHLD,
    0x100001A1,  # adr  x1, . + 52                the action, behind the last instruction,
    0xD2800002,  # mov  x2, #0                    NULL,
    0xD2800103,  # mov  x3, #8                    the bytes of a mask
    0xD28010C8,  # mov  x8, #134
    0xD4000001,  # svc  #0                      )
    0xD2800000,  # mov  x0, #0                  ppoll( NULL,      there is no pause here
    0xD2800001,  # mov  x1, #0                    0,
    0xD2800002,  # mov  x2, #0                    NULL,
    0xD2800003,  # mov  x3, #0                    NULL,
    0xD2800004,  # mov  x4, #0                    0
    0xD2800928,  # mov  x8, #73
    0xD4000001,  # svc  #0                      )
    0x17FFFFF9,  # b    . - 28                  and again, from `mov x0, #0` on
)

_MACHINES: Final = {"x86_64": (62, _X86_64), "aarch64": (183, _AARCH64)}
"""What the kernel calls a machine, the number that stands for it in a program's header, and the instructions."""


def program(machine: str | None = None) -> bytes | None:
    """The program, as a file, for this machine or another; None when it is not written for that."""
    known = _MACHINES.get(machine or os.uname().machine)
    if known is None:
        return None
    number, instructions = known
    text = instructions + _ACTION
    entry, size = _ADDRESS + _HEADER_BYTES, _HEADER_BYTES + len(text)
    # 64 bits, little end first, version 1, for no system in particular; a program of that machine, version 1, that
    # begins at `entry`; one segment, described at 64, no sections; then the sizes of these descriptions.
    identity = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = identity + struct.pack("<HHIQQQIHHHHHH", 2, number, 1, entry, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    # To be loaded (1), read and executed (4 + 1): all of the file, from its beginning, in units of 64 KiB, which is
    # the largest page of these machines.
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ADDRESS, _ADDRESS, size, size, 0x10000)
    return header + segment + text
