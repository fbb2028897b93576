"""`make demo`: during the imports, which take a second, Ctrl-C ends it without a traceback."""

from __future__ import annotations

import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from examples import demo

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(demo.run())
