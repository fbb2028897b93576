"""Sign-in against a small identity provider over real HTTP: machines, browsers and the command line."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import aiohttp
import click
import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives import serialization

from tests.control_plane import ControlPlane
from tests.oidc_provider import OidcProvider, ec_key, unsigned
from tests.ports import free_port
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import create_organization, issue_token
from traceplane.cli import sign_in as cli
from traceplane.cli.profile import write_private
from traceplane.cli.whereabouts import call
from traceplane.errors import InvalidInput, TraceplaneError
from traceplane.http_service.client import caller_context
from traceplane.http_service.server import serve
from traceplane.http_service.tls import ServerCertificate
from traceplane.settings import Settings, signed_in_file, token_file, user_token
from traceplane.wire.people import WhoAmI

PROVIDER = "/api/v1/identity-providers/idp"
STATUS = "/api/v1/status"
ROLES = {"engineers": "writer", "heads": "admin", "guests": "reader"}


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    headers: Any

    @property
    def code(self) -> str:
        return self.body["error"]["code"]

    @property
    def location(self) -> str:
        return self.headers["location"]

    @property
    def refusal(self) -> tuple[int, str]:
        return self.status, self.code


@dataclass
class Browser:
    """Cookies, and nothing followed that the test does not follow."""

    session: aiohttp.ClientSession

    async def go(self, url: str, method: str = "GET", **options: Any) -> Answer:
        async with self.session.request(method, url, allow_redirects=False, **options) as answer:
            return await _read(answer)

    def cookie(self, name: str) -> str:
        return next(c.value for c in self.session.cookie_jar if c.key == name)

    @property
    def csrf(self) -> str:
        return self.cookie("traceplane_csrf")


async def _read(answer: aiohttp.ClientResponse) -> Answer:
    text = await answer.text()
    body = json.loads(text) if answer.content_type == "application/json" and text else text
    return Answer(answer.status, body, answer.headers.copy())


@dataclass
class World:
    plane: ControlPlane
    theirs: OidcProvider
    url: str
    http: aiohttp.ClientSession
    admins: dict[str, str] = field(default_factory=dict)

    async def call(
        self, token: str | None, method: str, path: str, body: Any = None, **headers: str
    ) -> Answer:
        sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        if token is not None:
            sent["authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body)
        async with self.http.request(
            method, self.url + path, data=data, headers=sent, allow_redirects=False
        ) as answer:
            return await _read(answer)

    async def admin(self, org: str = "default") -> str:
        if org not in self.admins:
            async with self.plane.database.transaction() as tx:
                self.admins[org] = (
                    await issue_token(tx, Principal.USER, org=org, name="root", role=Role.ADMIN)
                    if org == "default"
                    else await create_organization(tx, org)
                )
            await self.plane.api.refresh()
        return self.admins[org]

    async def trust(self, org: str = "default", name: str = "idp", **changes: Any) -> Answer:
        settings = {
            "issuer": self.theirs.url,
            "client_id": "traceplane",
            "audience": "traceplane-api",
            "roles_claim": "groups",
            "role_map": ROLES,
            **changes,
        }
        settings = {key: value for key, value in settings.items() if value is not None}
        path = f"/api/v1/identity-providers/{name}"
        answer = await self.call(await self.admin(org), "PUT", path, settings)
        await self.plane.api.refresh()
        return answer

    @contextlib.asynccontextmanager
    async def browser(self) -> AsyncIterator[Browser]:
        # As browsers do on one machine: addresses may have cookies, and secure ones are sent without https.
        jar = aiohttp.CookieJar(unsafe=True, treat_as_secure_origin=[self.theirs.url])
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            yield Browser(session)

    async def begin(self, browser: Browser, **query: str) -> str:
        """Where the provider sends the browser back to."""
        asked = urlencode({"org": "default", **query})
        answer = await browser.go(f"{self.url}/auth/login?{asked}")
        assert answer.status == 303, answer.body
        return (await browser.go(answer.location)).location

    async def sign_in(self, browser: Browser, **query: str) -> Answer:
        return await browser.go(await self.begin(browser, **query))


@pytest_asyncio.fixture
async def theirs() -> AsyncIterator[OidcProvider]:
    async with OidcProvider.running() as provider:
        yield provider


@contextlib.asynccontextmanager
async def world_of(
    database_url: str, theirs: OidcProvider, home: Path, **settings: Any
) -> AsyncIterator[World]:
    options = {"home": home, "gateway_port": free_port(), "outgoing_allow": (theirs.place,), **settings}
    given = Settings(**options)
    certificate, scheme = ServerCertificate.of(given), "http" if given.tls_certificate is None else "https"
    connector = aiohttp.TCPConnector(ssl=caller_context(given.tls_ca))
    async with (
        ControlPlane.open(database_url, **options) as plane,
        aiohttp.ClientSession(connector=connector) as http,
    ):
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        await plane.api.refresh()
        server = asyncio.create_task(
            serve(
                plane.api.app(),
                port=given.gateway_port,
                stop=stop,
                bound=bound,
                grace=1.0,
                certificate=certificate,
            )
        )
        await bound
        try:
            yield World(plane, theirs, f"{scheme}://127.0.0.1:{given.gateway_port}", http)
        finally:
            stop.set()
            await server
            await plane.api.close()


@pytest_asyncio.fixture
async def world(database_url: str, theirs: OidcProvider, tmp_path: Path) -> AsyncIterator[World]:
    async with world_of(database_url, theirs, tmp_path) as world:
        assert (await world.trust()).status == 200
        yield world


# Machines -------------------------------------------------------------------------------------------


async def test_a_machine_calls_with_a_jwt_as_far_as_its_roles_allow(world: World) -> None:
    writer = world.theirs.machine_token()
    reader = world.theirs.machine_token(groups=["guests"])
    assert (await world.call(writer, "GET", STATUS)).status == 200
    seen = await world.call(writer, "GET", "/api/v1/whoami")
    assert seen.body.items() >= {"org": "default", "name": "idp:robot-1", "kind": "service"}.items()
    assert seen.body["roles"] == ["writer"]
    emitted = await world.call(writer, "POST", "/api/v1/events", {"events": []})
    assert emitted.status != 401
    assert emitted.status != 403
    assert (await world.call(reader, "POST", "/api/v1/events", {"events": []})).refusal == (
        403,
        "access.role_required",
    )
    assert (await world.call(writer, "GET", PROVIDER)).refusal == (403, "access.role_required")
    nobody = world.theirs.machine_token(groups=["choir"])
    assert (await world.call(nobody, "GET", STATUS)).refusal == (403, "sign_in.no_role")


async def test_a_machine_that_called_is_a_member_which_admins_see_grant_and_disable(world: World) -> None:
    admin, robot = await world.admin(), world.theirs.machine_token(groups=["guests"])
    path = "/api/v1/members/idp:robot-1"

    async def emit() -> Answer:
        return await world.call(robot, "POST", "/api/v1/events", {"events": []})

    async def members() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await world.call(admin, "GET", "/api/v1/members")).body["members"]
        return found

    nobody = world.theirs.machine_token(groups=["choir"])
    assert (await world.call(nobody, "GET", STATUS)).code == "sign_in.no_role"
    assert await members() == [], "one that is refused is no member"
    for _ in range(3):
        assert (await world.call(robot, "GET", STATUS)).status == 200
    (member,) = await members()
    expected = {"name": "idp:robot-1", "kind": "service", "issuer": world.theirs.url, "roles": []}
    assert member.items() >= expected.items()
    assert member["last_seen_at"] is not None
    added = "select principal, kind, action, object->>'member' from audit_log where object ? 'member'"
    assert [tuple(row) for row in await world.plane.sql(added)] == [
        ("idp:robot-1", "service", f"GET {STATUS}", "idp:robot-1")
    ]
    await world.plane.sql("update org_members set last_seen_at = last_seen_at - interval '1 hour'")
    world.plane.api.sign_in._noted.clear()  # a minute later
    assert (await world.call(robot, "GET", STATUS)).status == 200
    assert (await members())[0]["last_seen_at"] > member["created_at"]

    assert (await emit()).code == "access.role_required"
    assert (await world.call(admin, "PUT", f"{path}/roles/writer", {})).status == 200
    await world.plane.api.refresh()
    assert (await emit()).code != "access.role_required"

    assert (await world.call(admin, "DELETE", path)).status == 200
    await world.plane.api.refresh()
    assert (await world.call(robot, "GET", STATUS)).refusal == (403, "sign_in.disabled")
    assert (await world.call(admin, "PUT", path, {"kind": "service"})).status == 200
    await world.plane.api.refresh()
    assert (await world.call(robot, "GET", STATUS)).status == 200
    assert len(await members()) == 1


async def test_somebody_who_signed_in_and_calls_with_a_jwt_stays_a_person_with_an_address(
    world: World,
) -> None:
    own = world.theirs.machine_token(sub="ada-1", groups=["guests"])

    async def ada() -> dict[str, Any]:
        (member,) = (await world.call(await world.admin(), "GET", "/api/v1/members")).body["members"]
        return {name: member.get(name) for name in ("kind", "name", "email")}

    async with world.browser() as browser:
        assert (await world.sign_in(browser)).status == 303
        person = {"kind": "user", "name": "ada@example.com", "email": "ada@example.com"}
        assert (await world.call(own, "GET", STATUS)).status == 200
        assert await ada() == person
        (member,) = (await world.call(await world.admin(), "GET", "/api/v1/members")).body["members"]
        assert [grant["role"] for grant in member["roles"]] == ["writer"], "of the sign-in, not of the JWT"

        await world.plane.sql("delete from org_members")
        world.plane.api.sign_in._noted.clear()
        world.plane.api.sign_in._looked_up.clear()
        assert (await world.call(own, "GET", STATUS)).status == 200
        assert await ada() == {"kind": "service", "name": "idp:ada-1", "email": None}
        assert (await world.sign_in(browser)).status == 303
        assert await ada() == {**person, "name": "idp:ada-1"}


async def test_a_machine_whose_name_is_taken_is_another_member_in_every_respect(world: World) -> None:
    """As after a change of the provider's issuer."""
    admin, robot = await world.admin(), world.theirs.machine_token(groups=["guests"])
    first = "/api/v1/members/idp:robot-1"
    await world.plane.sql(
        "insert into org_members (org_id, kind, name, issuer, subject, created_by)"
        " select org_id, 'service', 'idp:robot-1', 'https://earlier.example', 'robot-1', 'sign-in' from orgs"
        " where slug = 'default'"
    )
    theirs = {"name": "theirs", "member": "idp:robot-1", "roles": ["reader"]}
    assert (await world.call(admin, "POST", "/api/v1/tokens", theirs)).status == 200

    nobody = world.theirs.machine_token(groups=["choir"])
    assert (await world.call(nobody, "GET", STATUS)).code == "sign_in.no_role"
    assert (await audited(world))[-1][0] == "idp:robot-1#2", "also before it is a member"
    assert (await world.call(robot, "GET", "/api/v1/whoami")).body["name"] == "idp:robot-1#2"
    assert (await world.call(robot, "GET", "/api/v1/tokens")).body == {"tokens": []}
    (token,) = [
        t for t in (await world.call(admin, "GET", "/api/v1/tokens")).body["tokens"] if t["name"] == "theirs"
    ]
    revoked = await world.call(robot, "DELETE", f"/api/v1/tokens/{token['token_id']}")
    assert revoked.refusal == (404, "token.not_found")
    own = {"name": "own", "member": "idp:robot-1#2"}
    assert (await world.call(admin, "POST", "/api/v1/tokens", own)).status == 200
    assert [t["name"] for t in (await world.call(robot, "GET", "/api/v1/tokens")).body["tokens"]] == ["own"]

    assert (await world.call(robot, "POST", "/api/v1/events", {"events": []})).code == "access.role_required"
    assert {row[0] for row in await audited(world) if row[1] == "service"} == {"idp:robot-1#2"}
    assert (await world.call(admin, "DELETE", first)).status == 200
    await world.plane.api.refresh()
    assert (await world.call(robot, "GET", STATUS)).status == 200
    assert (await world.call(admin, "DELETE", f"{first}%232")).status == 200
    await world.plane.api.refresh()
    assert (await world.call(robot, "GET", STATUS)).refusal == (403, "sign_in.disabled")


