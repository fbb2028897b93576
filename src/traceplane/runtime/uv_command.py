"""How uv, the installer of Python packages, is called: by whoever deploys, to make locks, and by workers.

It uses the settings of the machine for it (`UV_*`, `uv.toml`): which indexes to ask, with which credentials, where to
keep downloads. Nothing else of this process's environment is passed on, in particular no token of the platform.
"""

from __future__ import annotations

import os
import re

from traceplane.errors import PlatformError

NEVER_BUILD = ("--only-binary", ":all:")
"""Only wheels, which are unpacked: a source distribution would run its own code while it is built."""
UNSATISFIABLE = 1
"""The exit code if the answer is no. Others mean that there was no answer: an index cannot be reached, for example."""

_PASSED_ON = frozenset(
    {
        "ALL_PROXY",
        "HOME",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "LANG",
        "NETRC",
        "NO_PROXY",
        "PATH",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_DIRS",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    }
)
# These would make it install elsewhere, or with another Python.
_NOT_PASSED_ON = frozenset(
    {"UV_PROJECT", "UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_WORKING_DIR"}
)
_CREDENTIALS = re.compile(r"//[^/\s@]+@")
_LONGEST_REASON = 1500


def command(*words: str) -> list[str]:
    """Raises PlatformError if uv is not installed."""
    try:
        from uv import find_uv_bin

        executable = find_uv_bin()
    except (ImportError, FileNotFoundError):
        raise PlatformError(
            "requirements.no_uv",
            "uv, which resolves and installs the packages that jobs need, is not installed",
            next_step="install Traceplane with all its dependencies",
        ) from None
    return [executable, *words, "--no-progress", "--color", "never", "--no-python-downloads"]


def environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_PASSED_ON and (name.startswith("UV_") or name.upper() in _PASSED_ON)
    }


def reason(printed: bytes) -> str:
    """What uv says is wrong, for people: in one line, and without credentials in addresses."""
    words = _CREDENTIALS.sub("//", printed.decode(errors="replace")).split()
    text = " ".join(words).removeprefix("error: ").replace(" cause: ", ": ")
    return text[:_LONGEST_REASON] or "it says nothing"
