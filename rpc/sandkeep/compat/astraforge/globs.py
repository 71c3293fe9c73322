"""Patterns of files, as agents give them."""

import re
from typing import Final

_TOKEN: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_MEANING: Final = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def matcher(pattern: str) -> re.Pattern[str]:
    """Return the expression that matches the whole path of a file, relative to the directory that is searched. A
    pattern without a slash is one of the file's name, at any depth.
    """
    relative = pattern.lstrip("/")
    deep = "" if "/" in pattern else "(?:[^/]+/)*"
    return re.compile(f"{deep}{''.join(map(_expression, _TOKEN.findall(relative)))}", re.DOTALL)


def _expression(token: str) -> str:
    if token.startswith("[") and len(token) > 1:
        negated = token.startswith("[!")
        members = token[2 if negated else 1 : -1].replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
        return f"(?!/)[{'^' if negated else ''}{members}]" if members else re.escape(token)
    return _MEANING.get(token) or re.escape(token)