async def test_a_rotated_key_is_accepted_and_a_withdrawn_one_is_not(world: World) -> None:
    old = world.theirs.machine_token()
    assert (await world.call(old, "GET", STATUS)).status == 200
    world.theirs.keys = [ec_key("ec-2")]
    world.plane.api.sign_in._issuers._clock = lambda: time.monotonic() + 31
    assert (await world.call(world.theirs.machine_token(), "GET", STATUS)).status == 200
    assert (await world.call(old, "GET", STATUS)).refusal == (401, "jwt.unknown_key")


async def test_hostile_jwts_are_refused(world: World) -> None:
    theirs, now = world.theirs, time.time()
    await world.call(theirs.machine_token(), "GET", STATUS)
    good = theirs.claims(sub="robot-1", aud="traceplane-api", groups=["heads"])
    public = theirs.keys[0].private.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    head = {"alg": "HS256", "kid": "rsa-1"}
    confused = unsigned(good, head, hmac.digest(pem, unsigned(good, head)[:-1].encode(), "sha256"))
    cases = {
        unsigned(good, {"alg": "none", "kid": "rsa-1"}): "jwt.bad_algorithm",
        confused: "jwt.bad_algorithm",
        theirs.sign({**good, "aud": "another"}): "jwt.wrong_audience",
        theirs.sign({**good, "exp": now - 61}): "jwt.expired",
        theirs.sign({**good, "nbf": now + 90}): "jwt.not_yet_valid",
        theirs.sign(good, ec_key("made-up")): "jwt.unknown_key",
        theirs.sign(good, ec_key("rsa-1")): "jwt.bad_signature",
        theirs.sign({**good, "iss": "https://evil.example"}): "jwt.unknown_issuer",
        theirs.sign(theirs.claims()): "jwt.wrong_audience",  # an ID token is no access token
        "eyJ.eyJ.x": "jwt.malformed",
    }
    for token, code in cases.items():
        answer = await world.call(token, "GET", STATUS)
        assert answer.refusal == (401, code)
        assert token not in json.dumps(answer.body)


