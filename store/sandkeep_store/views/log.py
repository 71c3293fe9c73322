"""The log's own stream: what went into the archive, and is therefore in no view any more.

Such an event may be in the stream of an object all the same: a tombstone that a repair put there, or what older daemons
wrote where a sandbox was called ``log``. It moves that stream on.
"""

from msgspec import Struct, field

from sandkeep.protocol.clock import rfc3339


class LogState(Struct, kw_only=True, array_like=True):
    """What is known of the log itself.

    `archived_before_us` is the moment before which what had ended may be in the archive; 0 when nothing is. `leaving`
    are the sandboxes of a compaction under way; `compacting` says that one is. `redacting` are the positions of events
    whose redaction is under way, and `removing` those of the events that say which archives without an owner are about
    to be removed.
    """

    archived_before_us: int = 0
    compacting: bool = False
    leaving: list[str] = field(default_factory=list)
    redacting: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)

    @property
    def hint(self) -> str:
        """What to add when something is not found: that it may be in the archive."""
        if not self.archived_before_us:
            return ""
        return f" (what ended before {rfc3339(self.archived_before_us)} was archived)"
