"""Commands, one module for each noun; imported when one of them is used."""
