"""People and machines of a real Keycloak sign in: with its login page, by device code and with JWTs."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Page, expect

from tests import chromium, keycloak
from tests.certificates import Authority
from tests.oidc_provider import OidcProvider
from tests.platform import die_with_parent
from tests.ports import free_port
from tests.postgres.test_sign_in import Browser, World, world_of
from tests.postgres.test_sign_in_browser import CSRF, SESSION, Certified, call, cookies, own_page

WHO = "/api/v1/whoami"


@contextlib.asynccontextmanager
async def world_with_keycloak(
    database_url: str, folder: Path, **tls: Path
) -> AsyncIterator[tuple[World, str]]:
    try:
        await asyncio.to_thread(keycloak.installed)
    except keycloak.KeycloakUnavailable as why:
        pytest.skip(str(why))
    port, scheme = free_port(), "https" if tls else "http"
    with keycloak.running(folder, f"{scheme}://127.0.0.1:{port}") as issuer:
        theirs = OidcProvider(url=issuer.rpartition("/realms")[0])
        async with world_of(database_url, theirs, folder / "home", gateway_port=port, **tls) as world:
            trusted = await world.trust(
                issuer=issuer,
                client_id=keycloak.CLIENT,
                audience=keycloak.AUDIENCE,
                roles_claim="realm_access.roles",
                role_map={"data-writer": "writer", "data-reader": "reader"},
            )
            assert trusted.status == 200, trusted.body
            yield world, issuer


async def submit(browser: Browser, answer: aiohttp.ClientResponse, **fields: str) -> aiohttp.ClientResponse:
    """The first form of a page, sent with what it has and these fields; redirects are followed."""
    page = await answer.text()
    (form, *_) = re.findall(r"<form.*?</form>", page, re.S) or [page]
    hidden = {
        found[1]: html.unescape(value[1]) if (value := re.search(r'value="([^"]*)"', tag)) else ""
        for tag in re.findall(r'<input[^>]*type="hidden"[^>]*>', form)
        if (found := re.search(r'name="([^"]+)"', tag))
    }
    target = re.search(r'action="([^"]+)"', form)
    assert target is not None, page[:2000]
    url = answer.url.join(type(answer.url)(html.unescape(target[1]), encoded=True))
    return await browser.session.post(url, data={**hidden, **fields})


async def access_token(world: World, issuer: str, **fields: str) -> str:
    url = f"{issuer}/protocol/openid-connect/token"
    async with world.http.post(url, data=fields) as answer:
        body: dict[str, Any] = await answer.json()
    assert answer.status == 200, body
    return str(body["access_token"])


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_people_and_machines_of_a_real_keycloak_sign_in(database_url: str, tmp_path: Path) -> None:
    async with world_with_keycloak(database_url, tmp_path) as (world, issuer), world.browser() as browser:
        robot = {
            "grant_type": "client_credentials",
            "client_id": keycloak.ROBOT,
            "client_secret": keycloak.ROBOT_SECRET,
        }
        token = await access_token(world, issuer, **robot)
        seen = await world.call(token, "GET", WHO)
        assert (seen.status, seen.body["kind"], seen.body["roles"]) == (200, "service", ["reader"]), seen.body
        assert (await world.call(token[:-4] + "AAAA", "GET", WHO)).refusal == (401, "jwt.bad_signature")

        login = await browser.session.get(f"{world.url}/auth/login?org=default")
        wrong = await submit(browser, login, username=keycloak.USER, password="wrong")
        assert "Invalid username or password" in await wrong.text()
        done = await submit(browser, wrong, username=keycloak.USER, password=keycloak.PASSWORD)
        assert str(done.url) == world.url + WHO
        who = await done.json()
        assert (who["name"], who["kind"], who["roles"]) == ("ada@example.com", "user", ["writer"])

        begun = (await world.call(None, "POST", "/auth/device", {"org": "default"})).body
        question = {name: begun[name] for name in ("provider", "device_code", "verifier")} | {
            "org": "default"
        }
        assert (await world.call(None, "POST", "/auth/device/token", question)).body == {"status": "pending"}
        # The browser is signed in at Keycloak, which asks only whether the device may have it.
        asked = await browser.session.get(begun["verification_uri_complete"])
        await submit(browser, asked, accept="Yes")
        await asyncio.sleep(begun["interval"])
        signed_in = (await world.call(None, "POST", "/auth/device/token", question)).body
        assert signed_in["status"] == "signed_in", signed_in
        assert (await world.call(signed_in["token"], "GET", WHO)).body["name"] == "ada@example.com"
        kinds = await world.plane.value("select array_agg(kind order by kind) from org_members")
        assert kinds == ["service", "user"]


async def sign_in_at_keycloak(page: Page, password: str) -> None:
    await page.get_by_label("Username or email").fill(keycloak.USER)
    await page.get_by_label("Password", exact=True).fill(password)
    await page.get_by_role("button", name="Sign In").click()


@contextlib.asynccontextmanager
async def waiting_login(world: World, home: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`traceplane login`, which has printed where to go and waits, and what it has printed."""
    environment = {
        **os.environ,
        "TRACEPLANE_HOME": str(home),
        "TRACEPLANE_GATEWAY_URL": world.url,
        "TRACEPLANE_TLS_CA": str(world.plane.settings.tls_ca),
    }
    command = [sys.executable, "-m", "traceplane.cli.main", "login"]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, preexec_fn=die_with_parent
    )
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.chaos
@pytest.mark.timeout(900)
async def test_a_person_signs_in_at_a_real_keycloak_with_a_real_browser(
    database_url: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    certified = Certified(authority, *authority.issue())
    async with contextlib.AsyncExitStack() as stack:
        try:
            browser = await stack.enter_async_context(chromium.running(trusts=certified.certificate))
        except chromium.ChromiumUnavailable as why:
            pytest.skip(str(why))
        world, _ = await stack.enter_async_context(
            world_with_keycloak(database_url, tmp_path, **certified.settings)
        )
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{world.url}/auth/login?org=default")
        await sign_in_at_keycloak(page, "wrong")
        await expect(page.get_by_text("Invalid username or password")).to_be_visible()
        await sign_in_at_keycloak(page, keycloak.PASSWORD)
        await page.wait_for_url(world.url + WHO)
        await expect(page.locator("body")).to_contain_text("ada@example.com")
        stored = await cookies(context)
        assert stored[SESSION].items() >= {"secure": True, "httpOnly": True, "sameSite": "Lax"}.items()

        # In a browser that is signed in at Keycloak, and in another one, where the code is typed in.
        elsewhere = await (await browser.new_context()).new_page()
        for device in (await context.new_page(), elsewhere):
            async with waiting_login(world, tmp_path / "person") as (process, said):
                shown = re.search(r"Open (\S+) and sign in; .* it is (\S+)", said)
                assert shown is not None, said
                address, code = shown.groups()
                if device is elsewhere:
                    await device.goto(address.partition("?")[0])
                    await device.get_by_label("Enter the code").fill(code)
                    await device.get_by_role("button", name="Submit").click()
                    await sign_in_at_keycloak(device, keycloak.PASSWORD)
                else:
                    await device.goto(address)
                assert process.returncode is None
                await device.get_by_role("button", name="Yes").click()
                await expect(device.get_by_text("Device Login Successful")).to_be_visible()
                left, _ = await asyncio.wait_for(process.communicate(), 60)
                assert "signed in as ada@example.com" in left.decode()
                assert await process.wait() == 0

        ours = await own_page(world, context)
        own = {"x-csrf-token": stored[CSRF]["value"]}
        status, body = await call(ours, f"{world.url}/auth/logout", "POST")
        assert (status, body["error"]["code"]) == (403, "session.csrf")
        assert (await call(ours, f"{world.url}/auth/logout", "POST", headers=own))[0] == 200
        await page.reload()
        await expect(page.locator("body")).to_contain_text("token.missing")
        await context.add_cookies([stored[SESSION]])
        await page.reload()
        await expect(page.locator("body")).to_contain_text("session.ended")
