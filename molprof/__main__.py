"""`python -m molprof`."""

from molprof.cli import main

main()
