"""Email: encrypted or not at all, to the recipients of the channel and nobody else, recognized if it arrives twice."""

from __future__ import annotations

import asyncio
import base64
import email
import ipaddress
from dataclasses import replace
from email.header import decode_header, make_header
from typing import Any

import msgspec
import pytest

from tests.certificates import Authority
from tests.delivery.mail_server import PASSWORD, USER, MailServer, serving_mail, talking
from tests.delivery.messages import MESSAGE, NOW, channels, dead, refusal, retry, sent
from tests.delivery.receiver import until_closed
from tests.ports import free_port
from traceplane.delivery.channels.mail import Mail
from traceplane.delivery.outcome import Delivered
from traceplane.model.message import Kind, shortened

MAIL = Mail(host="127.0.0.1", tls="none", sender="alerts@x.example", to=["oncall@x.example", "b@x.example"])


def to(port: int, **changes: Any) -> Mail:
    return msgspec.structs.replace(MAIL, port=port, **changes)


async def test_mail_arrives_with_its_facts() -> None:
    async with serving_mail(MailServer()) as server:
        channels().check(to(server.port))
        assert await sent(to(server.port)) == Delivered()
    (mail,), (envelope,) = server.mails, server.envelopes
    assert envelope.mail_from == "alerts@x.example"
    assert envelope.rcpt_tos == ["oncall@x.example", "b@x.example"]
    (sender,) = mail["from"].addresses
    assert (sender.display_name, sender.addr_spec) == ("Traceplane", "alerts@x.example")
    assert mail["to"] == "oncall@x.example, b@x.example"
    assert mail["subject"] == "[critical] AAPL dropped"
    assert mail["auto-submitted"] == "auto-generated"
    assert mail.get_content().splitlines() == [
        "AAPL dropped by 5 %",
        "",
        "severity: critical",
        "ticker: AAPL",
        "price: 101.10",
        "title: a column",
        "volume: 7",
        "time: 2026-11-18T06:30:00Z",
        "",
        "https://traceplane.example/alerts/1?a=1&b=2",
    ]


async def test_mail_that_is_sent_again_is_recognized_and_a_retraction_is_another() -> None:
    async with serving_mail(MailServer()) as server:
        await sent(to(server.port))
        await sent(to(server.port), by=channels(now=NOW + 60))
        retraction = replace(MESSAGE, key="another", kind=Kind.RETRACTION)
        await sent(to(server.port), retraction)
    first, second, third = server.mails
    assert first["message-id"] == second["message-id"] != third["message-id"]
    assert first["message-id"].endswith("@x.example>")
    assert first["references"] == third["references"]
    assert third["subject"] == "[critical] Retracted: AAPL dropped"


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_mail_and_password_are_encrypted(tls: str, authority: Authority) -> None:
    async with serving_mail(MailServer(), **{tls: authority.server()}, auth=tls == "starttls") as server:
        channel = to(server.port, tls=tls)
        if tls == "starttls":
            channel = msgspec.structs.replace(channel, username=USER, password="${secret:smtp}")
        by = channels(tls=authority.trust())
        by.check(channel)
        assert await sent(channel, by=by, smtp=PASSWORD) == Delivered()
    assert len(server.mails) == 1
    if tls == "starttls":
        assert server.encrypted == [True]


async def test_a_wrong_password_is_dead_and_not_repeated(authority: Authority) -> None:
    async with serving_mail(MailServer(), starttls=authority.server(), auth=True) as server:
        channel = to(server.port, tls="starttls", username=USER, password="${secret:smtp}")
        outcome = dead(await sent(channel, by=channels(tls=authority.trust()), smtp="hunter2hunter2"))
    assert "535" in outcome.reason
    assert "hunter2" not in outcome.reason
    assert server.envelopes == []


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
async def test_a_certificate_that_is_not_the_hosts_gets_nothing(tls: str, authority: Authority) -> None:
    async def resolve(host: str, port: int) -> list[Any]:
        return [ipaddress.ip_address("127.0.0.1")]

    options: dict[str, Any] = {tls: authority.server()}
    async with serving_mail(MailServer(), **options) as server:
        untrusting = channels()
        assert "is not trusted" in retry(await sent(to(server.port, tls=tls), by=untrusting)).reason
        other_name = channels(tls=authority.trust(), resolve=resolve)
        retry(await sent(to(server.port, tls=tls, host="mail.corp"), by=other_name))
    assert server.envelopes == []


async def test_a_server_without_starttls_gets_nothing() -> None:
    async with serving_mail(MailServer()) as server:
        channel = to(server.port, tls="starttls", username=USER, password="${secret:smtp}")
        assert "does not offer STARTTLS" in retry(await sent(channel, smtp=PASSWORD)).reason
    assert server.envelopes == []


