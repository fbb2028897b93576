"""Where the `traceplane` command begins. It imports nothing of its own at first, because importing the commands takes
a while, and Ctrl-C in that time has to end it without a traceback."""

from __future__ import annotations

import signal


def main() -> None:
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # otherwise whoever started it wants it to ignore the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from traceplane.cli import main as commands

    signal.signal(signal.SIGINT, handler)
    commands.main()


if __name__ == "__main__":
    main()
