"""The program in sandboxes by which the SDK reads and writes files."""

from pathlib import Path
from typing import Final

PATH: Final = "/__modal/.bin/modal-sandbox-fs-tools"
SOURCE: Final = (Path(__file__).parent / "fs_program.py").read_text()
