"""What the web UI stands on: its files, links that sign browsers in, the stream of changes, and the graph."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.control_plane import ControlPlane
from tests.dags import dag, job, source
from tests.gateway_http import GatewayHttp
from tests.platform import until
from tests.ports import free_port
from traceplane.auth.opaque import Principal
from traceplane.auth.roles import Role
from traceplane.auth.store import revoke_tokens, rotate_token
from traceplane.gateway import browser_links, changes
from traceplane.gateway.pages import Pages
from traceplane.http_service.server import serve

DAG = dag("shop", source("shop.in"), job("copy", "shop.in", "shop.out", "max_queue_depth: 1"))


class Browser:
    """Calls as pages of the gateway make them."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.url, self.http = url, http

    async def enter(self, link: str, **headers: str) -> tuple[int, Any]:
        return await self.send("POST", "/auth/browser", {"code": link.partition("#sign-in=")[2]}, **headers)

    async def send(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        csrf = self.http.cookie_jar.filter_cookies(URL(self.url)).get("traceplane_csrf")
        own = {"origin": self.url, **({"x_csrf_token": csrf.value} if csrf else {})}
        sent = {name.replace("_", "-"): value for name, value in {**own, **headers}.items() if value}
        async with self.http.request(method, self.url + path, json=body, headers=sent) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text else None


class Site:
    def __init__(self, plane: ControlPlane, http: GatewayHttp, url: str) -> None:
        self.plane, self.http, self.url = plane, http, url

    async def link(self, token: str) -> str:
        status, text = await self.http.send(token, "POST", "/auth/browser-link")
        assert status == 200, text
        return str(json.loads(text)["url"])


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    port = free_port()
    async with ControlPlane.open(database_url, gateway_port=port) as plane:
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(plane.api.app(), port=port, stop=stop, bound=bound, grace=1.0))
        url = f"http://127.0.0.1:{await bound}"
        async with aiohttp.ClientSession(url) as session:
            yield Site(plane, GatewayHttp(plane, session, port), url)
        stop.set()
        await server
        await plane.api.close()


@pytest.fixture
async def browser(site: Site) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        yield Browser(site.url, http)


def code_of(answer: Any) -> str:
    return str(answer["error"]["code"])


async def test_a_link_signs_in_once_with_the_rights_of_its_token(site: Site, browser: Browser) -> None:
    link = await site.link(await site.http.token(Role.READER, name="laptop"))
    assert (await browser.enter(link))[0] == 200
    assert (await browser.send("GET", "/api/v1/whoami"))[1]["name"] == "laptop"
    refused = await browser.send("POST", "/api/v1/jobs/resume", {"dag": "x", "job": "y"})
    assert (refused[0], code_of(refused[1])) == (403, "access.role_required")
    again = await browser.enter(link)
    assert (again[0], code_of(again[1])) == (401, "sign_in.link_used")
    # The code is no token, and no session either.
    code = link.partition("=")[2]
    for token in (code, f"tpu_{code}"):
        assert (await site.http.send(token, "GET", "/api/v1/whoami"))[0] == 401


async def test_a_browser_stays_signed_in_for_longer_than_its_link(site: Site, browser: Browser) -> None:
    assert (await browser.enter(await site.link(await site.http.token(Role.ADMIN))))[0] == 200
    lasts = "select extract(epoch from expires_at - tp_now()) / 3600 as hours from access_tokens where created_by = $1"
    (row,) = await site.plane.sql(lasts, "sign-in")
    assert 11.9 < row["hours"] <= 12
    # A token that ends earlier takes its browsers along.
    await site.plane.sql("delete from access_tokens where created_by = 'sign-in'")
    token = await site.http.token(Role.ADMIN, name="short")
    await site.plane.sql(
        "update access_tokens set expires_at = tp_now() + interval '1 hour' where name = 'short'"
    )
    assert (await browser.enter(await site.link(token)))[0] == 200
    (row,) = await site.plane.sql(lasts, "sign-in")
    assert 0.9 < row["hours"] <= 1


