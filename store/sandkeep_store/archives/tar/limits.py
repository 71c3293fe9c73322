"""Limits of an archive's contents, and the counters checked against them."""

from typing import Final

from msgspec import Struct

from sandkeep_store.archives.tar.depth import require_depth
from sandkeep_store.archives.tar.members import Member, corrupt, shown

_TOO_SMALL_TO_TELL: Final = 64 << 20
"""Up to here an archive may expand as it likes."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of an archive, for a restore.

    `members` counts names, and directories that occur only in the names of others; `content_bytes` is the sum of all
    file sizes with their holes; `ratio` limits expanded to compressed bytes.
    """

    members: int = 500_000
    content_bytes: int = 64 << 30
    ratio: int = 200


DEFAULT_LIMITS: Final = Limits()


class Tally:
    """Counts members, and raises `snapshot_corrupt` as soon as a limit is passed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.members = 0
        self.implied = 0
        self.content_bytes = 0
        self.data_bytes = 0

    def count(self, member: Member) -> None:
        """Count one more. Raises `tree_too_deep`, too."""
        require_depth(member.name)
        self.members += 1
        self.content_bytes += member.whole_size
        self.data_bytes += member.size
        self._check_members(member)
        if self.content_bytes > self._limits.content_bytes:
            raise corrupt(
                f"cannot be extracted: with {shown(member.name)} it has more than {self._limits.content_bytes} bytes",
                member.name,
            )

    def count_implied(self, directories: int, member: Member) -> None:
        """Count directories that are only part of a member's name."""
        self.implied += directories
        self._check_members(member)

    def _check_members(self, member: Member) -> None:
        if self.members + self.implied > self._limits.members:
            raise corrupt(f"cannot be extracted: it has more than {self._limits.members} members", member.name)

    def check_ratio(self, compressed: int, expanded: int) -> None:
        """Raise if the bytes read so far expand beyond the ratio."""
        if expanded > _TOO_SMALL_TO_TELL and expanded > self._limits.ratio * compressed:
            raise corrupt(f"cannot be extracted: it expands to more than {self._limits.ratio} times its size")
