"""Removal of directories, whatever is in them."""

import subprocess


def remove_tree(path: str) -> None:
    """Remove a tree, however deep, also directories without permissions; links in it are not followed."""
    for argv in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*argv, "--", path], check=False, stderr=subprocess.DEVNULL)
