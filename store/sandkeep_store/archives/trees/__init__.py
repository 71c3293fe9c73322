"""Directory trees: packed into archives and unpacked in a jail; layers and differences."""
