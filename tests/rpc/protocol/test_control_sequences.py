"""The allow-list of control sequences, tried with what terminals can be told, in pieces of any size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeep.protocol.control_sequences import MODES, RESET, Filter

DRAWN = [
    b"plain \a\b\t\r\n\x0e\x0f", "é│漢🙂".encode(), b"\xc2\xa0", b"\x1b[m", b"\x1b[1;38;5;123;48:2::1:2:3m", b"\x1b[H",
    b"\x1b[12;34H", b"\x1b[2J", b"\x1b[K", b"\x1b[1;24r", b"\x1b[r", b"\x1b[3L", b"\x1b[2P", b"\x1b[5@", b"\x1b[9X",
    b"\x1b[4S", b"\x1b[2T", b"\x1b[80b", b"\x1b[3g", b"\x1b[10G", b"\x1b[7d", b"\x1b[s", b"\x1b[u", b"\x1b[4h",
    b"\x1b[4l", b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?47h", b"\x1b[?1006;1000h", b"\x1b[?12;25h", b"\x1b[?2004l",
    b"\x1b[22;0;0t", b"\x1b[23;0;0t", b"\x1b[2 q", b"\x1b[ q", b"\x1b[32;1;1;2;80$x", b"\x1b[?1c", b"\x1b7", b"\x1b8",
    b"\x1b=", b"\x1b>", b"\x1bM", b"\x1b(0", b"\x1b(B", b"\x1b)0", b"\x1b[34h\x1b[?25h",
]  # fmt: skip

DROPPED = [
    b"\x1b]0;title\a", b"\x1b]2;title\x1b\\", b"\x1b]52;c;QUJD\a", b"\x1b]8;;http://x\x1b\\", b"\x1b]4;1;?\a",
    b"\x1b]R", b"\x1b]1337;File=:QUJD\a", b"\x1bP$qm\x1b\\", b"\x1bPtmux;\x1b\x1b]52;c;QQ==\a\x1b\\",
    b"\x1b_Gx\x1b\\", b"\x1b^x\x1b\\", b"\x1bXx\x1b\\", b"\x1b[5i", b"\x1b[4i", b"\x1b[?5i", b"\x1b[i", b"\x1b[6n",
    b"\x1b[5n", b"\x1b[?6n", b"\x1b[=c", b"\x1b[1c", b"\x1bZ", b"\x05", b"\x1b[x", b"\x1b[14t", b"\x1b[21t",
    b"\x1b[3;1;1t", b"\x1b[8;9;9t", b"\x1b[?1$p", b"\x1b[4$p", b"\x1b[>4;1m", b"\x1b[>1u", b"\x1b[?u", b"\x1b[2h",
    b"\x1b[12l", b"\x1b[20h", b"\x1b[?3h", b"\x1b[?5h", b"\x1b[?2031h", b"\x1b[?1049;9999h", b"\x1b[3J", b"\x1b[!p",
    b"\x1bc", b"\x1b%@", b"\x1b%G", b"\x1b F", b"\x1b#8", b"\x1bn", b"\x1b|", b"\x1b~", b"\x1bN", b"\x1b[1q",
    b"\x1b[?1;2S", b"\x1b[1;2;3;4;5T", b"\x1b[99999b", b"\x1b[1;99999H", b"\x1b[1*y", b"\x00", b"\x0b", b"\x13",
    b"\x18", b"\x7f", b"\xc2\x9b", b"\xc2\x9d", b"\xc2\x80",
]  # fmt: skip


def passed(*pieces: bytes) -> bytes:
    drawing = Filter()
    return b"".join(map(drawing.feed, pieces))


@pytest.mark.parametrize("sequence", DRAWN)
def test_what_draws_passes_as_it_is(sequence: bytes) -> None:
    assert passed(b"a" + sequence + b"b") == b"a" + sequence + b"b"
    assert passed(b"a", *(bytes([byte]) for byte in sequence), b"b") == b"a" + sequence + b"b"


@pytest.mark.parametrize("sequence", DROPPED)
def test_all_else_is_dropped(sequence: bytes) -> None:
    assert passed(b"a" + sequence + b"\x1b[mb") == b"a\x1b[mb"
    assert passed(b"a", *(bytes([byte]) for byte in sequence), b"\x1b[mb") == b"a\x1b[mb"


def test_every_byte_but_those_of_text_is_dropped_by_itself() -> None:
    text = {*range(0x20, 0x7F), *b"\a\b\t\n\r\x0e\x0f"}
    for byte in range(256):
        shown = passed(bytes([byte]), b"\x1b[m")
        assert (shown == bytes([byte]) + b"\x1b[m") == (byte in text), byte
        assert shown.removesuffix(b"\x1b[m") in (bytes([byte]), b"", "\N{REPLACEMENT CHARACTER}".encode())


def test_every_final_byte_and_mode_that_is_not_on_the_list() -> None:
    """Nobody has to know what a sequence does for it to be kept away."""
    for final in range(0x40, 0x7F):
        for prefix in b"<=>?":
            for intermediate in (b"", b"!", b'"', b"$", b"'", b"*", b"+"):
                sequence = b"\x1b[" + bytes([prefix]) + b"7" + intermediate + bytes([final])
                allowed = prefix == ord("?") and not intermediate and final in b"hl"
                assert (passed(sequence) == sequence) == allowed, sequence
    for mode in range(10_000):
        sequence = b"\x1b[?%dh" % mode
        assert (passed(sequence) == sequence) == (mode in (*MODES, 47, 1047, 1049)), mode


@pytest.mark.parametrize("question", [b"\x1b[c", b"\x1b[0c", b"\x1b[>c", b"\x1b[>0c", b"\x1b[>q"])
def test_a_question_is_asked_once(question: bytes) -> None:
    """Its answer is typed into whatever reads the viewer's terminal then."""
    assert passed(question * 3, question, b"x") == question + b"x"


