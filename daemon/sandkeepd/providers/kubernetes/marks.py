"""Labels and annotations of the objects of sandboxes."""

from typing import Final

SANDBOX_LABEL: Final = "sandkeep.sandbox"
LOG_LABEL: Final = "sandkeep.log"
SESSION_LABEL: Final = "sandkeep.session"
NETWORK_LABEL: Final = "sandkeep.network"
OWNER_ANNOTATION: Final = "sandkeep.owner"

SUSPENDED_ANNOTATION: Final = "sandkeep.suspended-as"
"""The annotation of a Sandbox that names the PodSnapshot from which it was, or is to be, resumed."""

SAVED_ANNOTATION: Final = "sandkeep.saved"
"""The annotation of a Sandbox of which there may be a PodSnapshot that goes with it."""