async def test_without_an_audience_a_provider_accepts_no_machine(world: World) -> None:
    await world.trust(audience=None)
    assert (await world.call(world.theirs.machine_token(), "GET", STATUS)).refusal == (
        401,
        "jwt.unknown_issuer",
    )


async def test_one_issuer_serves_several_organizations(world: World) -> None:
    await world.trust(required_claims={"team": "a"})
    await world.trust("beta", required_claims={"team": "b"})
    await world.trust("gamma", default_role="reader")

    async def org(chosen: str | None = None, **claims: Any) -> Any:
        headers = {} if chosen is None else {"traceplane_org": chosen}
        answer = await world.call(world.theirs.machine_token(**claims), "GET", "/api/v1/whoami", **headers)
        return answer.body["org"] if answer.status == 200 else answer.refusal

    assert await org(team="x") == "gamma"
    assert await org(team="a") == (400, "jwt.org_ambiguous")
    assert await org("default", team="a") == "default"
    assert await org("gamma", team="a") == "gamma"
    assert await org("beta", team="a") == (401, "jwt.not_accepted")
    assert await org("nobody", team="a") == (401, "jwt.not_accepted")
    await world.call(await world.admin("gamma"), "DELETE", PROVIDER)
    await world.plane.api.refresh()
    assert await org(team="b") == "beta"
    assert await org(team="x") == (401, "jwt.not_accepted")


# Browsers -------------------------------------------------------------------------------------------


async def test_a_browser_signs_in_calls_and_signs_out(world: World) -> None:
    async with world.browser() as browser:
        answer = await world.sign_in(browser, next="/datasets?tab=1")
        assert (answer.status, answer.location) == (303, f"{world.url}/datasets?tab=1")
        who = await browser.go(f"{world.url}/api/v1/whoami")
        assert who.body.items() >= {"org": "default", "name": "ada@example.com", "kind": "user"}.items()
        assert who.body["roles"] == ["writer"]
        assert (await browser.go(world.url + STATUS)).status == 200
        own = {"origin": world.url, "x-csrf-token": browser.csrf}
        sent = await browser.go(
            f"{world.url}/api/v1/query", "POST", json={"sql": "select 1 as a"}, headers=own
        )
        assert sent.status == 200
        session = browser.cookie("traceplane_session")
        left = await browser.go(f"{world.url}/auth/logout", "POST", headers=own)
        assert (left.body, left.headers["clear-site-data"]) == ({"ended": "session"}, '"cache"')
        assert not [c for c in browser.session.cookie_jar if c.key == "traceplane_session"]
        kept = {"cookie": f"traceplane_session={session}"}
        assert (await browser.go(world.url + STATUS, headers=kept)).refusal == (401, "session.ended")
    assert await world.plane.value("select count(*) from sessions where session_hash = $1", session) == 0