async def test_two_browsers_with_one_link_are_one_session(site: Site) -> None:
    link = await site.link(await site.http.token(Role.ADMIN))
    async with aiohttp.ClientSession() as http:
        answers = await asyncio.gather(*(Browser(site.url, http).enter(link) for _ in range(8)))
    assert sorted(status for status, _ in answers) == [200] + [401] * 7


async def test_a_link_of_somebody_else_takes_no_place_before_its_reader_agrees(
    site: Site, browser: Browser
) -> None:
    """Or a page of another site could have what is typed into an open page sent to somebody else's organization."""
    await browser.enter(await site.link(await site.http.token(Role.ADMIN, name="mine")))
    mine = {"org": "default", "name": "mine"}
    link = await site.link(await site.http.token(Role.ADMIN, name="theirs"))
    code = link.partition("#sign-in=")[2]
    refused = await browser.send("POST", "/auth/browser", {"code": code, "signed_in": mine})
    assert (refused[0], code_of(refused[1])) == (409, "sign_in.other_person")
    assert refused[1]["error"]["value"] == "theirs of default"
    assert (await browser.send("GET", "/api/v1/whoami"))[1]["name"] == "mine"
    assert (await browser.enter(link))[0] == 200, "it was not used up"
    assert (await browser.send("GET", "/api/v1/whoami"))[1]["name"] == "theirs"
    again = await site.link(await site.http.token(Role.ADMIN, name="theirs too"))
    same = {"code": again.partition("#sign-in=")[2], "signed_in": {"org": "default", "name": "theirs too"}}
    assert (await browser.send("POST", "/auth/browser", same))[0] == 200


async def test_an_old_link_signs_nobody_in(site: Site, browser: Browser) -> None:
    link = await site.link(await site.http.token(Role.ADMIN))
    await site.plane.sql("update access_tokens set expires_at = tp_now() where created_by = 'browser link'")
    assert code_of((await browser.enter(link))[1]) == "sign_in.link_used"


async def test_calls_by_cookie_must_come_from_our_own_pages(site: Site, browser: Browser) -> None:
    link = await site.link(await site.http.token(Role.ADMIN))
    other = await browser.enter(link, origin="https://evil.example")
    assert (other[0], code_of(other[1])) == (403, "session.other_site")
    assert (await browser.enter(link))[0] == 200
    call = ("POST", "/api/v1/jobs/resume", {"dag": "x", "job": "y"})
    for headers, expected in (
        ({"x_csrf_token": ""}, "session.csrf"),
        ({"x_csrf_token": "0" * 64}, "session.csrf"),
        ({"origin": "https://evil.example"}, "session.other_site"),
        ({"host": "evil.example"}, "session.not_local"),
        ({}, "dag.unknown"),
    ):
        assert code_of((await browser.send(*call, **headers))[1]) == expected


async def test_what_ends_the_token_ends_its_browsers(site: Site, browser: Browser) -> None:
    token = await site.http.token(Role.ADMIN, name="laptop")
    await browser.enter(await site.link(token))
    waiting = await site.link(token)
    async with site.plane.database.transaction() as tx:
        rotated = await rotate_token(tx, Principal.USER, org="default", name="laptop", overlap_seconds=60)
    await site.plane.api.refresh()
    lasting = await site.plane.sql(
        "select 1 from access_tokens where created_by = 'traceplane' and expires_at is null"
    )
    assert len(lasting) == 1, "the successor lasts as long as the token did, not as long as a browser's"
    assert (await site.http.send(rotated, "GET", "/api/v1/whoami"))[0] == 200
    async with site.plane.database.transaction() as tx:
        await revoke_tokens(tx, Principal.USER, org="default", name="laptop")
    await site.plane.api.refresh()
    assert code_of((await browser.send("GET", "/api/v1/whoami"))[1]) == "token.revoked"
    assert code_of((await browser.enter(waiting, x_csrf_token=""))[1]) == "sign_in.link_used"