async def test_what_is_said_before_encryption_is_not_taken_for_an_answer_after_it(
    authority: Authority,
) -> None:
    """Somebody between us and the server could otherwise answer in its place."""
    context, said = authority.server(), []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.test\r\n")
        await reader.readline()
        writer.write(b"250-mail.test\r\n250 STARTTLS\r\n")
        await reader.readline()
        writer.write(b"220 go\r\n250-injected\r\n250 AUTH PLAIN\r\n")
        await writer.drain()
        await writer.start_tls(context)
        said.append(await reader.readline())
        writer.write(b"250 mail.test\r\n")
        while line := await reader.readline():
            said.append(line)
            writer.write(b"502 no\r\n")

    async with talking(talk) as port:
        channel = to(port, tls="starttls", username=USER, password="${secret:smtp}")
        outcome = await sent(channel, by=channels(tls=authority.trust(), seconds=2), smtp=PASSWORD)
    assert not isinstance(outcome, Delivered)
    # It greets anew, and the real server offers no way to sign in.
    assert said == [b"EHLO x.example\r\n"]


@pytest.mark.parametrize(
    ("answers", "is_dead"),
    [
        (("450 4.2.0 greylisted", "450 4.2.0 greylisted"), False),
        (("550 5.1.1 unknown", "550 5.1.1 unknown"), True),
        (("550 5.1.1 unknown", "450 4.2.0 greylisted"), False),
    ],
)
async def test_recipients_that_are_refused(answers: tuple[str, str], is_dead: bool) -> None:
    async with serving_mail(MailServer(dict(zip(MAIL.to, answers, strict=True)))) as server:
        outcome = await sent(to(server.port))
    if is_dead:
        assert dead(outcome).reason == "the mail server answered 550: 5.1.1 unknown"
    else:
        assert retry(outcome).reason == "the mail server answered 450: 4.2.0 greylisted"
    assert server.envelopes == []


async def test_one_recipient_that_is_refused_does_not_keep_the_mail_from_the_others() -> None:
    async with serving_mail(MailServer({"b@x.example": "550 5.1.1 unknown"})) as server:
        outcome = await sent(to(server.port))
    assert outcome == Delivered("not accepted: b@x.example (550)")
    assert server.envelopes[0].rcpt_tos == ["oncall@x.example"]


@pytest.mark.parametrize(("code", "is_dead"), [(451, False), (452, False), (552, True), (554, True)])
@pytest.mark.parametrize("where", ["on_data", "on_sender"])
async def test_4xx_is_tried_again_and_5xx_is_dead(code: int, is_dead: bool, where: str) -> None:
    async with serving_mail(MailServer(**{where: f"{code} words"})) as server:  # type: ignore[arg-type]
        outcome = await sent(to(server.port))
    dead(outcome) if is_dead else retry(outcome)


