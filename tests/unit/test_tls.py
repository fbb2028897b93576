"""Services with a certificate: what is encrypted, renewed, refused, and how long a handshake may take."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.certificates import Authority
from tests.http_app import make_app, running
from tests.platform import until
from traceplane import telemetry
from traceplane.client import Client
from traceplane.errors import InvalidInput, PlatformError
from traceplane.http_service.client import Caller, caller_context
from traceplane.http_service.server import ConnectionLimits
from traceplane.http_service.tls import ServerCertificate
from traceplane.settings import load
from traceplane.wire.scalars import Wire


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
async def port(authority: Authority) -> AsyncIterator[int]:
    async with running(make_app(), certificate=ServerCertificate(*authority.issue())) as port:
        yield port


async def peer_certificate(port: int, trusted: ssl.SSLContext) -> bytes:
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    try:
        encoded: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return encoded
    finally:
        writer.close()


class Health(Wire, frozen=True):
    status: str


async def test_calls_bodies_and_streams_are_encrypted(port: int, authority: Authority) -> None:
    connector = aiohttp.TCPConnector(ssl=caller_context(authority.file))
    async with aiohttp.ClientSession(f"https://127.0.0.1:{port}", connector=connector) as session:
        big = {"tasks": [{"task_id": str(n), "attempt": n} for n in range(4000)]}
        async with session.post("/tasks", json=big) as answer:
            assert await answer.json() == {"tasks": 4000, "text": ""}
        async with session.get("/pieces/5000/ends") as answer:
            assert (await answer.text()).count("\n") == 5000
        async with session.get("/nothing") as answer:
            assert answer.status == 404
            assert answer.headers["strict-transport-security"] == "max-age=31536000"


async def test_only_tls_1_2_and_newer_is_spoken(port: int, authority: Authority) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        trusted = caller_context(authority.file)
        trusted.maximum_version = trusted.minimum_version = version
        assert await peer_certificate(port, trusted)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.load_verify_locations(authority.file)
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        await peer_certificate(port, old)


async def test_plain_http_gets_no_answer(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert b"HTTP" not in await asyncio.wait_for(reader.read(), 10)
    writer.close()


async def test_callers_trust_only_the_authorities_they_were_given(port: int, authority: Authority) -> None:
    trusting = Caller(f"https://127.0.0.1:{port}", tls_ca=authority.file)
    stranger = Caller(f"https://127.0.0.1:{port}")
    plain = Caller(f"http://127.0.0.1:{port}")
    try:
        assert (await trusting.call("GET", "/healthz", Health)).status == "ok"
        with pytest.raises(PlatformError, match="not trusted") as refused:
            await stranger.call("GET", "/healthz", Health)
        assert refused.value.code == "tls.not_trusted"
        assert "tls_ca" in (refused.value.next_step or "")
        assert "CERTIFICATE_VERIFY_FAILED" in str(refused.value)
        with pytest.raises(PlatformError, match="did not answer") as refused:
            await plain.call("GET", "/healthz", Health)
        assert "https://" in (refused.value.next_step or "")
    finally:
        await trusting.close()
        await stranger.close()
        await plain.close()
    for ca, works in ((authority.file, True), (None, False)):
        client = Client(f"https://127.0.0.1:{port}", "tpu_x", tls_ca=ca)
        with pytest.raises(PlatformError if not works else Exception) as ended:
            await asyncio.to_thread(client.status)
        assert (getattr(ended.value, "code", None) == "request.unknown_path") == works


def test_a_file_of_authorities_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("missing.pem", "empty.pem"):
        with pytest.raises(InvalidInput, match="tls_ca") as refused:
            caller_context(tmp_path / name)
        assert refused.value.code == "tls.ca_unusable"


async def test_a_renewed_certificate_is_used_without_a_restart_and_a_bad_one_is_not(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry.configure("gateway", log_format="json")
    trusted = caller_context(authority.file)
    files = authority.issue()
    async with running(make_app(), certificate=ServerCertificate(*files)) as port:
        first = await peer_certificate(port, trusted)
        files[0].write_text("not a certificate")

        printed: list[str] = []

        async def said(event: str) -> bool:
            printed.extend(capsys.readouterr().err.splitlines())
            return any(f'"event":"{event}"' in line for line in printed)

        await until(lambda: said("tls.not_renewed"), what="the bad certificate to be reported")
        assert await peer_certificate(port, trusted) == first
        authority.issue()
        await until(lambda: said("tls.renewed"), what="the renewed certificate")
        assert await peer_certificate(port, trusted) != first
        (report,) = [json.loads(line) for line in printed if "tls.not_renewed" in line]
        assert report["code"] == "tls.certificate_unusable"


def test_files_that_no_caller_could_use_are_refused_in_one_sentence(authority: Authority) -> None:
    certificate, key = authority.issue()
    _, other_key = authority.issue(name="other")
    expired, its_key = authority.issue(name="expired", days=-1)
    text = authority.file.parent / "text.pem"
    text.write_text("hello")
    refused = {
        (certificate, other_key): "is not the key of the certificate",
        (expired, its_key): "expired at",
        (text, key): "is not PEM",
        (certificate, text): "is not PEM",
        (authority.file.parent / "missing", key): "cannot be read: No such file",
        (certificate, authority.file.parent / "missing"): "cannot be read: No such file",
    }
    for files, reason in refused.items():
        with pytest.raises(InvalidInput, match=reason) as error:
            ServerCertificate(*files)
        assert error.value.code == "tls.certificate_unusable"
    with pytest.raises(InvalidInput, match="tls_certificate and tls_key belong together"):
        load(environment={"TRACEPLANE_TLS_CERTIFICATE": str(certificate)})


async def test_a_handshake_that_does_not_end_is_a_connection_like_others(authority: Authority) -> None:
    """It is closed in time, and when there are too many, it is the first to go."""
    limits = ConnectionLimits(head_seconds=1.0, most=20)
    trusted = caller_context(authority.file)
    certificate = ServerCertificate(*authority.issue())
    async with running(make_app(), certificate=certificate, limits=limits) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        assert await asyncio.wait_for(peer_certificate(port, trusted), 5)
        for reader, writer in silent:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
