"""A shell program that counts."""

import os.path


def counting(path: str, pause_s: float) -> str:
    """Return a script that counts up in a file and on its standard output until it is ended.

    The file is replaced at each count: with `>` it is empty for a moment, and a reader now and then sees that.
    The next count is written to a hidden file beside it, which `ls` does not show. What is printed is in the file.
    """
    directory, name = os.path.split(path)
    following = os.path.join(directory, f".{name}")
    step = f"i=$((i+1)); echo $i >{following}; mv {following} {path}; echo $i; sleep {pause_s}"
    return f"i=0; while :; do {step}; done"