LINES = {
    "silent": b"",
    "closes": None,
    "busy": b"421 busy\r\n",
    "not_smtp": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "endless_line": b"220 " + b"x" * 100_000,
    "endless_lines": b"220-x\r\n" * 100_000,
    "greets_only": b"220 mail.test\r\n",
    "zeros": b"\x00" * 100 + b"\r\n",
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("tls", ["none", "starttls", "implicit"])
async def test_a_server_that_misbehaves_is_tried_again(name: str, tls: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = LINES[name]
        if lines is not None:
            writer.write(lines)
            await writer.drain()
            await asyncio.Event().wait()

    async with talking(talk) as port, asyncio.timeout(10):
        retry(await sent(to(port, tls=tls), by=channels(seconds=0.5)))


async def test_a_server_that_hangs_after_the_mail_is_tried_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"220 hi", b"250 hi", b"250 ok", b"250 ok", b"250 ok", b"354 go"):
            writer.write(answer + b"\r\n")
            await reader.readline()
        await asyncio.Event().wait()

    async with talking(talk) as port, asyncio.timeout(10):
        retry(await sent(to(port), by=channels(seconds=0.5)))


async def test_a_server_that_hangs_keeps_no_connection(authority: Authority) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hi\r\n")
        await reader.readline()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async with talking(talk, authority.server()) as port:
        by = channels(seconds=0.5, tls=authority.trust())
        retry(await sent(to(port, tls="implicit"), by=by))
        await until_closed(port)


async def test_a_server_that_hangs_after_accepting_the_mail_does_not_get_it_again() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (b"220 hi", b"250 hi", b"250 ok", b"250 ok", b"250 ok", b"354 go"):
            writer.write(answer + b"\r\n")
            await reader.readline()
        await reader.readuntil(b"\r\n.\r\n")
        writer.write(b"250 accepted\r\n")
        await asyncio.Event().wait()

    async with talking(talk) as port, asyncio.timeout(10):
        assert await sent(to(port)) == Delivered()


async def test_nobody_there_is_tried_again() -> None:
    retry(await sent(to(free_port())), "outgoing.failed")


async def test_identifiers_arrive_as_they_are_however_long_the_domain() -> None:
    domain = ".".join(["x" * 60] * 3) + ".example"
    async with serving_mail(MailServer()) as server:
        assert await sent(to(server.port, sender=f"alerts@{domain}")) == Delivered()
    (content,) = (envelope.content for envelope in server.envelopes)
    assert isinstance(content, bytes)
    headers = dict(
        line.split(b": ", 1) for line in content.split(b"\r\n\r\n")[0].splitlines() if b": " in line
    )
    for name in (b"Message-ID", b"References"):
        assert headers[name].startswith(b"<")
        assert headers[name].endswith(f"@{domain}>".encode())


HOSTILE = (
    "x\r\nBcc: evil@x.example\r\n\r\nbody\r\n.\r\nMAIL FROM:<evil@x.example>\x00\x85\u2028Bcc: e@x.example"
)


async def test_nothing_in_a_message_ends_a_header_or_the_mail() -> None:
    message = replace(
        MESSAGE, title=HOSTILE, text=HOSTILE + "\n.\n..\nFrom x\n", subject={HOSTILE: HOSTILE}, alert=HOSTILE
    )
    async with serving_mail(MailServer()) as server:
        assert await sent(to(server.port), message) == Delivered()
    (mail,), (envelope,) = server.mails, server.envelopes
    assert envelope.rcpt_tos == MAIL.to
    assert mail["bcc"] is None
    assert len(mail.get_all("subject", [])) == 1
    lines = mail.get_content().splitlines()
    assert "." in lines
    assert ".." in lines


INJECTED = (
    "Hi\r\nReply-To: evil@x.example\r\nContent-Type: text/html\r\n\r\n<a href=https://x.example>Sign in</a>"
)
IN_BASE64 = f"=?utf-8?b?{base64.b64encode(INJECTED.encode()).decode()}?="
QUOTED = "=?utf-8?q?Hi=0D=0AReply-To:_evil@x.example=0D=0AContent-Type:_text/html=0D=0A=0D=0A<a>?="
ENCODED_WORDS = {
    "base64": IN_BASE64,
    "quoted": QUOTED,
    "upper_case": QUOTED.upper(),
    "with_a_language": QUOTED.replace("utf-8", "utf-8*en"),
    "folded": QUOTED.replace("=0D=0AContent", "?=\r\n =?utf-8?q?=0D=0AContent"),
    "within_a_word": f"x{QUOTED}y",
    "between_others": f"a {QUOTED} b {IN_BASE64} ü {QUOTED}",
    "nested": f"=?utf-8?b?{base64.b64encode(QUOTED.encode()).decode()}?=",
    "split": "=?utf-8?q?Hi=0D?= =?utf-8?q?=0ABcc:_evil@x.example?=",
    "unfinished": "=?utf-8?q?Hi=0D=0ABcc:_evil@x.example",
    "another_charset": "=?utf-7?q?Hi+AA0ACg-Bcc:_evil@x.example?=",
    "long": QUOTED * 10,
}
OWN_HEADERS = [
    *("From", "To", "Subject", "Date", "Message-ID", "References", "Auto-Submitted"),
    *("Content-Type", "Content-Transfer-Encoding", "MIME-Version"),
]


@pytest.mark.parametrize("hostile", ENCODED_WORDS.values(), ids=list(ENCODED_WORDS))
@pytest.mark.parametrize("where", ["title", "name_of_the_sender"])
async def test_encoded_words_in_a_text_are_shown_as_they_are_written(hostile: str, where: str) -> None:
    """To decode them would put their line breaks into the head of the mail, and end it."""
    hostile = " ".join(hostile.split())
    in_title = where == "title"
    async with serving_mail(MailServer()) as server:
        channel = to(server.port) if in_title else to(server.port, sender_name=hostile[:100])
        channels().check(channel)
        message = replace(MESSAGE, title=hostile if in_title else "x")
        assert await sent(channel, message) == Delivered()
    (mail,), (envelope,) = server.mails, server.envelopes
    assert sorted(mail.keys()) == sorted(OWN_HEADERS)
    assert mail.get_content_type() == "text/plain"
    assert mail.get_content().startswith("AAPL dropped by 5 %")
    assert isinstance(envelope.content, bytes)
    older = email.message_from_bytes(envelope.content)
    (sender,) = mail["from"].addresses
    if in_title:
        shown = shortened(f"[critical] {hostile}", 200)
        assert mail["subject"] == shown
        assert str(make_header(decode_header(older["subject"]))) == shown
    else:
        # Some versions of Python show a space between the encoded words of a name.
        assert sender.display_name.replace(" ", "") == hostile[:100].replace(" ", "")
        assert sender.addr_spec == "alerts@x.example"
        assert str(make_header(decode_header(older["from"]))) == f"{hostile[:100]} <alerts@x.example>"


async def test_many_recipients_are_named_on_lines_of_a_usual_length() -> None:
    addresses = [f"{'x' * 50}{number}@x.example" for number in range(50)]
    async with serving_mail(MailServer()) as server:
        assert await sent(to(server.port, to=addresses)) == Delivered()
    (mail,), (envelope,) = server.mails, server.envelopes
    assert [address.addr_spec for address in mail["to"].addresses] == addresses
    assert isinstance(envelope.content, bytes)
    assert max(map(len, envelope.content.split(b"\r\n"))) <= 78


async def test_long_lines_and_other_alphabets_arrive() -> None:
    title, text = "Падение 🚨 " * 20, "Ü" * 5000 + "\n" + "🚨" * 3000
    async with serving_mail(MailServer()) as server:
        assert await sent(to(server.port), replace(MESSAGE, title=title, text=text)) == Delivered()
    (mail,), (envelope,) = server.mails, server.envelopes
    assert isinstance(envelope.content, bytes)
    assert max(map(len, envelope.content.split(b"\r\n"))) < 998
    assert envelope.content.isascii()
    assert mail["subject"].startswith("[critical] Падение 🚨")
    assert mail["subject"].endswith("characters)")
    assert mail.get_content().replace("\r\n", "\n").startswith(text)


async def test_huge_messages_arrive_cut() -> None:
    message = replace(MESSAGE, text="x" * 10**7, subject={f"c{n}": "y" * 10**5 for n in range(500)})
    async with serving_mail(MailServer()) as server:
        assert await sent(to(server.port), message) == Delivered()
    assert isinstance(server.envelopes[0].content, bytes)
    assert len(server.envelopes[0].content) < 200_000


@pytest.mark.parametrize(
    "address",
    [
        "a@x.example\r\nRCPT TO:<evil@x.example>",
        "a@x.example\n",
        "a@x.example>",
        "a b@x.example",
        "a@x.example,b@x.example",
        "Ada <a@x.example>",
        '"a b"@x.example',
        "a@b@x.example",
        "@x.example",
        "a@",
        "a",
        "",
        ".a@x.example",
        "a..b@x.example",
        "é@x.example",
        "a@é.example",
        "a@-x.example",
        "a@x..example",
        "a@[127.0.0.1]",
        "a" * 65 + "@x.example",
        "a@" + "x" * 300,
        "a@x.example SIZE=1",
        "=?utf-8?q?x=0D=0ABcc:?=@x.example",
        "\x00@x.example",
    ],
)
def test_addresses_are_checked_when_they_are_defined(address: str) -> None:
    for channel in (
        msgspec.structs.replace(MAIL, to=[address]),
        msgspec.structs.replace(MAIL, sender=address),
    ):
        assert refusal(channel).code == "delivery.bad_address"


@pytest.mark.parametrize(
    "address", ["a+b@x.example", "a.b_c@x-y.example", "a@localhost", "o'brien@x.example"]
)
def test_usual_addresses_are_accepted(address: str) -> None:
    channels().check(msgspec.structs.replace(MAIL, to=[address], sender=address))


@pytest.mark.parametrize(
    "changes",
    [
        {"to": []},
        {"to": [f"a{number}@x.example" for number in range(51)]},
        {"to": ["a@x.example", "a@x.example"]},
        {"sender_name": "x\r\nBcc: evil@x.example"},
        {"sender_name": "x" * 101},
        {"username": "ada"},
        {"password": "${secret:smtp}"},
        {"username": "ada", "password": "${secret:smtp}", "tls": "none"},
    ],
)
def test_channels_are_checked_when_they_are_defined(changes: dict[str, Any]) -> None:
    assert refusal(msgspec.structs.replace(MAIL, **changes)).code == "delivery.bad_channel"


def test_a_password_is_a_secret() -> None:
    channel = msgspec.structs.replace(MAIL, tls="starttls", username="ada", password="hunter2")
    refused = refusal(channel)
    assert refused.code == "delivery.secret_expected"
    assert "hunter2" not in str(refused)


async def test_odd_names_of_senders_arrive() -> None:
    async with serving_mail(MailServer()) as server:
        channel = to(server.port, sender_name='Ünal, "the" <b@x.example>')
        channels().check(channel)
        assert await sent(channel) == Delivered()
    (sender,) = server.mails[0]["from"].addresses
    assert (sender.display_name, sender.addr_spec) == ('Ünal, "the" <b@x.example>', "alerts@x.example")
