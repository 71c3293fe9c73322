"""The demo and the small project that it works on."""
