"""Calls to addresses that users name reach nothing that only this machine reaches."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from traceplane.errors import InvalidInput, PlatformError, TraceplaneError
from traceplane.http_service import lookups
from traceplane.http_service.outgoing import Outgoing, Resolve, is_public, parse_url
from traceplane.linux.connect_supervisor import Address
from traceplane.settings import load

LOOPBACK = "127.0.0.0/8"


def answering(*answers: Sequence[str]) -> tuple[Resolve, list[str]]:
    """A resolver that answers each question with the next of these, and the hosts that it was asked for."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[Address]:
        asked.append(host)
        return [ipaddress.ip_address(text) for text in answers[min(len(asked), len(answers)) - 1]]

    return resolve, asked


@contextlib.asynccontextmanager
async def serving(
    *pieces: bytes, pause: float = 0.0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """A server that answers each connection with these bytes; the last one again and again if there is a pause."""

    handlers: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                for piece in pieces:
                    writer.write(piece)
                await writer.drain()
                while pause and not writer.is_closing():
                    writer.write(pieces[-1])
                    await writer.drain()
                    await asyncio.sleep(pause)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        async with asyncio.timeout(5):  # the other end has closed
            await asyncio.gather(*(handler for handler in handlers if handler is not None))


OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


async def refusal(outgoing: Outgoing, url: str) -> TraceplaneError:
    with pytest.raises(TraceplaneError) as caught:
        await outgoing.get(url)
    return caught.value


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "224.0.0.1",
        "255.255.255.255",
        "192.88.99.1",
        "198.19.0.1",
        "::1",
        "::",
        "fe80::1",
        "fec0::1",
        "feff:ffff::1",
        "100:0:0:1::1",
        "4000::1",
        "2001:db8::1",
        "3fff::1",
        "::ffff:0:808:808",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::808:808",
        "2002:7f00:1::",
        "2001:0:0:0:0:0:80ff:fffe",
    ],
)
async def test_an_address_that_is_not_public_is_refused_however_it_is_written(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    resolve, _ = answering([address])
    assert (
        await refusal(Outgoing(resolve=resolve), "https://idp.example.com/")
    ).code == "outgoing.not_allowed"
    literal = f"[{address}]" if ":" in address else address
    assert (await refusal(Outgoing(), f"https://{literal}/")).code == "outgoing.not_allowed"


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.1/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://127.0.0.1./",
        "https://017700000001./",
        "https://1.2.3.4.5/",
        "https://[::1%25lo]/",
        "https://[fe80::1%eth0]/",
        "https://user@idp.example.com/",
        "https://idp.example.com@127.0.0.1/",
        "https://idp.example.com\\@127.0.0.1/",
        "https://idp.example.com#@127.0.0.1/",
        "https://idp.example.com\t/",
        "https://idp.example.com\r\nhost: x/",
        "https:// idp.example.com/",
        "https://１２７.0.0.1/",
        "https://idp.example.com:0/",
        "https://idp.example.com:99999/",
        "https:///path",
        "https:idp.example.com",
        "file:///etc/passwd",
        "gopher://idp.example.com/",
        "//idp.example.com/",
        "https://-idp.example.com/",
        "https://" + "a" * 2000,
        "",
    ],
)
async def test_a_url_that_programs_read_differently_is_refused(url: str) -> None:
    resolve, asked = answering(["8.8.8.8"])
    assert (await refusal(Outgoing([LOOPBACK, "localhost"], resolve=resolve), url)).code == "outgoing.bad_url"
    assert asked == []


async def test_plain_http_is_refused_even_at_public_addresses() -> None:
    resolve, asked = answering(["8.8.8.8"])
    refused = await refusal(Outgoing(resolve=resolve), "http://idp.example.com/")
    assert refused.code == "outgoing.bad_url"
    assert "the setting outgoing_allow" in (refused.next_step or "")
    assert asked == []
    # Some network is allowed, so the address has to be known first.
    allowing = Outgoing(["10.0.0.0/8"], resolve=resolve)
    assert (await refusal(allowing, "http://idp.example.com/")).code == "outgoing.not_allowed"