@pytest.mark.parametrize("begun", [b"\x1b]52;c;", b"\x1bP", b"\x1b[1", b"\x1b", b"\x1b(", b"\xe2\x94"])
def test_what_is_not_ended_hides_nothing_for_long(begun: bytes) -> None:
    """Of what is drawn next, as tmux draws, all is shown."""
    assert passed(begun, b"\x1b[Hdrawn").endswith(b"\x1b[Hdrawn")
    assert passed(b"before" + begun) == b"before"


def test_what_waits_for_its_end_is_bounded() -> None:
    drawing = Filter()
    drawing.feed(b"\x1b[")
    for _ in range(100):
        drawing.feed(b"1" * 1000)
        assert len(drawing._pending) < 1000
    drawing.feed(b"\x1b]52;c;")
    for _ in range(100):
        assert drawing.feed(b"QUJD" * 1000) == b""
        assert len(drawing._pending) < 2


def test_whatever_was_passed_is_undone() -> None:
    drawing = Filter()
    for mode in MODES:
        if mode not in (7, 25, 1048):
            assert b"\x1b[?%dl" % mode in RESET
    assert b"\x1b[?1049l" not in drawing.reset()
    drawing.feed(b"\x1b[?47h")
    assert drawing.reset().endswith(b"\x1b[?47l")
    drawing.feed(b"\x1b[?47l")
    assert b"\x1b[?47l" not in drawing.reset()
    assert passed(RESET) == RESET


_FORBIDDEN = re.compile(
    rb"\x1b[PX\]^_ -'*-6:-<?-CF-LN-Z\\`-~]|\x1b\Z"
    rb"|\x1b\[[0-?]*[ -/]*(?:[\x00-\x1f]|[inoptvwxyz{|}~](?<!\d;0;0t)(?<!\$x))"
    rb"|\x1b\[[0-?]*\Z|[\x00-\x06\x0b\x0c\x10-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]"
)


def test_bytes_that_are_no_text_are_shown_one_by_one() -> None:
    assert passed(b"\x9b\x9b") == passed(b"\x9b", b"\x9b") == 2 * "\N{REPLACEMENT CHARACTER}".encode()


@given(
    st.lists(st.sampled_from([*DRAWN, *DROPPED, *(bytes([byte]) for byte in b"\x1b[]P\\?0;5i\x07\xc2\x9b\xe2h q$")])),
    st.data(),
)
def test_anything_in_pieces(parts: list[bytes], data: st.DataObject) -> None:
    """However it is cut: the same is shown, nothing that is forbidden, and it would all pass again."""
    whole = b"".join(parts)
    cut = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:end] for start, end in zip([0, *cut], [*cut, len(whole)], strict=True)]
    shown = passed(*pieces)
    assert shown == passed(whole)
    assert not _FORBIDDEN.search(shown)
    shown.decode()
    assert passed(shown) == shown