async def test_pages_of_other_sites_change_nothing(world: World) -> None:
    async with world.browser() as browser:
        await world.sign_in(browser)
        csrf = browser.csrf
        for headers, code in (
            ({}, "session.other_site"),
            ({"origin": world.url}, "session.csrf"),
            ({"origin": world.url, "x-csrf-token": "x" * 43}, "session.csrf"),
            ({"origin": "https://evil.example", "x-csrf-token": csrf}, "session.other_site"),
            ({"origin": "null", "x-csrf-token": csrf}, "session.other_site"),
            ({"sec-fetch-site": "cross-site", "x-csrf-token": csrf}, "session.other_site"),
            (
                {"origin": world.url, "sec-fetch-site": "same-site", "x-csrf-token": csrf},
                "session.other_site",
            ),
        ):
            for path, body in (("/api/v1/events", {"events": []}), ("/auth/logout", None)):
                answer = await browser.go(world.url + path, "POST", json=body, headers=headers)
                assert answer.refusal == (403, code)
        assert (await browser.go(world.url + STATUS)).status == 200


async def test_a_session_over_plain_http_is_valid_on_this_machine_only(world: World) -> None:
    async with world.browser() as browser:
        await world.sign_in(browser)
        kept = {
            "cookie": f"traceplane_session={browser.cookie('traceplane_session')}",
            "host": "evil.example",
        }
        assert (await browser.go(world.url + STATUS, headers=kept)).refusal == (401, "session.not_local")
        back = await world.begin(browser)
        assert (await browser.go(back, headers={"host": "evil.example"})).refusal == (
            401,
            "session.not_local",
        )


async def test_over_https_only_the_closed_cookie_counts(
    database_url: str, theirs: OidcProvider, tmp_path: Path
) -> None:
    async with world_of(database_url, theirs, tmp_path, gateway_url="https://tp.example.com") as world:
        await world.trust()
        begun = await world.call(None, "GET", "/auth/login?org=default")
        (cookie,) = begun.headers.getall("set-cookie")
        assert cookie.startswith("__Host-traceplane_sign_in=")
        assert cookie.endswith("; Path=/; Max-Age=600; SameSite=Lax; Secure; HttpOnly")
        async with world.browser() as browser:
            back = (await browser.go(begun.location)).location
        assert back.startswith("https://tp.example.com/auth/callback?")
        path = back.removeprefix("https://tp.example.com")
        answer = await world.call(None, "GET", path, cookie=cookie.partition(";")[0])
        assert answer.location == "https://tp.example.com/api/v1/whoami"
        session, csrf, ended = answer.headers.getall("set-cookie")
        assert session.endswith("; Path=/; Max-Age=43200; SameSite=Lax; Secure; HttpOnly")
        assert csrf.endswith("; Path=/; Max-Age=43200; SameSite=Lax; Secure")
        assert "Max-Age=0" in ended
        pair = session.partition(";")[0]
        assert (await world.call(None, "GET", STATUS, cookie=pair)).status == 200
        bare = pair.removeprefix("__Host-")
        assert (await world.call(None, "GET", STATUS, cookie=bare)).refusal == (401, "token.missing")


async def test_a_gateway_in_clear_text_signs_no_browser_in(
    database_url: str, theirs: OidcProvider, tmp_path: Path
) -> None:
    async with world_of(database_url, theirs, tmp_path, gateway_url="http://tp.example.com") as world:
        await world.trust()
        begun = await world.call(None, "GET", "/auth/login?org=default")
        assert begun.refusal == (400, "sign_in.needs_https")
        # Machines and the command line need no cookie.
        assert (await world.call(theirs.machine_token(), "GET", STATUS)).status == 200


@pytest.mark.parametrize("reuses_codes", [False, True])
async def test_a_code_signs_in_once(world: World, reuses_codes: bool) -> None:
    world.theirs.reuses_codes = reuses_codes
    async with world.browser() as browser:
        back = await world.begin(browser)
        kept = {"cookie": f"traceplane_sign_in={browser.cookie('traceplane_sign_in')}"}
        assert (await browser.go(back)).status == 303
        again = await browser.go(back, headers=kept)
        code = "sign_in.completed_before" if reuses_codes else "sign_in.code_refused"
        assert again.refusal == (401, code)
    assert await world.plane.value("select count(*) from sessions") == 1


async def test_a_sign_in_of_another_browser_is_refused(world: World) -> None:
    """Login CSRF: a page sends the victim's browser to the callback with the attacker's code."""
    async with world.browser() as attacker, world.browser() as victim:
        back = await world.begin(attacker)
        assert (await victim.go(back)).refusal == (401, "sign_in.not_begun_here")
        await world.begin(victim)
        assert (await victim.go(back)).refusal == (401, "sign_in.not_begun_here")
        assert (await victim.go(f"{world.url}/auth/callback?code=x")).refusal == (
            401,
            "sign_in.not_begun_here",
        )
    assert await world.plane.value("select count(*) from sessions") == 0


async def test_a_code_of_another_sign_in_is_refused_by_pkce_and_nonce(world: World) -> None:
    async with world.browser() as browser, world.browser() as attacker:
        stolen = parse_qs(urlsplit(await world.begin(attacker)).query)["code"][0]
        mine = parse_qs(urlsplit(await world.begin(browser)).query)
        callback = f"{world.url}/auth/callback?"
        injected = {"code": stolen, "state": mine["state"][0], "iss": world.theirs.url}
        assert (await browser.go(callback + urlencode(injected))).refusal == (401, "sign_in.code_refused")
        # A provider without PKCE would hand out the token; its nonce is of another sign-in.
        world.theirs.grants[stolen].challenge = None
        assert (await browser.go(callback + urlencode(injected))).refusal == (401, "jwt.wrong_nonce")
        other_issuer = {"code": mine["code"][0], "state": mine["state"][0], "iss": "https://evil.example"}
        assert (await browser.go(callback + urlencode(other_issuer))).refusal == (401, "jwt.wrong_issuer")
        del other_issuer["iss"]
        assert (await browser.go(callback + urlencode(other_issuer))).refusal == (401, "jwt.wrong_issuer")


