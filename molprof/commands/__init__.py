"""One module per command: each parses, calls a library function, and prints what it returns."""
