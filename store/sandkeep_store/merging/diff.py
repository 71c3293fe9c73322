"""Line differences: which lines of two texts correspond.

Anchors are lines that are unique in both texts, if they come in the same order; else the longest run of lines that are
rare in the first text (a histogram diff); and where all lines are frequent, a bounded greedy shortest edit script. The
work is bounded for any input: past the bound, what is left counts as replaced.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

_RARE: Final = 64
"""Lines that occur more often than that are no anchors."""

_MOST_EDITS: Final = 256
"""The shortest edit script is cut where it gets longer, and begun anew from the furthest point."""


class Hunk(NamedTuple):
    """Lines `[start, end)` of the first text that lines `[new_start, new_end)` of the second replace."""

    start: int
    end: int
    new_start: int
    new_end: int


Lines = Sequence[int]
"""A text: one number for each line, equal for equal lines."""


def split_lines(data: bytes) -> list[bytes]:
    """Split a text into lines with their endings. Only LF ends a line; the last may have none."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def numbered(texts: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """Number the lines of some texts, equal lines alike."""
    known: dict[bytes, int] = {}
    return [[known.setdefault(line, len(known)) for line in text] for text in texts]


def diff(first: Lines, second: Lines) -> list[Hunk]:
    """Return the hunks in order; between two of them there is a line that both texts have."""
    matcher = _Matcher(first, second)
    matcher.match()
    return _compacted(first, second, matcher.pairs())


class _Matcher:
    """The search for runs of equal lines."""

    def __init__(self, first: Lines, second: Lines) -> None:
        self._first, self._second = first, second
        self._runs: list[tuple[int, int, int]] = []
        self._left = [(0, len(first), 0, len(second))]
        self._work = 200_000 + 30 * (len(first) + len(second))

    def match(self) -> None:
        """Find all runs."""
        while self._left:
            low, high, low2, high2 = self._trimmed(*self._left.pop())
            if low < high and low2 < high2 and self._work > 0:
                self._work -= (high - low) + (high2 - low2)
                if not self._by_unique_lines(low, high, low2, high2):
                    self._by_rare_lines(low, high, low2, high2)

    def pairs(self) -> tuple[list[int], list[int]]:
        """Return the numbers of corresponding lines."""
        mine, others = [-1], [-1]
        for start, start2, length in sorted(self._runs):
            mine.extend(range(start, start + length))
            others.extend(range(start2, start2 + length))
        return [*mine, len(self._first)], [*others, len(self._second)]

    def _trimmed(self, low: int, high: int, low2: int, high2: int) -> tuple[int, int, int, int]:
        first, second = self._first, self._second
        begin, begin2, end = low, low2, high
        while low < high and low2 < high2 and first[low] == second[low2]:
            low, low2 = low + 1, low2 + 1
        if low > begin:
            self._runs.append((begin, begin2, low - begin))
        while low < high and low2 < high2 and first[high - 1] == second[high2 - 1]:
            high, high2 = high - 1, high2 - 1
        if high < end:
            self._runs.append((high, high2, end - high))
        return low, high, low2, high2

    def _by_unique_lines(self, low: int, high: int, low2: int, high2: int) -> bool:
        """Divide at lines that are unique in both texts, if all come in the same order."""
        places = _unique(self._first, low, high)
        places2 = _unique(self._second, low2, high2)
        anchors = [(place, places2[line]) for line, place in places.items() if line in places2]
        if not anchors or any(one[1] > other[1] for one, other in pairwise(anchors)):
            return False
        for place, place2 in anchors:
            if place >= low and place2 >= low2:  # else a run from the one before has it
                if place > low or place2 > low2:
                    self._left.append((low, place, low2, place2))
                low, low2 = place + 1, place2 + 1
                while low < high and low2 < high2 and self._first[low] == self._second[low2]:
                    low, low2 = low + 1, low2 + 1
                self._runs.append((place, place2, low - place))
        self._left.append((low, high, low2, high2))
        return True

    def _by_rare_lines(self, low: int, high: int, low2: int, high2: int) -> None:
        """Divide at the longest run of lines that are rare in the first text."""
        places: dict[int, list[int]] = {}
        for place in range(low, high):
            places.setdefault(self._first[place], []).append(place)
        best, rarity, has_common = (0, 0, 0), _RARE + 1, False
        place2 = low2
        while place2 < high2:
            here, past = places.get(self._second[place2], ()), place2 + 1
            has_common = has_common or bool(here)
            if 0 < len(here) <= rarity:
                seen = -1
                for place in here:
                    if place <= seen or self._work <= 0:
                        continue
                    run, count = self._extended(place, place2, (low, high, low2, high2), places)
                    seen = run[0] + run[2] - 1
                    past = max(past, run[1] + run[2])
                    if run[2] > best[2] or count < rarity:
                        best, rarity = run, count
            place2 = past
        if best[2]:
            start, start2, length = best
            self._runs.append(best)
            self._left += [(low, start, low2, start2), (start + length, high, start2 + length, high2)]
        elif has_common:
            self._by_edits(low, high, low2, high2)

    def _extended(
        self, place: int, place2: int, bounds: tuple[int, int, int, int], places: dict[int, list[int]]
    ) -> tuple[tuple[int, int, int], int]:
        """Extend a pair of equal lines to a run; return it with the count of its rarest line."""
        first, second = self._first, self._second
        low, high, low2, high2 = bounds
        end, end2, count = place + 1, place2 + 1, len(places[first[place]])
        while place > low and place2 > low2 and first[place - 1] == second[place2 - 1]:
            place, place2 = place - 1, place2 - 1
            count = min(count, len(places[first[place]]))
        while end < high and end2 < high2 and first[end] == second[end2]:
            count = min(count, len(places[first[end]]))
            end, end2 = end + 1, end2 + 1
        self._work -= end - place
        return (place, place2, end - place), count

    def _by_edits(self, low: int, high: int, low2: int, high2: int) -> None:
        """Match by a short edit script, from the beginning (E. Myers, 1986), as far as it is short enough."""
        furthest, trace = {1: 0}, list[dict[int, int]]()
        width, width2 = high - low, high2 - low2
        end = (0, 0)
        for edits in range(min(_MOST_EDITS, width + width2) + 1):
            trace.append(furthest.copy())
            self._work -= 4 * edits
            end = self._one_more_edit(furthest, edits, (low, low2, width, width2))
            if end == (width, width2):
                break
        self._take_script(trace, end, low, low2)
        if end != (width, width2) and end != (0, 0):
            self._left.append((low + end[0], high, low2 + end[1], high2))

    def _one_more_edit(
        self, furthest: dict[int, int], edits: int, bounds: tuple[int, int, int, int]
    ) -> tuple[int, int]:
        low, low2, width, width2 = bounds
        best = (0, 0)
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            begin = x
            while x < width and y < width2 and self._first[low + x] == self._second[low2 + y]:
                x, y = x + 1, y + 1
            self._work -= x - begin
            furthest[diagonal] = x
            if x <= width and y <= width2 and x + y > best[0] + best[1]:
                best = (x, y)
        return best

    def _take_script(self, trace: Sequence[dict[int, int]], end: tuple[int, int], low: int, low2: int) -> None:
        x, y = end
        for edits in range(len(trace) - 1, -1, -1):
            furthest, diagonal = trace[edits], x - y
            down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
            before = diagonal + 1 if down else diagonal - 1
            start_x = furthest[before]
            begin = start_x if down else start_x + 1
            if x > begin:
                self._runs.append((low + begin, low2 + begin - diagonal, x - begin))
            x, y = start_x, start_x - before


def _unique(lines: Lines, low: int, high: int) -> dict[int, int]:
    """Return the places of lines that occur once, in order."""
    places: dict[int, int] = {}
    repeated = set[int]()
    for place in range(low, high):
        line = lines[place]
        if line in places:
            repeated.add(line)
        else:
            places[line] = place
    for line in repeated:
        del places[line]
    return places


def _compacted(first: Lines, second: Lines, pairs: tuple[list[int], list[int]]) -> list[Hunk]:
    """Return the hunks between pairs of lines, each as far down as it can slide among equal lines, so that the same
    edit is at the same place in all versions.
    """
    mine, others = pairs
    budget = 200_000 + 4 * (len(first) + len(second))
    _slide(first, mine, others, budget)
    _slide(second, others, mine, budget)
    return [
        Hunk(mine[gap] + 1, mine[gap + 1], others[gap] + 1, others[gap + 1])
        for gap in range(len(mine) - 1)
        if mine[gap + 1] - mine[gap] > 1 or others[gap + 1] - others[gap] > 1
    ]


def _slide(lines: Lines, mine: list[int], others: list[int], budget: int) -> None:
    """Slide each group of unmatched lines of a text. A group that can be where the other text has one, too, ends at
    the last of such places. Group `gap` lies between the matched lines `gap` and `gap + 1`.
    """
    gaps = [gap for gap in range(len(mine) - 1) if mine[gap + 1] - mine[gap] > 1]
    gap = -1
    for begin in gaps:
        if begin <= gap or mine[begin + 1] - mine[begin] == 1:
            continue
        gap, size = begin, -1
        while size != mine[gap + 1] - mine[gap]:  # it grows where it meets another
            size, meets = mine[gap + 1] - mine[gap], -1
            while gap > 0 and budget > 0 and lines[mine[gap]] == lines[mine[gap + 1] - 1]:
                mine[gap], gap = mine[gap + 1] - 1, gap - 1
                budget -= 1
            highest = gap
            if others[gap + 1] - others[gap] > 1:
                meets = gap
            while gap + 2 < len(mine) and budget > 0 and lines[mine[gap] + 1] == lines[mine[gap + 1]]:
                mine[gap + 1], gap = mine[gap] + 1, gap + 1
                budget -= 1
                if others[gap + 1] - others[gap] > 1:
                    meets = gap
        while gap > meets >= highest:
            mine[gap], gap = mine[gap + 1] - 1, gap - 1