async def test_revoking_a_token_by_its_id_ends_its_browsers(site: Site, browser: Browser) -> None:
    """Whoever has found a token that is not theirs must not keep what they made of it."""
    admin, stolen = [await site.http.token(Role.ADMIN, name=name) for name in ("boss", "stolen")]
    await browser.enter(await site.link(stolen))
    assert (await browser.send("GET", "/api/v1/whoami"))[0] == 200
    session = browser.http.cookie_jar.filter_cookies(URL(site.url))["traceplane_session"].value
    waiting = await site.link(stolen)
    (row,) = await site.plane.sql(
        "select token_id from access_tokens where name = 'stolen' and made_from is null"
    )
    assert (await site.http.send(admin, "DELETE", f"/api/v1/tokens/{row['token_id']}"))[0] == 200
    # This gateway may not have heard of it yet.
    assert (
        code_of(json.loads((await site.http.send(stolen, "POST", "/auth/browser-link"))[1]))
        == "token.revoked"
    )
    await site.plane.api.refresh()
    for token in (stolen, session):
        assert (
            code_of(json.loads((await site.http.send(token, "GET", "/api/v1/whoami"))[1])) == "token.revoked"
        )
    assert code_of((await browser.enter(waiting, x_csrf_token=""))[1]) == "sign_in.link_used"
    assert (await site.http.send(admin, "GET", "/api/v1/whoami"))[0] == 200


async def test_signing_out_ends_the_token_of_the_browser_alone(site: Site, browser: Browser) -> None:
    token = await site.http.token(Role.ADMIN)
    await browser.enter(await site.link(token))
    cookies = list(browser.http.cookie_jar)
    assert (await browser.send("POST", "/auth/logout", {}))[1] == {"ended": "session"}
    browser.http.cookie_jar.update_cookies({cookie.key: cookie for cookie in cookies})
    await site.plane.api.refresh()
    assert code_of((await browser.send("GET", "/api/v1/whoami"))[1]) == "token.revoked"
    assert (await site.http.send(token, "GET", "/api/v1/whoami"))[0] == 200


async def test_a_session_makes_no_links(site: Site, browser: Browser) -> None:
    await browser.enter(await site.link(await site.http.token(Role.ADMIN)))
    status, answer = await browser.send("POST", "/auth/browser-link")
    assert (status, code_of(answer)) == (409, "sign_in.link_needs_token")
    session = browser.http.cookie_jar.filter_cookies(URL(site.url))["traceplane_session"].value
    status, text = await site.http.send(session, "POST", "/auth/browser-link")
    assert (status, code_of(json.loads(text))) == (409, "sign_in.link_needs_token"), "not without its cookie"