async def test_the_provider_is_asked_with_pkce(world: World) -> None:
    async with world.browser() as browser:
        begun = await browser.go(f"{world.url}/auth/login?org=default")
        asked = parse_qs(urlsplit(begun.location).query)
        assert asked["code_challenge_method"] == ["S256"]
        stripped = {k: v[0] for k, v in asked.items() if not k.startswith("code_challenge")}
        refused = await browser.go(f"{world.theirs.url}/authorize?{urlencode(stripped)}")
        assert refused.body == {"error": "invalid_request"}


@pytest.mark.parametrize(
    "next_",
    ["//evil.example", "/\\evil.example", "https://evil.example", "/\t/evil.example", "/x\r\ny", "", "x"],
)
async def test_no_sign_in_leads_to_another_site(world: World, next_: str) -> None:
    query = urlencode({"org": "default", "next": next_})
    answer = await world.call(None, "GET", f"/auth/login?{query}")
    assert answer.refusal == (400, "sign_in.bad_next")


async def test_a_person_who_is_refused_at_the_provider_learns_so(world: World) -> None:
    async with world.browser() as browser:
        state = parse_qs(urlsplit(await world.begin(browser)).query)["state"][0]
        query = urlencode({"error": "access_denied", "state": state})
        assert (await browser.go(f"{world.url}/auth/callback?{query}")).refusal == (403, "sign_in.denied")


async def test_a_session_is_refused_if_the_call_expects_another_organization(world: World) -> None:
    await world.admin("beta")
    async with world.browser() as browser:
        await world.sign_in(browser)
        for org in ("beta", "nobody"):
            answer = await browser.go(world.url + STATUS, headers={"traceplane-org": org})
            assert answer.refusal == (403, "access.other_org")
            assert "session" in answer.body["error"]["message"]
        answer = await browser.go(world.url + STATUS, headers={"traceplane-org": "default"})
        assert answer.status == 200
    rows = [row for row in await audited(world) if row[3] != "ok"]
    assert rows == [("ada@example.com", "user", "GET /api/v1/status", "access.other_org")]


# Members --------------------------------------------------------------------------------------------


async def roles_now(world: World, browser: Browser) -> Any:
    answer = await browser.go(f"{world.url}/api/v1/whoami")
    return answer.body["roles"] if answer.status == 200 else answer.refusal


async def test_roles_follow_the_claims_at_each_sign_in(world: World) -> None:
    async with world.browser() as browser, world.browser() as elsewhere:
        await world.sign_in(browser)
        assert await roles_now(world, browser) == ["writer"]
        world.theirs.person["groups"] = ["heads", "guests"]
        await world.sign_in(elsewhere)
        assert await roles_now(world, elsewhere) == ["admin", "reader"]
        assert await roles_now(world, browser) == ["admin", "reader"]
        # What an admin gave stays.
        await world.plane.value("update org_role_memberships set by_claim = false where role = 'reader'")
        world.theirs.person["groups"] = ["engineers"]
        await world.sign_in(browser)
        assert await roles_now(world, browser) == ["reader", "writer"]
        world.theirs.person["groups"] = ["choir"]
        assert (await world.sign_in(browser)).refusal == (403, "sign_in.no_role")
        # Somebody who has left all groups keeps only what an admin gave.
        assert await roles_now(world, browser) == ["reader"]
    assert await world.plane.value("select count(*) from org_members") == 1


async def test_a_disabled_member_is_out_at_once(world: World) -> None:
    robot = world.theirs.machine_token(sub="ada-1")
    async with world.browser() as browser:
        await world.sign_in(browser)
        assert (await world.call(robot, "GET", STATUS)).status == 200
        await world.plane.value("update org_members set disabled_at = now()")
        await world.plane.api.refresh()
        refused = (403, "sign_in.disabled")
        assert await roles_now(world, browser) == refused
        assert (await world.sign_in(browser)).refusal == refused
        assert (await world.call(robot, "GET", STATUS)).refusal == refused


async def audited(world: World) -> list[tuple[str, str, str, str]]:
    await world.plane.api.audit.flush()
    rows = await world.plane.sql(
        "select principal, kind, action, outcome from audit_log where action like '%/auth/%' or outcome <> 'ok'"
        " order by audit_id"
    )
    return [tuple(row) for row in rows]


async def test_sign_ins_sign_outs_and_their_refusals_are_in_the_audit_log(world: World) -> None:
    ada = ("ada@example.com", "user")
    async with world.browser() as browser:
        await world.sign_in(browser)
        assert await audited(world) == [(*ada, "GET /auth/callback", "ok")]
        row = await world.plane.sql(
            "select object, remote, request_id from audit_log order by audit_id desc limit 1"
        )
        assert (row[0]["object"], row[0]["remote"]) == ({"provider": "idp"}, "127.0.0.1")
        assert row[0]["request_id"]
        own = {"origin": world.url, "x-csrf-token": browser.csrf}
        await browser.go(f"{world.url}/auth/logout", "POST", headers={"origin": "https://evil.example"})
        kept = {"cookie": f"traceplane_session={browser.cookie('traceplane_session')}"}
        await browser.go(f"{world.url}/auth/logout", "POST", headers=own)
        await browser.go(world.url + STATUS, headers=kept)
        assert sorted((await audited(world))[1:]) == [
            (*ada, "GET /api/v1/status", "session.ended"),
            (*ada, "POST /auth/logout", "ok"),
            (*ada, "POST /auth/logout", "session.other_site"),
        ]
        world.theirs.person["groups"] = ["choir"]
        await world.sign_in(browser)
        assert (await audited(world))[4:] == [
            (*ada, "GET /auth/callback", "ok"),  # it took the roles of the first one
            (*ada, "GET /auth/callback", "sign_in.no_role"),
        ]
        world.theirs.person["groups"] = ["engineers"]
        await world.plane.value("update org_members set disabled_at = now()")
        await world.sign_in(browser)
        await world.call(world.theirs.machine_token(groups=["choir"]), "GET", STATUS)
        assert sorted((await audited(world))[6:]) == [
            (*ada, "GET /auth/callback", "sign_in.disabled"),
            ("idp:robot-1", "service", "GET /api/v1/status", "sign_in.no_role"),
        ]


