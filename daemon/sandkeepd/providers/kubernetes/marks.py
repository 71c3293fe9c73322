"""Labels and annotations of the objects of sandboxes.

agent-sandbox lets a claim give its pod only labels of domains that its administrator allows, by default that of these.
"""

from typing import Final

SANDBOX_LABEL: Final = "sandbox.users.io/sandkeep-sandbox"
LOG_LABEL: Final = "sandbox.users.io/sandkeep-log"
SESSION_LABEL: Final = "sandbox.users.io/sandkeep-session"
NETWORK_LABEL: Final = "sandbox.users.io/sandkeep-network"
OWNER_ANNOTATION: Final = "sandkeep.owner"

SUSPENDED_ANNOTATION: Final = "sandkeep.suspended-as"
"""The annotation of a Sandbox that names the PodSnapshot from which it was, or is to be, resumed."""

SAVED_ANNOTATION: Final = "sandkeep.saved"
"""The annotation of a Sandbox of which there may be a PodSnapshot that goes with it."""
