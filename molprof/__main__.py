"""`molprof`, `python -m molprof`."""

import signal

if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an interrupt before the command line handles it

from molprof.cli import main

if __name__ == "__main__":
    main()