async def test_a_device_that_signs_in_and_out_is_in_the_audit_log(world: World) -> None:
    begun = (await world.call(None, "POST", "/auth/device", {"org": "default"})).body
    world.theirs.approve(begun["user_code"])
    question = {name: begun[name] for name in ("provider", "device_code", "verifier")} | {"org": "default"}
    token = (await world.call(None, "POST", "/auth/device/token", question)).body["token"]
    await world.plane.api.refresh()
    await world.call(token, "POST", "/auth/logout")
    assert await audited(world) == [
        ("ada@example.com", "user", "POST /auth/device/token", "ok"),
        ("ada@example.com", "user", "POST /auth/logout", "ok"),
    ]


async def test_sign_ins_that_fail_at_the_provider_or_by_their_claims_are_in_the_audit_log(
    world: World,
) -> None:
    unknown = ("unknown person", "user")
    async with world.browser() as browser:
        state = parse_qs(urlsplit(await world.begin(browser)).query)["state"][0]
        denied = urlencode({"error": "access_denied", "state": state})
        await browser.go(f"{world.url}/auth/callback?{denied}")
        assert await audited(world) == [(*unknown, "GET /auth/callback", "sign_in.denied")]
        begun = (await world.call(None, "POST", "/auth/device", {"org": "default"})).body
        world.theirs.deny(begun["user_code"])
        question = {name: begun[name] for name in ("provider", "device_code", "verifier")}
        await world.call(None, "POST", "/auth/device/token", question | {"org": "default"})
        assert (await audited(world))[1:] == [(*unknown, "POST /auth/device/token", "sign_in.denied")]
        await world.trust(required_claims={"hd": "acme.example"})
        world.theirs.person["sub"] = "stranger-1"
        await world.sign_in(browser)
        rows = [row for row in await audited(world) if "jwt." in row[3]]
        assert rows == [("idp:stranger-1", "user", "GET /auth/callback", "jwt.not_accepted")]
    objects = await world.plane.sql("select distinct object from audit_log where outcome <> 'ok'")
    assert [row["object"] for row in objects] == [{"provider": "idp"}]


async def test_nobody_fills_the_audit_log_with_sign_ins_that_fail(world: World) -> None:
    async with world.browser() as browser:
        for n in range(30):
            state = parse_qs(urlsplit(await world.begin(browser)).query)["state"][0]
            query = urlencode({"error": f"made up {n}", "state": state})
            await browser.go(f"{world.url}/auth/callback?{query}")
            await world.plane.api.audit.flush()
    assert len(await audited(world)) == 20
    await world.plane.api.audit.flush(at_end=True)
    assert await world.plane.value("select sum(times) from audit_log where outcome = 'sign_in.denied'") == 30


async def test_a_jwt_that_an_organization_does_not_accept_is_in_its_audit_log_if_it_was_meant(
    world: World,
) -> None:
    stranger = world.theirs.machine_token(team="x")
    refusal = ("idp:robot-1", "service", "GET /api/v1/status", "jwt.not_accepted")
    await world.trust(required_claims={"team": "a"})
    await world.call(stranger, "GET", STATUS)
    assert (await audited(world))[-1] == refusal
    await world.trust("beta", required_claims={"team": "b"})
    before = await audited(world)
    assert (await world.call(stranger, "GET", STATUS)).code == "jwt.not_accepted"
    assert await audited(world) == before  # nobody knows which of the two it was meant for
    await world.call(stranger, "GET", STATUS, traceplane_org="beta")
    assert await audited(world) == [*before, refusal]
    last = "select o.slug from audit_log join orgs o using (org_id) order by audit_id desc limit 1"
    assert await world.plane.value(last) == "beta"


@pytest.mark.parametrize(
    ("name", "body"), [("ada@example.com", {}), ("ada", {"email": "Ada@Example.com"})], ids=["name", "email"]
)
async def test_a_disabled_member_does_not_come_back_as_another(world: World, name: str, body: Any) -> None:
    admin, path = await world.admin(), f"/api/v1/members/{name}"
    assert (await world.call(admin, "PUT", path, body)).status == 200
    assert (await world.call(admin, "DELETE", path)).status == 200
    async with world.browser() as browser:
        assert (await world.sign_in(browser)).refusal == (403, "sign_in.disabled")
        assert await world.plane.value("select count(*) from org_members") == 1
        assert (await world.call(admin, "PUT", path, body)).status == 200
        assert (await world.sign_in(browser)).status == 303


async def test_a_subject_that_is_known_under_another_issuer_signs_in(world: World) -> None:
    world.theirs.person["email_verified"] = False
    async with world.browser() as browser:
        for name in ("idp:ada-1", "idp:ada-1#2", "idp:ada-1#3"):
            for _ in range(2):
                assert (await world.sign_in(browser)).status == 303
                assert (await browser.go(f"{world.url}/api/v1/whoami")).body["name"] == name
            await world.plane.value("update org_members set issuer = issuer || '/before'")


