"""The log's own stream: the records of compactions, redactions and lost events.

Such an event may be in the stream of an object all the same: a tombstone that a repair put there, or one that older
daemons wrote where a sandbox was called ``log``. It advances that stream.
"""

from msgspec import Struct, field

from sandkeep.protocol.clock import rfc3339


class LogState(Struct, kw_only=True, array_like=True):
    """The state of the log itself.

    Objects that had ended before `archived_before_us` may be in the archive; 0 when nothing is. `leaving` are the
    sandboxes of a running compaction; `compacting` says that one is running. `redacting` are the positions of events
    whose redaction is running, and `removing` those of the events that announce the removal of archives without an
    owner. `pruning` are the sandboxes whose output is being removed, by the positions of the events that announce it.
    """

    archived_before_us: int = 0
    compacting: bool = False
    leaving: list[str] = field(default_factory=list)
    redacting: list[int] = field(default_factory=list)
    removing: list[int] = field(default_factory=list)
    pruning: dict[int, list[str]] = field(default_factory=dict)

    @property
    def hint(self) -> str:
        """Return a suffix for `not_found` messages: the object may be in the archive."""
        if not self.archived_before_us:
            return ""
        return f" (what ended before {rfc3339(self.archived_before_us)} was archived)"