async def test_browsers_have_no_limits_of_their_own(
    site: Site, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes a hundred links is one caller, also with a token that is nobody's."""
    monkeypatch.setattr(changes, "_MOST_OF_ONE_CALLER", 1)
    token = await site.http.token(Role.READER)
    await browser.enter(await site.link(token))
    opened: list[aiohttp.ClientResponse] = []
    try:
        await listener(site, token, opened)
        status, answer = await browser.send("GET", "/api/v1/changes?for_seconds=1")
        assert (status, code_of(answer)) == (429, "changes.too_many")
    finally:
        for answer in opened:
            answer.close()


def test_the_csrf_token_does_not_show_the_session() -> None:
    assert "tpu_" not in browser_links.csrf_of("tpu_x")


# Files ----------------------------------------------------------------------------------------------


async def test_pages_and_their_assets_are_served_strictly(tmp_path: Path) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "assets/index-1.js").write_text("// " + "x" * 2000)
    pages = Pages.built(tmp_path)
    for path in (b"/", b"/graph", b"/tasks/0198", b"/datasets/a%2Fb"):
        page = pages.find(path, {})
        assert page is not None
        headers = dict(page.headers)
        assert headers[b"cache-control"] == b"no-cache"
        policy = headers[b"content-security-policy"].decode()
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
    asset = pages.find(b"/assets/index-1.js", {b"accept-encoding": b"br, gzip"})
    assert asset is not None
    headers = dict(asset.headers)
    assert headers[b"cache-control"] == b"public, max-age=31536000, immutable"
    assert headers[b"content-encoding"] == b"gzip"
    assert asset.content_type == "text/javascript; charset=utf-8"
    seen = pages.find(b"/assets/index-1.js", {b"if-none-match": headers[b"etag"]})
    assert seen is not None
    assert (seen.status, seen.body) == (304, b"")
    for path in (b"/assets/../index.html", b"/assets/", b"/api/v1/status", b"/unknown", b"//graph"):
        assert pages.find(path, {}) is None


async def test_without_assets_the_gateway_says_what_is_missing(tmp_path: Path) -> None:
    page = Pages.built(tmp_path).find(b"/", {})
    assert page is not None
    assert page.status == 503
    assert b"make setup" in page.body
    assert Pages.built(tmp_path).find(b"/assets/index-1.js", {}) is None


# Changes --------------------------------------------------------------------------------------------