async def test_a_provider_that_does_not_answer_keeps_nobody_else_out(world: World) -> None:
    await world.trust("beta")
    world.theirs.hangs = True
    ask = {"org": "beta"}
    waiting = [asyncio.create_task(world.call(None, "POST", "/auth/device", ask)) for _ in range(30)]
    busy, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert {task.result().refusal for task in busy} == {(503, "sign_in.busy")}
    world.theirs.hangs = False
    assert (await world.call(None, "POST", "/auth/device", {"org": "default"})).status == 200
    for task in waiting:
        task.cancel()


async def test_nobody_takes_the_name_of_another_member(world: World) -> None:
    async with world.browser() as ada, world.browser() as other:
        await world.sign_in(ada)
        world.theirs.person["sub"] = "mallory-1"
        await world.sign_in(other)
        assert (await other.go(f"{world.url}/api/v1/whoami")).body["name"] == "idp:mallory-1"
        assert (await ada.go(f"{world.url}/api/v1/whoami")).body["name"] == "ada@example.com"


async def test_claims_that_the_organization_requires_are_required_of_people_too(world: World) -> None:
    await world.trust(required_claims={"hd": "acme.example"})
    async with world.browser() as browser:
        assert (await world.sign_in(browser)).refusal == (401, "jwt.not_accepted")
        world.theirs.person["hd"] = "acme.example"
        assert (await world.sign_in(browser)).status == 303


# The command line -----------------------------------------------------------------------------------


async def test_the_command_line_signs_in_by_device_code(world: World) -> None:
    begun = (await world.call(None, "POST", "/auth/device", {"org": "default"})).body
    question = {
        "org": "default",
        "provider": begun["provider"],
        "device_code": begun["device_code"],
        "verifier": begun["verifier"],
    }

    async def ask(**changes: Any) -> Answer:
        return await world.call(None, "POST", "/auth/device/token", question | changes)

    assert (await ask()).body == {"status": "pending"}
    world.theirs.approve(begun["user_code"])
    assert (await ask(verifier="x" * 43)).refusal == (401, "sign_in.code_refused")
    signed_in = (await ask()).body
    assert (signed_in["status"], signed_in["name"]) == ("signed_in", "ada@example.com")
    token = signed_in["token"]
    assert (await world.call(token, "GET", "/api/v1/whoami")).body["roles"] == ["writer"]
    lifetime = (
        "select extract(epoch from expires_at - created_at) from access_tokens where created_by = 'sign-in'"
    )
    assert await world.plane.value(lifetime) == 12 * 3600
    assert (await ask()).refusal == (401, "sign_in.code_refused")
    assert (await world.call(token, "POST", "/auth/logout")).body == {"ended": "token"}
    await world.plane.api.refresh()
    assert (await world.call(token, "GET", STATUS)).refusal == (401, "token.revoked")


async def test_signing_out_does_not_end_a_token_that_no_sign_in_made(world: World) -> None:
    admin = await world.admin()
    for token in (admin, world.theirs.machine_token()):
        assert (await world.call(token, "POST", "/auth/logout")).refusal == (409, "sign_in.not_signed_in")
    assert (await world.call(admin, "GET", STATUS)).status == 200


async def test_a_device_that_is_refused_gets_nothing(world: World) -> None:
    begun = (await world.call(None, "POST", "/auth/device", {"org": "default", "provider": "idp"})).body
    world.theirs.deny(begun["user_code"])
    question = {name: begun[name] for name in ("provider", "device_code", "verifier")} | {"org": "default"}
    assert (await world.call(None, "POST", "/auth/device/token", question)).refusal == (403, "sign_in.denied")
    made_up = question | {"device_code": "made-up"}
    assert (await world.call(None, "POST", "/auth/device/token", made_up)).refusal == (
        401,
        "sign_in.code_refused",
    )
    unknown = await world.call(None, "POST", "/auth/device", {"org": "nobody"})
    assert unknown.refusal == (404, "sign_in.unknown_provider")


# Providers ------------------------------------------------------------------------------------------


async def test_admins_set_list_and_remove_providers(world: World) -> None:
    admin = await world.admin()
    one = (await world.call(admin, "GET", PROVIDER)).body
    assert (one["name"], one["issuer"], one["set_by"]) == ("idp", world.theirs.url, "root")
    assert (await world.call(admin, "GET", "/api/v1/identity-providers")).body == {"providers": [one]}
    others = await world.call(await world.admin("beta"), "GET", "/api/v1/identity-providers")
    assert others.body == {"providers": []}
    beta = await world.admin("beta")
    assert (await world.call(beta, "DELETE", PROVIDER)).refusal == (404, "provider.unknown")
    robot = world.theirs.machine_token()
    async with world.browser() as browser:
        await world.sign_in(browser)
        assert (await world.call(robot, "GET", STATUS)).status == 200
        assert (await world.call(admin, "DELETE", PROVIDER)).body == {"name": "idp"}
        await world.plane.api.refresh()
        assert (await browser.go(world.url + STATUS)).refusal == (401, "session.ended")
    assert (await world.call(robot, "GET", STATUS)).refusal == (401, "jwt.unknown_issuer")
    assert (await world.call(None, "GET", "/auth/login?org=default")).refusal == (
        404,
        "sign_in.unknown_provider",
    )


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"role_map": {"x": "king"}}, (400, "provider.unknown_role")),
        ({"default_role": "king"}, (400, "provider.unknown_role")),
        ({"role_map": None}, (400, "provider.incomplete")),
        ({"scopes": ["profile"]}, (400, "provider.bad_scopes")),
        ({"client_secret": "s3cr3t value"}, (400, "provider.bad_secret")),
        ({"issuer": "http://127.0.0.1:1"}, (400, "outgoing.not_allowed")),
        ({"issuer": "https://127.0.0.1:1"}, (400, "outgoing.not_allowed")),
        ({"issuer": "https://169.254.169.254/latest"}, (400, "outgoing.not_allowed")),
        ({"issuer": "https://[::ffff:127.0.0.1]"}, (400, "outgoing.not_allowed")),
        ({"issuer": "https://2130706433"}, (400, "outgoing.bad_url")),
        ({"issuer": "file:///etc/passwd"}, (400, "outgoing.bad_url")),
        ({"issuer": None}, (400, "request.invalid")),
        ({"required_claims": {"a": ["b"]}}, (400, "request.invalid")),
    ],
)
async def test_a_provider_that_cannot_work_is_refused_and_nothing_is_stored(
    world: World, changes: dict[str, Any], refusal: tuple[int, str]
) -> None:
    assert (await world.trust(name="other", **changes)).refusal == refusal
    assert await world.plane.value("select count(*) from identity_providers") == 1


