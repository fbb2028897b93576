"""Takes the pictures of the web UI that README and docs show: `docs/screens/NAME.png`, of the world of `make demo`.

python -m docs_site.screens
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Thread
from urllib.parse import quote

from playwright.async_api import Page, ViewportSize

from docs_site.site import ROOT
from tests import chromium

SCREENS = ROOT / "docs/screens"
SIZE = ViewportSize(width=1280, height=800)
_LINK = re.compile(r"Another link for a browser: (\S+)")
_QUERY = """select block_number, count(*) as transfers, count(distinct token_address) as tokens
from chain.transfers
group by block_number
order by block_number"""


async def _first_row(page: Page) -> None:
    await page.locator("main tbody a").first.click()


async def _run_query(page: Page) -> None:
    await page.get_by_role("button", name="Run", exact=False).first.click()


async def _nothing(page: Page) -> None:
    """The address says it all."""


SHOWN: dict[str, tuple[str, Callable[[Page], Awaitable[None]]]] = {
    "graph": ("/graph?dag=chain", _nothing),
    "dataset": ("/datasets/chain.volumes", _nothing),
    "event": ("/events?dataset=chain.head", _first_row),
    "deploys": ("/deploys?dag=chain", _nothing),
    "queries": (f"/queries?view=chart&look=bars&x=block_number&sql={quote(_QUERY)}", _run_query),
    "alerts": ("/alerts", _nothing),
    "triggers": ("/triggers", _nothing),
}


def main() -> None:
    """The demo stays up at a terminal only, so it gets one."""
    ours, its = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    demo = subprocess.Popen([sys.executable, "-m", "examples"], cwd=ROOT, stdout=its, env=environment)
    os.close(its)
    try:
        link = _link(ours)
        Thread(target=_read_on, args=(ours,), daemon=True).start()
        asyncio.run(_take(link))
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(60)


def _link(terminal: int) -> str:
    said = ""
    while True:
        said += os.read(terminal, 65536).decode(errors="replace")
        if (found := _LINK.search(said)) is not None:
            return found[1]


def _read_on(terminal: int) -> None:
    """What nobody reads would stop the demo."""
    with contextlib.suppress(OSError):  # it has ended
        while os.read(terminal, 65536):
            pass


async def _take(link: str) -> None:
    SCREENS.mkdir(exist_ok=True)
    address = link.partition("/#")[0]
    async with chromium.running() as browser:
        page = await browser.new_page(viewport=SIZE, color_scheme="light")
        await page.goto(link)
        await page.locator("nav[aria-label=Pages] a").first.wait_for()
        for name, (path, act) in SHOWN.items():
            await page.goto(address + path)
            await page.wait_for_timeout(2_000)
            await act(page)
            await page.wait_for_timeout(3_000)
            await page.screenshot(path=SCREENS / f"{name}.png")
            print(Path("docs/screens") / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
