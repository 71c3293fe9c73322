"""Files of the state directory: secrets, and syncing of whole filesystems."""
