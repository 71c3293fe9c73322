"""State computed from events, from which all reads are answered."""

from sandkeep_store.views import folds as folds  # registers them: without, no state could apply an event
