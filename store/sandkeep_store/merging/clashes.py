"""Ways to resolve the clashes of a text by rule: one branch's lines, all lines, or conflict markers."""

from collections.abc import Callable, Mapping, Sequence

from sandkeep_store.merging.text import Clash, Kept, Region, Taken, TextMerge


def choose(merge: TextMerge, choices: Mapping[int, int | None]) -> TextMerge:
    """Take one version's lines, or for None those of the base, in each clash that begins at one of these lines."""

    def resolve(clash: Clash) -> Region:
        if clash.start not in choices:
            return clash
        version = choices[clash.start]
        return Kept(clash.base) if version is None else Taken(clash.versions[version], frozenset([version]))

    return _each(merge, resolve)


def unite(merge: TextMerge) -> TextMerge:
    """Take the different lines of all versions in each clash, one after the other; once, where all begin or end with
    the same ones.
    """
    return _each(merge, lambda clash: Taken(_union(clash), frozenset(clash.versions)))


def mark(merge: TextMerge, names: Sequence[str]) -> TextMerge:
    """Put each clash between conflict markers with the names of the versions, as git does with ``zdiff3``."""
    return _each(merge, lambda clash: Taken(_marked(clash, names), frozenset(clash.versions)))


def _each(merge: TextMerge, resolve: Callable[[Clash], Region]) -> TextMerge:
    return TextMerge([resolve(region) if isinstance(region, Clash) else region for region in merge.regions])


def _distinct(clash: Clash) -> list[tuple[list[int], list[bytes]]]:
    """Return the different lines, each with the numbers of the versions that have them."""
    found: dict[tuple[bytes, ...], list[int]] = {}
    for number, lines in sorted(clash.versions.items()):
        found.setdefault(tuple(lines), []).append(number)
    return [(numbers, list(lines)) for lines, numbers in found.items()]


def _common(texts: Sequence[Sequence[bytes]]) -> tuple[int, int]:
    """Return the numbers of lines with which all texts begin, and end."""
    least = min(len(text) for text in texts)
    begin = 0
    while begin < least and len({text[begin] for text in texts}) == 1:
        begin += 1
    end = 0
    while end < least - begin and len({text[-1 - end] for text in texts}) == 1:
        end += 1
    return begin, end


def _union(clash: Clash) -> list[bytes]:
    sides = [lines for _, lines in _distinct(clash)]
    begin, end = _common(sides)
    ending = _ending(clash)
    united = sides[0][:begin]
    for lines in sides:
        united += lines[begin : len(lines) - end]
        _end_line(united, ending)
    if end:
        return united + sides[0][-end:]
    if not sides[-1][-1:] or sides[-1][-1].endswith(b"\n"):
        return united
    return [*united[:-1], united[-1].removesuffix(ending)]  # the last line of the text had no ending


def _marked(clash: Clash, names: Sequence[str]) -> list[bytes]:
    distinct = _distinct(clash)
    begin, end = _common([lines for _, lines in distinct])
    ending = _ending(clash)
    found = distinct[0][1][:begin]
    for place, (numbers, lines) in enumerate(distinct):
        label = _label([names[number] for number in numbers])
        if place == 0:
            found.append(b"<<<<<<< " + label + ending)
        elif place == 1:
            found += [b"||||||| base" + ending, *clash.base]
            _end_line(found, ending)
            found.append(b"=======" + (b" " + label if len(distinct) > 2 else b"") + ending)
        else:
            found.append(b"======= " + label + ending)
        found += lines[begin : len(lines) - end]
        _end_line(found, ending)
        if place == len(distinct) - 1:
            found.append(b">>>>>>> " + label + ending)
    return found + distinct[0][1][len(distinct[0][1]) - end :]


def _label(names: Sequence[str]) -> bytes:
    return ", ".join(" ".join(name.split()) for name in names).encode("utf-8", "backslashreplace")


def _ending(clash: Clash) -> bytes:
    lines = [*clash.base, *(line for lines in clash.versions.values() for line in lines)]
    ended = [line for line in lines if line.endswith(b"\n")]
    return b"\r\n" if ended and all(line.endswith(b"\r\n") for line in ended) else b"\n"


def _end_line(lines: list[bytes], ending: bytes) -> None:
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += ending
