"""Opens the web UI in the browser of whoever works at this machine."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Mapping


def is_there(environment: Mapping[str, str], *, at_terminal: bool, platform: str = sys.platform) -> bool:
    """Somebody sits here: at a terminal, with a display of this machine. Over SSH, a display is elsewhere."""
    if not at_terminal or "SSH_CONNECTION" in environment or environment.get("CI"):
        return False
    return platform == "darwin" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def show(url: str) -> bool:
    """Whether a browser with a window was started. One that runs in the terminal would hide what is printed there."""
    try:
        browser = webbrowser.get()
        if isinstance(browser, webbrowser.GenericBrowser) and not isinstance(
            browser, webbrowser.BackgroundBrowser
        ):
            return False
        return browser.open(url)
    except (webbrowser.Error, OSError):
        return False
