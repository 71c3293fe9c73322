"""Settings: environment variables with parser, default and help, read when used."""