async def test_a_provider_that_does_not_answer_is_refused(world: World) -> None:
    world.theirs.issuer_in_document = "https://accounts.example.com"
    refused = await world.trust(name="other", issuer=world.theirs.url + "/")
    assert refused.refusal == (503, "sign_in.issuer_unavailable")


async def test_the_client_secret_is_a_platform_secret(database_url: str, tmp_path: Path) -> None:
    async with (
        OidcProvider.running(client_secret="correct horse/+") as theirs,
        world_of(database_url, theirs, tmp_path) as world,
        world.browser() as browser,
    ):
        assert (await world.trust(client_secret="idp_client")).status == 200
        assert (await world.sign_in(browser)).refusal == (503, "sign_in.no_client_secret")
        path = "/api/v1/secrets/platform/idp_client"
        await world.call(await world.admin(), "PUT", path, {"value": "wrong"})
        assert (await world.sign_in(browser)).refusal == (401, "sign_in.code_refused")
        await world.call(await world.admin(), "PUT", path, {"value": "correct horse/+"})
        assert (await world.sign_in(browser)).status == 303
        shown = (await world.call(await world.admin(), "GET", PROVIDER)).body
        assert shown["client_secret"] == "idp_client"


async def test_login_keeps_the_token_where_commands_find_it_until_logout(
    world: World, tmp_path: Path
) -> None:
    home = tmp_path / "person"
    settings = Settings(home=home, gateway_url=world.url)
    write_private(token_file(settings, "user"), "of the folder's own platform")

    async def run(command: click.Command, *arguments: str) -> Result:
        done = await asyncio.to_thread(CliRunner().invoke, command, arguments, obj=settings)
        await world.plane.api.refresh()
        return done

    login = asyncio.create_task(run(cli.login))
    await world.theirs.device_begun.wait()
    (user_code,) = world.theirs.devices
    world.theirs.approve(user_code)
    done = await login
    assert done.exit_code == 0, done.output
    assert f"enter the code {user_code}" in done.output
    assert "signed in as ada@example.com" in done.output
    token = token_file(settings, "user").read_text().strip()
    assert token_file(settings, "user").stat().st_mode & 0o777 == 0o600
    assert (await world.call(token, "GET", STATUS)).status == 200
    assert (await run(cli.logout)).output == "signed out\n"
    assert (await world.call(token, "GET", STATUS)).refusal == (401, "token.revoked")
    assert token_file(settings, "user").read_text().strip() == "of the folder's own platform"
    assert isinstance((await run(cli.logout)).exception, InvalidInput)


async def test_the_command_line_sets_providers(world: World, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "person", gateway_url=world.url, user_token=await world.admin())

    async def run(*arguments: str) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, cli.provider, [*arguments], obj=settings)
        assert done.exit_code == 0, done.exception
        return done.output

    roles = ("--roles-claim", "groups", "--role", "cn=ops,dc=acme=writer", "--default-role", "reader")
    where = ("--issuer", world.theirs.url, "--client-id", "other", "--require", "email_verified=true")
    assert "ops is set" in await run("set", "ops", *where, *roles, "--scope", "groups")
    stored = (await world.call(await world.admin(), "GET", "/api/v1/identity-providers/ops")).body
    assert stored["role_map"] == {"cn=ops,dc=acme": "writer"}
    assert stored["required_claims"] == {"email_verified": True}
    assert stored["scopes"] == ["openid", "profile", "email", "groups"]
    listed = await run("list")
    assert "cn=ops,dc=acme is writer, everybody else is reader" in listed
    assert "ops is deleted" in await run("delete", "ops")
    assert [one["name"] for one in json.loads(await run("list", "--json"))["providers"]] == ["idp"]
    settings = replace(settings, user_token=await world.admin("beta"))
    assert f"{world.url}/auth/login?org=beta&provider=ops\n" in await run("set", "ops", *where, *roles)


def test_a_sign_in_with_another_platform_does_not_lend_its_token_to_this_one(tmp_path: Path) -> None:
    """A settings file that comes with a repository cannot send the token elsewhere."""
    remote, other = (
        Settings(home=tmp_path, gateway_url=url) for url in ("https://tp.example.com", "https://evil.example")
    )
    write_private(token_file(remote, "user"), "tpu_x")
    write_private(signed_in_file(remote), json.dumps({"url": "https://tp.example.com"}))
    assert user_token(remote, {}) == "tpu_x"
    with pytest.raises(InvalidInput) as caught:
        user_token(other, {})
    assert caught.value.code == "cli.token_withheld"


@pytest.mark.parametrize(("org", "status"), [("default", "cli.other_org"), ("beta", "beta"), (None, "beta")])
async def test_a_command_refuses_a_token_of_another_organization_than_its_setting(
    world: World, org: str | None, status: str
) -> None:
    """Also if the setting names the organization that is there from the start."""
    token = await world.admin("beta")
    settings = Settings(gateway_url=world.url, user_token=token, org=org)

    def who() -> str:
        try:
            return call(settings, lambda c: c.call("GET", "/api/v1/whoami", WhoAmI)).org
        except TraceplaneError as error:
            return error.code

    assert await asyncio.to_thread(who) == status
