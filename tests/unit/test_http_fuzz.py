"""Whatever bytes, JSON or path a caller sends, the answer is no internal error."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http_app import make_app
from traceplane.http_service.server import serve


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server of its own in a thread, on uvloop as in production."""
    ready = threading.Event()
    found: list[Any] = []

    async def main() -> None:
        stop, bound = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(serve(make_app(), port=0, stop=stop, bound=bound))
        found.extend((await bound, asyncio.get_running_loop(), stop))
        ready.set()
        await server

    thread = threading.Thread(target=lambda: uvloop.run(main()))
    thread.start()
    assert ready.wait(10)
    yield found[0]
    found[1].call_soon_threadsafe(found[2].set)
    thread.join(10)


def answer(port: int, method: str, path: str, body: bytes, content_type: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"content-type": content_type})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


fuzz = settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzz
@given(body=st.binary(max_size=300))
def test_no_bytes_are_an_internal_error(port: int, body: bytes) -> None:
    status, text = answer(port, "POST", "/tasks", body, "application/json")
    assert status in (200, 400)
    assert json.loads(text)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@fuzz
@given(tasks=anything, config=anything, more=anything)
def test_no_json_is_an_internal_error(port: int, tasks: Any, config: Any, more: Any) -> None:
    body = json.dumps({"tasks": tasks, "config": config, "more": more}).encode()
    assert answer(port, "POST", "/tasks", body, "application/json")[0] in (200, 400)


@fuzz
@given(
    path=st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
    method=st.sampled_from(["GET", "POST", "DELETE", "PATCH", "OPTIONS"]),
)
def test_no_path_is_an_internal_error(port: int, path: str, method: str) -> None:
    for prefix in ("/", "/dags/", "/runs?"):
        assert answer(port, method, prefix + path, b"", "application/json")[0] in (
            200,
            204,
            400,
            404,
            405,
            409,
        )
