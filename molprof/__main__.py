"""`molprof`, `python -m molprof`."""

import signal
import sys

if sys.platform == "win32":  # before imports that fail there
    sys.stderr.write("molprof: error: molprof does not run on Windows itself; run it in WSL: wsl --install\n")
    sys.exit(2)
if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of an interrupt before the command line handles it

from molprof.cli import main

if __name__ == "__main__":
    main()
