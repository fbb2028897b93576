"""Somebody who looks at pages, and notes what the browser has against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, ConsoleMessage, Page, ViewportSize, expect

from tests.ui.world import World

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "ui/screens"
AXE = ROOT / "ui/node_modules/axe-core/axe.min.js"
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]

_RUN = """tags => axe.run(document, {
    runOnly: {type: 'tag', values: tags}, resultTypes: ['violations'],
    // Nodes of the graph are called in a sentence, which has their name in it but not the figures word for word.
    rules: {'label-content-name-mismatch': {enabled: false}},
})"""


LAPTOP = ViewportSize(width=1280, height=900)
PHONE = ViewportSize(width=390, height=844)
_TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    [...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .slice(0, 5).map(e => `${e.tagName}.${e.getAttribute('class')}`)"""


@dataclass
class Visitor:
    world: World
    page: Page
    complaints: list[str] = field(default_factory=list)

    @classmethod
    async def of(cls, world: World, context: BrowserContext) -> Visitor:
        visitor = cls(world, await context.new_page())
        visitor.page.on("console", visitor._noted)
        visitor.page.on("pageerror", lambda error: visitor.complaints.append(str(error)))
        visitor.page.on("dialog", lambda dialog: visitor.complaints.append(f"dialog: {dialog.message}"))
        return visitor

    def _noted(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    async def sign_in(self, link: str) -> None:
        await self.page.goto(link)
        await expect(self.page.get_by_role("navigation", name="Pages")).to_be_visible()

    async def go(self, path: str) -> None:
        await self.page.goto(self.world.url + path)

    async def audit(self, name: str) -> None:
        """Looks at the page in both themes, on a laptop and on a phone: nothing that axe knows to keep somebody out,
        nothing wider than the screen, and a picture of each."""
        SCREENS.mkdir(parents=True, exist_ok=True)
        for theme in ("light", "dark"):
            await self.page.emulate_media(color_scheme=theme, reduced_motion="reduce")
            await expect(self.page.locator("html")).to_have_attribute("data-theme", theme)
            await self.page.screenshot(path=SCREENS / f"{name}-{theme}.png")
            violations = await violations_of(self.page)
            assert violations == [], f"{name} ({theme}): {violations}"
            await self.page.set_viewport_size(PHONE)
            await self.page.screenshot(path=SCREENS / f"{name}-phone-{theme}.png", full_page=True)
            wide = await self.page.evaluate(_TOO_WIDE)
            assert wide == [], f"{name}: wider than a phone: {wide}"
            await self.page.set_viewport_size(LAPTOP)


async def violations_of(page: Page) -> list[str]:
    """What keeps somebody out, as far as axe knows."""
    await page.evaluate(_axe())
    found: dict[str, Any] = await page.evaluate(_RUN, _RULES)
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]


@cache
def _axe() -> str:
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: `make setup` says why")
    return AXE.read_text()