class Stream:
    """What a listener hears."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> tuple[str, Any]:
        event = ""
        async for raw in self.answer.content:
            line = raw.decode().rstrip("\n")
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: "):
                return event, json.loads(line[6:])
        raise AssertionError("the stream has ended")

    async def until(self, wanted: str, name: str) -> Any:
        while True:
            _, changed = await self.next()
            if name in changed.get(wanted, []):
                return changed


async def listener(site: Site, token: str, stack: list[aiohttp.ClientResponse]) -> Stream:
    headers = {"authorization": f"Bearer {token}"}
    answer = await site.http.session.get("/api/v1/changes?for_seconds=60", headers=headers)
    assert (answer.status, answer.content_type) == (200, "text/event-stream")
    stack.append(answer)
    stream = Stream(answer)
    assert await stream.next() == ("ready", {})
    return stream


async def test_listeners_hear_what_they_may_see_and_nothing_else(site: Site) -> None:
    plane = site.plane
    await plane.sql("insert into orgs (slug) values ('other')")
    hidden = DAG.replace("shop", "pay") + "datasets:\n  pay.out: {read_roles: [admin]}\n"
    await plane.deploy(DAG)
    await plane.deploy(hidden)
    opened: list[aiohttp.ClientResponse] = []
    try:
        admin = await listener(site, await site.http.token(Role.ADMIN), opened)
        reader = await listener(site, await site.http.token(Role.READER), opened)
        stranger = await listener(site, await site.http.token(Role.ADMIN, org="other"), opened)
        await asyncio.sleep(1.5)  # a first look at how things are
        await plane.emit("pay.in", range(3))
        await admin.until("jobs", "pay/copy")
        await plane.emit("shop.in", range(3))
        assert "pay/copy" not in (await reader.until("jobs", "shop/copy"))["jobs"]
        await plane.pause("shop", "copy")
        await reader.until("jobs", "shop/copy")
        await plane.run_all()
        await admin.until("datasets", "pay.out")
        await plane.deploy(DAG.replace("max_queue_depth: 1", "max_queue_depth: 2"))
        await admin.until("dags", "shop")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stranger.next(), 2.0)
    finally:
        for answer in opened:
            answer.close()


async def test_whoever_may_listen_no_more_hears_nothing_more(site: Site) -> None:
    await site.plane.deploy(DAG)
    opened: list[aiohttp.ClientResponse] = []
    try:
        stays = await listener(site, await site.http.token(Role.READER, name="stays"), opened)
        leaves = await listener(site, await site.http.token(Role.READER, name="leaves"), opened)
        await asyncio.sleep(1.5)  # a first look at how things are
        await site.plane.emit("shop.in", range(3))
        for stream in (stays, leaves):
            await stream.until("jobs", "shop/copy")
        async with site.plane.database.transaction() as tx:
            await revoke_tokens(tx, Principal.USER, org="default", name="leaves")
        await site.plane.api.refresh()
        await site.plane.pause("shop", "copy")
        await stays.until("jobs", "shop/copy")
        rest = (await asyncio.wait_for(leaves.answer.content.read(), 10)).decode()
        assert "shop" not in rest, "and the stream has ended"
    finally:
        for answer in opened:
            answer.close()


async def test_one_listener_leaves_streams_to_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_MOST_OF_ONE_CALLER", 2)
    greedy, other = [await site.http.token(Role.READER, name=name) for name in ("greedy", "other")]
    opened: list[aiohttp.ClientResponse] = []
    try:
        for token in (greedy, greedy, other):
            await listener(site, token, opened)
        status, text = await site.http.send(greedy, "GET", "/api/v1/changes?for_seconds=60")
        assert (status, code_of(json.loads(text))) == (429, "changes.too_many")
    finally:
        for answer in opened:
            answer.close()


async def test_streams_that_are_opened_at_once_are_counted_like_others(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them were checked before the first was counted."""
    monkeypatch.setattr(changes, "_MOST_OF_ONE_CALLER", 3)
    greedy, other = [await site.http.token(Role.READER, name=name) for name in ("greedy", "other")]
    headers = {"authorization": f"Bearer {greedy}"}
    async with aiohttp.ClientSession(site.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        path = "/api/v1/changes?for_seconds=60"
        opened = await asyncio.gather(*(session.get(path, headers=headers) for _ in range(30)))
        try:
            assert Counter(answer.status for answer in opened) == {200: 3, 429: 27}
            (refused, *_) = [answer for answer in opened if answer.status == 429]
            assert (code_of(await refused.json()), refused.headers["retry-after"]) == (
                "changes.too_many",
                "10",
            )
            await listener(site, other, opened)
        finally:
            for answer in opened:
                answer.close()

        async def one_more() -> bool:
            async with session.get(path, headers=headers) as answer:
                return answer.status == 200

        await until(one_more, what="the places are free again")


# The graph ------------------------------------------------------------------------------------------


async def test_the_graph_names_edges_holds_and_pauses(site: Site) -> None:
    plane = site.plane
    chained = dag(
        "shop",
        source("shop.in"),
        job("first", "shop.in", "shop.mid"),
        job("second", "shop.mid", "shop.out", "max_queue_depth: 1"),
    )
    await plane.deploy(chained + "datasets:\n  shop.all: {sql: select * from shop.out, storage: virtual}\n")
    await plane.emit("shop.in", range(6))
    await plane.meter()
    await plane.complete(*await plane.claim(await plane.send()))
    await plane.backpressure.run_once()
    await plane.pause("shop", "second", "later")
    status, text = await site.http.send(await site.http.token(Role.READER), "GET", "/api/v1/graph")
    assert status == 200, text
    graph = json.loads(text)
    jobs = {one["job"]: one for one in graph["jobs"]}
    assert jobs["first"]["reads"] == [{"dataset": "shop.in"}]
    assert jobs["first"]["writes"] == ["shop.mid"]
    assert jobs["first"]["hold"]["job"] == "shop/second"
    assert jobs["first"]["hold"]["threshold"] == 1
    assert jobs["second"]["pause"] == {"paused_by": "admin", "reason": "later"}
    datasets = {one["dataset"]: one for one in graph["datasets"]}
    assert datasets["shop.all"] == {
        "dataset": "shop.all",
        "dag": "shop",
        "storage": "virtual",
        "reads": ["shop.out"],
    }


async def test_pages_ask_for_what_they_show_of_many_dags_and_datasets(site: Site) -> None:
    """What a platform of thousands of datasets would take seconds to tell: each page gets its part, as whole as it was
    in the answer about all, and none of what its reader may not see."""
    plane = site.plane
    await plane.deploy(DAG)
    await plane.deploy(
        dag("pay", job("bill", "shop.out", "pay.bills"), job("late", "pay.bills", "pay.late"))
        + "datasets:\n  pay.bills: {read_roles: [admin], description: What was owed}\n"
    )
    await plane.emit("shop.in", range(3))
    await plane.run_all()
    admin, reader = [await site.http.token(role) for role in (Role.ADMIN, Role.READER)]

    async def get(token: str, path: str) -> Any:
        status, text = await site.http.send(token, "GET", f"/api/v1/{path}")
        assert status == 200, text
        return json.loads(text)

    await plane.deploy(
        "version: 1\ndag: views\njobs: []\ndatasets:\n  seen: {storage: virtual, sql: select * from shop.out}\n"
    )
    views = {"dag": "views", "version": 1, "jobs": 0, "datasets": ["seen"], "reads": ["shop"]}
    shop = {"dag": "shop", "version": 1, "jobs": 2, "datasets": ["shop.in", "shop.out"]}
    pay = {"dag": "pay", "version": 1, "jobs": 2, "datasets": ["pay.bills", "pay.late"], "reads": ["shop"]}
    assert (await get(admin, "overview"))["dags"] == [pay, shop, views]
    seen = (await get(reader, "overview"))["dags"]
    assert [one for one in seen if one["dag"] == "shop"] == [shop]
    assert "pay.bills" not in str(seen)

    whole = {one["dataset"]: one for one in (await get(admin, "status"))["datasets"]}
    assert set(whole) == {"shop.in", "shop.out", "pay.bills", "pay.late", "seen"}
    for path, names in (
        ("status?dag=pay", {"shop.out", "pay.bills", "pay.late"}),
        ("status?dataset=shop.out", {"shop.out"}),
        ("status?dag=shop&dataset=pay.late", set()),
        ("status?unmet=true", set()),
        ("status?dag=nosuch", set()),
    ):
        told = {one["dataset"]: one for one in (await get(admin, path))["datasets"]}
        assert told == {name: whole[name] for name in names}, path
    assert (await get(reader, "status?dataset=pay.bills"))["datasets"] == []

    assert (await get(admin, "graph?waiting=true")) == {"jobs": [], "datasets": []}
    await plane.pause("shop", "copy", "later")
    (waiting,) = (await get(admin, "graph?waiting=true"))["jobs"]
    assert (waiting["dag"], waiting["job"], waiting["pause"]["reason"]) == ("shop", "copy", "later")

    catalog = (await get(admin, "datasets"))["datasets"]
    assert [one["dataset"] for one in catalog] == ["pay.bills", "pay.late", "seen", "shop.in", "shop.out"]
    first = await get(admin, "datasets?limit=3")
    assert [one["dataset"] for one in (await get(admin, "graph?dag=views"))["datasets"]] == ["seen"]
    rest = await get(admin, f"datasets?limit=3&after={first['after']}")
    assert (first["datasets"] + rest["datasets"], rest.get("after")) == (catalog, None)
    for find, listed in (
        ("SHOP", ["shop.in", "shop.out"]),
        ("owed", ["pay.bills"]),
        ("nothing", []),
    ):
        found = (await get(admin, f"datasets?find={find}&limit=10"))["datasets"]
        assert [one["dataset"] for one in found] == listed
    # A page is full, whatever its reader may not see.
    page = await get(reader, "datasets?limit=1")
    assert [one["dataset"] for one in page["datasets"]] == ["pay.late"]
    assert (await get(reader, "datasets?find=owed"))["datasets"] == []
