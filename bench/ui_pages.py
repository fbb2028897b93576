"""A browser that visits every page of the web UI, and the calls that the pages make.

What a page needs is not written down here: pages are those of the navigation, and the given ones of single things;
calls are what the browser sends. A page is useful as soon as its heading is there and nothing of it is still loading.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from playwright.async_api import Browser, Page, Request

PATIENCE_MS = 60_000
USEFUL = """
(() => {
  const main = document.querySelector('main')
  return main && !main.querySelector('[aria-busy=true]') && main.innerText.trim().length > 20
})()
"""
_NOTE_WHEN_USEFUL = """
(() => {
  const look = () => {
    if (document.body && (%s)) window.notedAsUseful(performance.now())
    else requestAnimationFrame(look)
  }
  requestAnimationFrame(look)
})()
"""


@dataclass(frozen=True)
class Visit:
    path: str
    useful_ms: float
    """From the beginning of the navigation."""
    calls: tuple[str, ...]
    """Of the API: paths that were asked for by GET, with their queries."""


async def visits(browser: Browser, link: str, address: str, paths: Sequence[str]) -> list[Visit]:
    """Each page of the navigation and each of `paths`, opened anew in a browser that has been there before."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    try:
        page = await context.new_page()
        await page.goto(link)
        navigation = page.locator("nav[aria-label=Pages] a")
        await navigation.first.wait_for()
        known = [await one.get_attribute("href") for one in await navigation.all()]
        await page.close()
        return [
            await visit(await context.new_page(), address, path)
            for path in (*(path for path in known if path), *paths)
        ]
    finally:
        await context.close()


def call_of(request: Request) -> str | None:
    """The path that a request asks the API for, none if it is another kind of request."""
    parts = urlsplit(request.url)
    if request.method != "GET" or not parts.path.startswith("/api/") or "/changes" in parts.path:
        return None
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


async def visit(
    page: Page,
    address: str,
    path: str,
    useful: str = USEFUL,
    call_of: Callable[[Request], str | None] = call_of,
) -> Visit:
    """Of any UI: `useful` is JavaScript that says whether the page is. The page is closed then."""
    calls: list[str] = []

    def note(request: Request) -> None:
        if (call := call_of(request)) is not None:
            calls.append(call)

    page.on("request", note)
    at_last: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    # A function of our own: Playwright notes something on it, which a built-in method does not take.
    await page.expose_function("notedAsUseful", lambda at: at_last.set_result(at))  # noqa: PLW0108
    try:
        await page.add_init_script(_NOTE_WHEN_USEFUL % useful)
        await page.goto(address + path)
        async with asyncio.timeout(PATIENCE_MS / 1000):
            at = await at_last
    finally:
        await page.close()
    return Visit(path, float(at), tuple(dict.fromkeys(calls)))
