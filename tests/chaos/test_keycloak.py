"""People and machines of a real Keycloak sign in: with its login page, by device code and with JWTs."""

from __future__ import annotations

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests import keycloak
from tests.oidc_provider import OidcProvider
from tests.ports import free_port
from tests.postgres.test_sign_in import Browser, World, world_of

WHO = "/api/v1/whoami"


@contextlib.asynccontextmanager
async def world_with_keycloak(database_url: str, folder: Path) -> AsyncIterator[tuple[World, str]]:
    try:
        await asyncio.to_thread(keycloak.installed)
    except keycloak.KeycloakUnavailable as why:
        pytest.skip(str(why))
    port = free_port()
    with keycloak.running(folder, f"http://127.0.0.1:{port}") as issuer:
        theirs = OidcProvider(url=issuer.rpartition("/realms")[0])
        async with world_of(database_url, theirs, folder / "home", gateway_port=port) as world:
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
        assert await world.plane.value("select count(*) from org_members") == 1
