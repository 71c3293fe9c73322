"""State computed from events: what all reads are answered from."""

from sandkeep_store.views import folds as folds  # registers them: without, no state could apply an event
