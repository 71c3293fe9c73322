"""Merge of texts, line by line: any number of versions against one base.

Hunks of different versions that overlap or touch form one region, as in git. A region that one version changes, or
that all which change it change alike, is taken; any other is a clash. The order of the versions does not matter.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from sandkeep_store.merging.diff import Hunk, diff, numbered, split_lines

MOST_TEXT_BYTES: Final = 8 << 20
MOST_LINES: Final = 200_000
"""Files of more bytes or lines count as binary: lines take many times their length in memory."""

_LOOKED_AT: Final = 8000
_LF, _CRLF = b"\n", b"\r\n"


class Kept(NamedTuple):
    """Lines of the base that no version changes."""

    lines: Sequence[bytes]


class Taken(NamedTuple):
    """Lines that the versions `by` have in place of the lines `base`."""

    lines: Sequence[bytes]
    by: frozenset[int]
    base: Sequence[bytes] = ()


class Clash(NamedTuple):
    """Lines of the base, from line `start` (the first is 0), and those of the versions that change them."""

    base: Sequence[bytes]
    versions: Mapping[int, Sequence[bytes]]
    start: int


Region = Kept | Taken | Clash


class TextMerge(Struct, frozen=True):
    """The regions of a merged text, in order."""

    regions: Sequence[Region]

    @property
    def clashes(self) -> list[Clash]:
        """The regions without a result."""
        return [region for region in self.regions if isinstance(region, Clash)]

    def text(self) -> bytes:
        """Return the merged text, of which nothing may clash."""
        assert not self.clashes
        return b"".join(b"".join(region.lines) for region in self.regions if not isinstance(region, Clash))


def is_text(data: bytes) -> bool:
    """Return True if a file is text by git's rule, no NUL among the first 8000 bytes, and has not too many lines."""
    return b"\0" not in data[:_LOOKED_AT] and data.count(_LF) <= MOST_LINES


def merge_text(base: bytes, versions: Sequence[bytes]) -> TextMerge:
    """Merge versions of a text.

    If all of them, and the base, have line endings of one style each, the style is merged separately: a version that
    only converts the endings clashes with none.
    """
    styles = [ending_style(text) for text in (base, *versions)]
    if None in styles or {"lf", "crlf"} - set(styles):
        return _merge(base, versions)
    before = styles[0] if styles[0] != "any" else "lf"
    others = {style for style in styles[1:] if style not in ("any", before)}
    style = others.pop() if others else before
    merged = _merge(base.replace(_CRLF, _LF), [text.replace(_CRLF, _LF) for text in versions])
    if style == "crlf":
        return TextMerge([_with_crlf(region) for region in merged.regions])
    return merged


def ending_style(text: bytes) -> Literal["lf", "crlf", "any"] | None:
    """Return the style of all line endings; ``any`` if there are none, and None if both occur."""
    count, with_cr = text.count(_LF), text.count(_CRLF)
    if not count:
        return "any"
    if with_cr in (0, count):
        return "crlf" if with_cr else "lf"
    return None


def _with_crlf(region: Region) -> Region:
    if isinstance(region, Kept):
        return Kept(_crlf(region.lines))
    if isinstance(region, Taken):
        return Taken(_crlf(region.lines), region.by, _crlf(region.base))
    versions = {number: _crlf(lines) for number, lines in region.versions.items()}
    return Clash(_crlf(region.base), versions, region.start)


def _crlf(lines: Sequence[bytes]) -> list[bytes]:
    return [line[:-1] + _CRLF if line.endswith(_LF) else line for line in lines]


class _Span(NamedTuple):
    """Lines of the base, and for each version that changes them its hunks there."""

    start: int
    end: int
    hunks: Mapping[int, Sequence[Hunk]]


def _merge(base: bytes, versions: Sequence[bytes]) -> TextMerge:
    texts = [split_lines(text) for text in (base, *versions)]
    numbers = numbered(texts)
    hunks = [diff(numbers[0], version) for version in numbers[1:]]
    regions: list[Region] = []
    position = 0
    for span in _spans(hunks):
        if span.start > position:
            regions.append(Kept(texts[0][position : span.start]))
        regions.append(_region(span, texts))
        position = span.end
    if position < len(texts[0]):
        regions.append(Kept(texts[0][position:]))
    return TextMerge(regions)


def _spans(hunks: Sequence[Sequence[Hunk]]) -> Iterator[_Span]:
    """Yield the parts of the base that are changed, with hunks joined that overlap or touch."""
    ordered = sorted((hunk, number) for number, found in enumerate(hunks) for hunk in found)
    present: dict[int, list[Hunk]] = {}
    start = end = -1
    for hunk, number in ordered:
        if present and hunk.start > end:
            yield _Span(start, end, present)
            present = {}
        if not present:
            start = end = hunk.start
        end = max(end, hunk.end)
        present.setdefault(number, []).append(hunk)
    if present:
        yield _Span(start, end, present)


def _region(span: _Span, texts: Sequence[Sequence[bytes]]) -> Region:
    versions: dict[int, Sequence[bytes]] = {}
    for number, hunks in sorted(span.hunks.items()):
        begin = hunks[0].new_start - (hunks[0].start - span.start)
        end = hunks[-1].new_end + (span.end - hunks[-1].end)
        versions[number] = texts[number + 1][begin:end]
    first, base = next(iter(versions.values())), texts[0][span.start : span.end]
    if all(lines == first for lines in versions.values()):
        return Taken(first, frozenset(versions), base)
    return Clash(base, versions, span.start)
