"""Sign-in as a real browser does it: redirects, cookies, pages of other origins, the back button."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import Browser, BrowserContext, Page, Route, expect

from tests import chromium
from tests.certificates import Authority
from tests.oidc_provider import OidcProvider
from tests.postgres.test_sign_in import STATUS, World, world_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

WHO, TOKENS = "/api/v1/whoami", "/api/v1/tokens"
SESSION, CSRF = "__Host-traceplane_session", "__Host-traceplane_csrf"
OWN_PAGE = "/page-of-the-gateway"
EVIL = "evil.example"

CALL = """async ([url, options]) => {
    try {
        const answer = await fetch(url, options)
        const text = await answer.text()
        return [answer.status, text ? JSON.parse(text) : null]
    } catch (error) { return [0, String(error)] }
}"""

FRAME = """url => new Promise(loaded => {
    const frame = document.createElement('iframe')
    Object.assign(frame, {src: url, onload: () => loaded()})
    document.body.append(frame)
})"""
FORM = """url => {
    const form = document.createElement('form')
    Object.assign(form, {method: 'post', action: url, enctype: 'text/plain'})
    const field = document.createElement('input')
    Object.assign(field, {name: '{"roles": ["admin"], "name": "robot', value: '"}'})
    form.append(field)
    document.body.append(form)
    form.submit()
}"""
"""What it sends is JSON."""


@dataclass(frozen=True)
class Certified:
    authority: Authority
    certificate: Path
    key: Path

    @property
    def settings(self) -> dict[str, Path]:
        return {
            "tls_certificate": self.certificate,
            "tls_key": self.key,
            "tls_ca": self.authority.file,
        }


@dataclass
class OtherSite:
    """Another origin, whose pages would like to use the session."""

    port: int = 0
    requests: list[str] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, certified: Certified) -> AsyncIterator[OtherSite]:
        site = cls()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certified.certificate, certified.key)

        async def page(request: web.Request) -> web.Response:
            site.requests.append(request.path)
            return web.Response(text="<title>Other site</title><body></body>", content_type="text/html")

        app = web.Application()
        app.router.add_get("/{path:.*}", page)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        site.port = runner.addresses[0][1]
        try:
            yield site
        finally:
            await runner.cleanup()


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    return Certified(authority, *authority.issue())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(certified: Certified) -> AsyncIterator[Browser]:
    try:
        async with chromium.running(trusts=certified.certificate, hosts=[EVIL]) as browser:
            yield browser
    except chromium.ChromiumUnavailable as why:
        pytest.skip(str(why))


@pytest_asyncio.fixture(loop_scope="module")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """A browser of somebody who has never been here."""
    opened = await browser.new_context()
    opened.set_default_timeout(30_000)
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="module")
async def world(database_url: str, certified: Certified, tmp_path: Path) -> AsyncIterator[World]:
    async with (
        OidcProvider.running(asks=True) as theirs,
        world_of(database_url, theirs, tmp_path, **certified.settings) as world,
    ):
        assert (await world.trust()).status == 200
        yield world


async def sign_in(world: World, page: Page, next_: str = WHO) -> None:
    await page.goto(f"{world.url}/auth/login?org=default&next={next_}")
    await expect(page).to_have_title("Identity provider")
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url(world.url + next_)


async def own_page(world: World, context: BrowserContext) -> Page:
    """A page of the gateway, with the headers of all its answers that matter to calls of the page."""

    async def answer(route: Route) -> None:
        headers = {"content-type": "text/html", "referrer-policy": "no-referrer"}
        await route.fulfill(body="<title>Ours</title>", headers=headers)

    page = await context.new_page()
    await page.route(world.url + OWN_PAGE, answer)
    await page.goto(world.url + OWN_PAGE)
    return page


async def call(page: Page, url: str, method: str = "GET", **options: Any) -> Any:
    return await page.evaluate(CALL, [url, {"method": method, **options}])


async def cookies(context: BrowserContext) -> dict[str, Any]:
    return {cookie["name"]: cookie for cookie in await context.cookies()}


async def test_a_browser_signs_in_calls_and_signs_out(world: World, context: BrowserContext) -> None:
    page = await context.new_page()
    await sign_in(world, page, STATUS)
    await page.goto(world.url + WHO)
    await expect(page.locator("body")).to_contain_text("ada@example.com")

    stored = await cookies(context)
    assert set(stored) == {SESSION, CSRF}
    for cookie in stored.values():
        assert (cookie["secure"], cookie["sameSite"], cookie["domain"], cookie["path"]) == (
            *(True, "Lax"),
            *("127.0.0.1", "/"),
        )
    assert (stored[SESSION]["httpOnly"], stored[CSRF]["httpOnly"]) == (True, False)

    ours = await own_page(world, context)
    csrf = stored[CSRF]["value"]
    assert await ours.evaluate("document.cookie") == f"{CSRF}={csrf}"
    status, body = await call(ours, f"{world.url}/auth/logout", "POST")
    assert (status, body["error"]["code"]) == (403, "session.csrf")
    own = {"x-csrf-token": csrf, "content-type": "application/json"}
    query = {"headers": own, "body": '{"sql": "select 1 as a"}'}
    for mode in ("cors", "same-origin"):
        status, body = await call(ours, f"{world.url}/api/v1/query", "POST", mode=mode, **query)
        assert status == 200, (mode, body)

    left = await call(ours, f"{world.url}/auth/logout", "POST", headers={"x-csrf-token": csrf})
    assert left == [200, {"ended": "session"}]
    assert await cookies(context) == {}
    await page.reload()
    await expect(page.locator("body")).to_contain_text("token.missing")
    await context.add_cookies([stored[SESSION]])
    await page.reload()
    await expect(page.locator("body")).to_contain_text("session.ended")


@pytest.mark.parametrize("host", [EVIL, "127.0.0.1"])
async def test_a_page_of_another_origin_changes_and_reads_nothing(
    world: World, context: BrowserContext, certified: Certified, host: str
) -> None:
    """Of another site, and of another port of this host. To browsers the latter is the same site: cookies go along, and
    it can read the CSRF token."""
    world.theirs.person["groups"] = ["heads"]
    page = await context.new_page()
    await sign_in(world, page)
    csrf = (await cookies(context))[CSRF]["value"]
    own = {"x-csrf-token": csrf, "content-type": "application/json"}
    asked = '{"name": "robot", "roles": ["admin"]}'
    state = "select (select count(*) from access_tokens), (select count(*) from sessions where revoked_at is null)"
    before = await world.plane.sql(state)
    async with OtherSite.running(certified) as other:
        home = f"https://{host}:{other.port}/"
        await page.goto(home)
        assert await page.evaluate("document.cookie") == ("" if host == EVIL else f"{CSRF}={csrf}")
        for path in ("/auth/logout", TOKENS):
            for options in ({"mode": "no-cors"}, {"mode": "cors"}, {"mode": "cors", "headers": own}):
                with_cookies = {"credentials": "include", "body": asked, **options}
                status, _ = await call(page, world.url + path, "POST", **with_cookies)
                assert status == 0, (path, options)  # what was answered is not shown to the page
        assert (await call(page, world.url + WHO, credentials="include"))[0] == 0
        await page.evaluate(FRAME, world.url + WHO)
        for _ in range(600):
            if (shown := [frame.url for frame in page.frames])[-1] != "":
                break
            await asyncio.sleep(0.05)  # its error page is on the way
        assert shown == [home, "chrome-error://chromewebdata/"]
        for path in ("/auth/logout", TOKENS):
            await page.goto(home)
            async with page.expect_navigation(url=world.url + path):
                await page.evaluate(FORM, world.url + path)
            refusal = "token.missing" if host == EVIL else "session.other_site"
            await expect(page.locator("body")).to_contain_text(refusal)
    assert await world.plane.sql(state) == before
    ours = await own_page(world, context)
    assert (await call(ours, world.url + TOKENS, "POST", headers=own, body=asked))[0] == 200


async def test_the_back_button_shows_nothing_of_a_session_that_has_ended(
    world: World, context: BrowserContext, certified: Certified
) -> None:
    page = await context.new_page()
    await sign_in(world, page)
    async with OtherSite.running(certified) as other:
        elsewhere = f"https://{EVIL}:{other.port}/"
        await page.goto(elsewhere)
        await page.go_back(wait_until="commit")
        await expect(page.locator("body")).to_contain_text("ada@example.com")
        await page.goto(world.url + STATUS)
        await page.goto(elsewhere)

        ours = await own_page(world, context)
        csrf = (await cookies(context))[CSRF]["value"]
        assert (await call(ours, f"{world.url}/auth/logout", "POST", headers={"x-csrf-token": csrf}))[
            0
        ] == 200
        for url in (world.url + STATUS, world.url + WHO):
            await page.go_back(wait_until="commit")
            assert page.url == url
            await expect(page.locator("body")).to_contain_text("token.missing")
            assert "ada@example.com" not in await page.content()


LEADS = [
    *("//", "///", "https://", "https:", "javascript:location='//", "@", ":1@", ".", "/@"),
    *("%2F%2F", "/%2F", "/%252F", "/\\", "\\\\", "%5C%5C", "/%5C", "/%255C"),
    *("/..//", "/.//", "/%2e%2e//", "/%09/", "/%0A/", "/%00/", "/%0d%0alocation:%20//"),
    *("/ok&next=//", "/ok%26next=//"),
]
"""What could make `next` an address of another site, as it stands in the address of the login."""


async def test_a_sign_in_stays_at_home(world: World, context: BrowserContext) -> None:
    page, hosts = await context.new_page(), set()
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    world.theirs.asks = False
    for lead in LEADS:
        await page.goto(f"{world.url}/auth/login?org=default&next={lead}{EVIL}")
        assert page.url.startswith(f"{world.url}/"), lead
    assert hosts == {urlsplit(world.url).netloc, world.theirs.place}