async def test_one_address_that_is_not_public_among_others_is_enough() -> None:
    resolve, _ = answering(["8.8.8.8", "127.0.0.1"])
    assert (
        await refusal(Outgoing(resolve=resolve), "https://idp.example.com/")
    ).code == "outgoing.not_allowed"


async def test_the_host_is_resolved_once_and_the_checked_address_is_called() -> None:
    resolve, asked = answering(["127.0.0.1"], ["127.0.0.99"])
    async with serving(OK) as port:
        answer = await Outgoing([LOOPBACK], resolve=resolve).get(f"http://idp.example.com:{port}/x")
    assert (answer.status, answer.body, asked) == (200, b"{}", ["idp.example.com"])


class NameServer:
    """Answers with this machine, and for hosts below `slow.example` not until it is told to."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.questions = threading.Semaphore(0)
        self.answers = threading.Event()

    def getaddrinfo(self, host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        self.asked.append(host)
        self.questions.release()
        if host.endswith("slow.example"):
            self.answers.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.answers.set()


async def test_hosts_that_are_never_resolved_hold_up_only_those_who_named_them(names: NameServer) -> None:
    outgoing = Outgoing([LOOPBACK], seconds=3.0)
    async with serving(OK) as port:
        slow = [
            asyncio.create_task(refusal(outgoing.of("attacker"), f"http://{n}.slow.example:{port}/"))
            for n in range(40)
        ]
        await until_asked(names, lookups.MOST_OF_ONE)
        answer = await outgoing.of("other").get(f"http://fast.example:{port}/")
        assert answer.status == 200
        errors = await asyncio.gather(*slow)
    assert {error.code for error in errors} == {"outgoing.failed"}
    assert sum("name servers do not answer" in error.message for error in errors) == 40 - lookups.MOST_OF_ONE
    assert len([host for host in names.asked if host != "fast.example"]) == lookups.MOST_OF_ONE


async def test_a_host_is_looked_up_once_for_all_who_wait_for_it(names: NameServer) -> None:
    outgoing = Outgoing([LOOPBACK], seconds=5.0)
    async with serving(OK) as port:
        url = f"http://one.slow.example:{port}/"
        calls = [asyncio.create_task(outgoing.of(f"org{n % 2}").get(url)) for n in range(40)]
        given_up = asyncio.create_task(outgoing.of("org0").get(url))
        await until_asked(names, 1)
        given_up.cancel()
        names.answers.set()
        answers = await asyncio.gather(*calls)
    assert {answer.status for answer in answers} == {200}
    assert names.asked == ["one.slow.example"]


async def test_a_share_of_lookups_is_free_again_once_they_end(names: NameServer) -> None:
    outgoing = Outgoing([LOOPBACK], seconds=0.2).of("org")
    async with serving(OK) as port:
        await asyncio.gather(*(refusal(outgoing, f"http://{n}.slow.example:{port}/") for n in range(20)))
        names.answers.set()
        for n in range(20):
            assert (await outgoing.get(f"http://{n}.example:{port}/")).status == 200


async def test_there_are_only_so_many_lookups_in_all(
    names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups, "MOST_LOOKUPS", 3)
    outgoing = Outgoing([LOOPBACK], seconds=0.5)
    errors = await asyncio.gather(
        *(refusal(outgoing.of(f"org{n}"), f"http://{n}.slow.example/") for n in range(5))
    )
    assert sum("name servers do not answer" in error.message for error in errors) == 2
    assert len(names.asked) == 3


async def until_asked(names: NameServer, times: int) -> None:
    for _ in range(times):
        assert await asyncio.to_thread(names.questions.acquire, timeout=5)


async def test_the_setting_names_hosts_with_or_without_their_port() -> None:
    resolve, _ = answering(["127.0.0.1"])
    async with serving(OK) as port:
        url = f"http://IdP.corp:{port}/"
        for allowed in ("idp.corp", f"idp.corp:{port}", f"127.0.0.1:{port}"):
            assert (await Outgoing([allowed], resolve=resolve).get(url)).status == 200
        for other in ("corp", "idp.corp.evil.example", "idp.corp:1", "127.0.0.1:1", "10.0.0.0/8"):
            refused = await refusal(Outgoing([other], resolve=resolve), url)
            assert refused.code in ("outgoing.not_allowed", "outgoing.bad_url")


async def test_redirects_are_not_followed() -> None:
    async with serving(OK) as target:
        head = f"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{target}/\r\ncontent-length: 0\r\n\r\n"
        async with serving(head.encode()) as port:
            error = await refusal(Outgoing([f"127.0.0.1:{port}"]), f"http://127.0.0.1:{port}/")
    assert error.code == "outgoing.failed"
    assert "redirect" in error.message


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n",
    ],
)
async def test_an_endless_answer_is_cut_off(head: bytes) -> None:
    async with serving(head, b"x" * 65536, pause=0.001) as port:
        outgoing = Outgoing([LOOPBACK], longest_answer=200_000)
        async with asyncio.timeout(5):
            error = await refusal(outgoing, f"http://127.0.0.1:{port}/")
    assert "longer than 200000 bytes" in error.message


@pytest.mark.parametrize(
    "first", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"]
)
async def test_an_answer_that_trickles_in_is_given_up(first: bytes) -> None:
    trickle = b"x" if first.endswith(b"\r\n\r\n") else b"x-y: z\r\n"
    async with serving(first, trickle, pause=0.2) as port:
        async with asyncio.timeout(5):
            error = await refusal(Outgoing([LOOPBACK], seconds=0.5), f"http://127.0.0.1:{port}/")
    assert isinstance(error, PlatformError)


async def test_an_answer_that_unpacks_to_more_is_refused() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nxx"
    async with serving(head) as port:
        error = await refusal(Outgoing([LOOPBACK]), f"http://127.0.0.1:{port}/")
    assert "compressed" in error.message


async def test_what_is_no_http_is_an_error_of_the_other_side() -> None:
    async with serving(b"SSH-2.0-OpenSSH_9.9\r\n") as port:
        assert (await refusal(Outgoing([LOOPBACK]), f"http://127.0.0.1:{port}/")).code == "outgoing.failed"
    assert (await refusal(Outgoing([LOOPBACK]), f"http://127.0.0.1:{port}/")).code == "outgoing.failed"


async def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    resolve, _ = answering(["127.0.0.1"])
    async with serving(OK, tls=self_signed(tmp_path)) as port:
        outgoing = Outgoing(["idp.corp"], resolve=resolve)
        error = await refusal(outgoing, f"https://idp.corp:{port}/")
    assert error.code == "outgoing.failed"
    assert "Certificate" in error.message


def test_an_error_repeats_neither_a_password_nor_a_query() -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_url("https://ada:hunter2@idp.example.com/")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidInput) as caught:
        Outgoing().check("http://idp.example.com/?code=hunter2")
    assert "hunter2" not in str(caught.value)


def test_the_setting_is_checked_when_it_is_read() -> None:
    good = "idp.corp,idp.corp:8443,127.0.0.1:8080,10.0.0.0/8,[::1]:80"
    assert len(load(environment={"TRACEPLANE_OUTGOING_ALLOW": good}).outgoing_allow) == 5
    for bad in ("https://idp.corp", "idp corp", "10.0.0.0/99", "*", "1:2", "127.0.0.1:0"):
        with pytest.raises(InvalidInput):
            load(environment={"TRACEPLANE_OUTGOING_ALLOW": bad})


def self_signed(folder: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "idp.corp")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("idp.corp")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "idp.pem"
    file.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context
