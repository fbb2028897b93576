"""Opens the web UI in the browser of whoever works at this machine."""

from __future__ import annotations

import html
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from traceplane.cli.profile import write_private

_PAGE = """<!doctype html>
<meta charset="utf-8"><title>Traceplane</title><meta http-equiv="refresh" content="0;url={url}">
<a href="{url}">Open Traceplane</a>
"""


def is_there(environment: Mapping[str, str], *, at_terminal: bool, platform: str = sys.platform) -> bool:
    """Somebody sits here: at a terminal, with a display of this machine. Over SSH, a display is elsewhere."""
    if not at_terminal or "SSH_CONNECTION" in environment or environment.get("CI"):
        return False
    return platform == "darwin" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def show(url: str, page: Path) -> bool:
    """Whether a browser with a window was started. One that runs in the terminal would hide what is printed there.

    The browser is given `page`, a file that leads to the address: the command lines of processes can be read by all
    users of the machine, and the address signs in.
    """
    try:
        browser = webbrowser.get()
        if isinstance(browser, webbrowser.GenericBrowser) and not isinstance(
            browser, webbrowser.BackgroundBrowser
        ):
            return False
        write_private(page, _PAGE.format(url=html.escape(url)))
        return browser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False
