"""Command lines as shells split and quote them. Pure: text in, words out."""

import re
from dataclasses import dataclass, field
from typing import Final

_SAFE: Final = re.compile(r"[^A-Za-z0-9_@%+=:,./-]", re.ASCII)
_BLANK: Final = " \t\n"
_ESCAPED_IN_DOUBLE: Final = '$`"\\'


@dataclass
class ShellWord:
    """A word of a command line without its quotes. `quote` is the one that is still open, at `opened` in `text`;
    `bare` are the places of characters that stood there without any quoting.
    """

    text: str = ""
    quote: str = ""
    opened: int = 0
    bare: list[int] = field(default_factory=list)
    begun: bool = False

    def add(self, character: str) -> None:
        """Add a character that was quoted."""
        self.text += character
        self.begun = True

    def add_bare(self, character: str) -> None:
        """Add a character that was not."""
        self.bare.append(len(self.text))
        self.add(character)

    def open(self, quote: str) -> None:
        """Begin a quotation."""
        self.quote, self.opened, self.begun = quote, len(self.text), True

    def kept_prefix(self, breaks: str) -> int:
        """Return the length that bash keeps when it completes: up to an open quote, or the last bare break."""
        if self.quote:
            return self.opened
        return max((index + 1 for index in self.bare if self.text[index] in breaks), default=0)


def split(line: str) -> list[ShellWord]:
    """The words of `line`, quotes removed, nothing expanded. The last is the one at the end, which may be empty."""
    words = [ShellWord()]
    characters = iter(line)
    for character in characters:
        word = words[-1]
        if word.quote == "'" or (word.quote and character not in '"\\'):
            _add_quoted(word, character)
        elif character == "\\":
            following = next(characters, "")
            word.add(following if not word.quote or following in _ESCAPED_IN_DOUBLE else "\\" + following)
        elif character == word.quote:
            word.quote = ""
        elif character in "'\"" and not word.quote:
            word.open(character)
        elif character in _BLANK and not word.quote:
            if word.begun:
                words.append(ShellWord())
        else:
            word.add_bare(character)
    return words


def _add_quoted(word: ShellWord, character: str) -> None:
    if character == word.quote:
        word.quote = ""
    else:
        word.add(character)


def quoted(text: str, quote: str) -> str:
    """`text` as bash reads it back within an open `quote`, or outside of any."""
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote == '"':
        return re.sub(r'([$`"\\])', r"\\\1", text).replace("!", "\"'!'\"")
    return _SAFE.sub(lambda found: "\\" + found[0], text)
