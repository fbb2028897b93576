"""Email over SMTP, with STARTTLS or TLS from the beginning.

The connection is made to an address that was checked, and the certificate must be that of the named host. A server
that does not offer STARTTLS gets neither mail nor password. The `Message-ID` follows from the key of the message, so
mail that arrives twice is recognized. If a server accepts some of the recipients, they get the mail, and the message
counts as delivered: to send it again would double it for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import socket
import ssl
from datetime import UTC, datetime
from email.header import Header
from email.message import EmailMessage
from email.policy import SMTP as SMTP_POLICY
from email.utils import format_datetime, quote
from typing import TYPE_CHECKING, Literal

import msgspec

from traceplane.delivery.outcome import REFUSED, Dead, Delivered, Outcome, Retry
from traceplane.delivery.secret_values import SecretValues, refer_to_secrets, secret_expected
from traceplane.errors import InvalidInput
from traceplane.http_service.outgoing import Outgoing
from traceplane.model.message import Message, cleaned, shortened

if TYPE_CHECKING:
    from aiosmtplib import SMTP

_MOST_RECIPIENTS, _LONGEST_SUBJECT, _LONGEST_NAME = 50, 200, 100
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_ADDRESS = re.compile(rf"(?=.{{3,254}}\Z)(?=[^@]{{1,64}}@){_ATOM}(?:\.{_ATOM})*@(?P<domain>[A-Za-z0-9.-]+)")
_DOMAIN = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?:\.(?!-)[A-Za-z0-9-]{1,63})*")
_ENCODED_WORD = "=?"
"""How a text begins that receivers show decoded, wherever in a header it is."""
_PORTS = {"implicit": 465, "starttls": 587, "none": 25}


class Mail(
    msgspec.Struct, tag_field="kind", tag="email", frozen=True, kw_only=True, forbid_unknown_fields=True
):
    host: str
    to: list[str]
    sender: str = msgspec.field(name="from")
    sender_name: str = msgspec.field(name="from_name", default="Traceplane")
    tls: Literal["starttls", "implicit", "none"] = "starttls"
    """`none`: only for servers that the setting `outgoing_allow` names."""
    port: int | None = None
    """Unset: 587, 465 or 25."""
    username: str | None = None
    password: str | None = None
    """`${secret:NAME}`."""


def check(config: Mail, outgoing: Outgoing) -> None:
    """Raises InvalidInput."""
    outgoing.check_mail_server(config.host, _port(config), tls=config.tls != "none")
    for address in (config.sender, *config.to):
        match = _ADDRESS.fullmatch(address)
        if match is None or not _DOMAIN.fullmatch(match["domain"]) or _ENCODED_WORD in address:
            raise InvalidInput(
                "delivery.bad_address",
                "this is not an email address, or not one in ASCII",
                value=ascii(address[:100]),
                next_step="write it like oncall@example.com",
            )
    if not 1 <= len(config.to) <= _MOST_RECIPIENTS or len(set(config.to)) < len(config.to):
        raise _bad(f"mail has 1 to {_MOST_RECIPIENTS} recipients, each once", str(len(config.to)))
    if len(config.sender_name) > _LONGEST_NAME or not config.sender_name.isprintable():
        raise _bad(
            "the name of the sender has characters that it cannot have", ascii(config.sender_name[:100])
        )
    if (config.username is None) is not (config.password is None):
        raise _bad("a user name needs a password, and a password needs a user name", None)
    if config.password is not None and not refer_to_secrets([config.password]):
        raise secret_expected("a password", "smtp_password")
    if config.password is not None and config.tls == "none":
        raise _bad("a password is sent over TLS only", config.tls)


async def send(
    message: Message, config: Mail, values: SecretValues, outgoing: Outgoing, now: float
) -> Outcome:
    import aiosmtplib

    tls = config.tls
    destination = outgoing.check_mail_server(config.host, _port(config), tls=tls != "none")
    username, password = (
        None if text is None else values.put_into(text) for text in (config.username, config.password)
    )
    mail = written(message, config, now)
    client = aiosmtplib.SMTP(
        hostname=config.host.removesuffix("."),
        use_tls=tls == "implicit",
        start_tls=tls == "starttls",
        tls_context=outgoing.tls,
        username=username,
        password=password,
        local_hostname=config.sender.rpartition("@")[2],  # not the name of this machine
        timeout=outgoing.seconds,
    )
    connection = await outgoing.connect(destination)
    try:
        async with asyncio.timeout(2 * outgoing.seconds):
            await client.connect(sock=connection)
            refused, _ = await client.sendmail(config.sender, config.to, mail)
        await _say_goodbye(client)
    except aiosmtplib.SMTPRecipientsRefused as error:
        answers = [(one.code, one.message) for one in error.recipients]
        # One that may be accepted later is reason enough to come back.
        return _refusal(*min(answers, key=lambda answer: answer[0] >= 500), values)
    except aiosmtplib.SMTPResponseException as error:
        return _refusal(error.code, error.message, values)
    except (aiosmtplib.SMTPException, OSError) as error:
        # A server without STARTTLS, or with a wrong certificate, may be somebody else's.
        return Retry("delivery.unavailable", values.reason(_failure(error)))
    finally:
        client.close()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # or TLS would wait for the other side to close, too
    if refused:
        codes = {address: answer.code for address, answer in refused.items()}
        return Delivered(values.reason(_refused_ones(codes)))
    return Delivered()


async def _say_goodbye(client: SMTP) -> None:
    """The mail is delivered, so nothing that goes wrong here matters."""
    import aiosmtplib

    with contextlib.suppress(aiosmtplib.SMTPException, OSError):
        async with asyncio.timeout(1):
            await client.quit()


def written(message: Message, config: Mail, now: float) -> bytes:
    """The mail as it is sent. Its headers are not left to the library, which decodes encoded words in what it is given,
    and so writes the line breaks that are hidden in them."""
    domain = config.sender.rpartition("@")[2]
    subject = " ".join(cleaned(f"[{message.severity}] {message.headline}").split())
    headers = {
        "From": f"{_name(config.sender_name)} <{config.sender}>",
        "To": ",\r\n ".join(config.to),
        "Subject": _words("Subject", shortened(subject, _LONGEST_SUBJECT)),
        "Date": format_datetime(datetime.fromtimestamp(now, UTC)),
        "Message-ID": _identifier(message.key, domain),
        "References": _identifier(f"incident:{message.incident}", domain),
        "Auto-Submitted": "auto-generated",
    }
    facts = "\n".join(f"{name}: {value}" for name, value in message.facts())
    parts = (message.text.strip(), facts, message.link or "")
    content = EmailMessage(policy=SMTP_POLICY)
    content.set_content("\n\n".join(part for part in parts if part) + "\n", cte="quoted-printable")
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return head.encode("ascii") + content.as_bytes()


def _words(header: str, text: str) -> str:
    """One line of text as receivers show it: encoded if it is not ASCII, or if they would decode a part of it."""
    charset = "us-ascii" if text.isascii() and _ENCODED_WORD not in text else "utf-8"
    return Header(text, charset, header_name=header).encode(linesep="\r\n")


def _name(text: str) -> str:
    if text.isascii() and _ENCODED_WORD not in text:
        return f'"{quote(text)}"'
    return _words("From", text)


def _identifier(key: str, domain: str) -> str:
    return f"<{hashlib.sha256(key.encode()).hexdigest()[:40]}@{domain}>"


def _refusal(code: int, words: str, values: SecretValues) -> Outcome:
    """The library reports what it could not understand as a code below 0."""
    reason = values.reason(f"the mail server answered {code}: {words}")
    if 500 <= code < 600:
        return Dead(REFUSED, reason, code)
    return Retry("delivery.unavailable", reason, status=code)


def _failure(error: Exception) -> str:
    """`error`: of the mail library, which wraps those of TLS, or of the connection."""
    import aiosmtplib

    causes = (error, error.__cause__, error.__context__)
    untrusted = next((one for one in causes if isinstance(one, ssl.SSLCertVerificationError)), None)
    if untrusted is not None:
        return f"the certificate of the mail server is not trusted: {untrusted.verify_message}"
    if isinstance(error, TimeoutError):
        return "the mail server did not answer in time"
    if "STARTTLS" in str(error):
        return "the mail server does not offer STARTTLS; write `tls: implicit` if it takes TLS from the beginning"
    if any(isinstance(one, ssl.SSLError) for one in causes):
        return "the mail server does not speak TLS as it should; `tls` may be `starttls` or `implicit`"
    if isinstance(error, (aiosmtplib.SMTPNotSupported, aiosmtplib.SMTPAuthenticationError)):
        return f"the mail server cannot be used: {error}"
    if isinstance(error, (aiosmtplib.SMTPServerDisconnected, ConnectionError)):
        return "the mail server closed the connection"
    return f"the mail server failed: {error}"


def _refused_ones(codes: dict[str, int]) -> str:
    return "not accepted: " + ", ".join(f"{address} ({code})" for address, code in sorted(codes.items()))


def _port(config: Mail) -> int:
    return config.port if config.port is not None else _PORTS[config.tls]


def _bad(message: str, value: str | None) -> InvalidInput:
    return InvalidInput("delivery.bad_channel", message, value=value, next_step="correct the channel")
