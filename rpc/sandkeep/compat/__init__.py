"""Call shapes of other systems over Sandkeep's client, for programs that were written for those."""
