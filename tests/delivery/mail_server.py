"""A real SMTP server (aiosmtpd) that refuses as it is told to, and one that only speaks given lines."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from email.message import EmailMessage

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

USER, PASSWORD = "ada", "correct horse battery staple"


@dataclass
class MailServer:
    """`answers`: what is said to these recipients; `on_data`: what is said to a mail."""

    answers: dict[str, str] = field(default_factory=dict)
    on_data: str = "250 OK"
    on_sender: str = "250 OK"
    port: int = 0
    envelopes: list[Envelope] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.on_sender.startswith("250"):
            envelope.mail_from = address
        return self.on_sender

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        answer = self.answers.get(address, "250 OK")
        if answer.startswith("250"):
            envelope.rcpt_tos.append(address)
        return answer

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.encrypted.append(session.ssl is not None)
        if self.on_data.startswith("250"):
            self.envelopes.append(envelope)
        return self.on_data

    @property
    def mails(self) -> list[EmailMessage]:
        mails = []
        for envelope in self.envelopes:
            assert isinstance(envelope.content, bytes)
            mails.append(email.message_from_bytes(envelope.content, policy=email.policy.default))
        return mails


def _authenticate(
    server: SMTP, session: Session, envelope: Envelope, mechanism: str, data: object
) -> AuthResult:
    assert isinstance(data, LoginPassword)
    is_right = (data.login, data.password) == (USER.encode(), PASSWORD.encode())
    return AuthResult(success=is_right, handled=False)


@contextlib.asynccontextmanager
async def serving_mail(
    server: MailServer,
    *,
    starttls: ssl.SSLContext | None = None,
    implicit: ssl.SSLContext | None = None,
    auth: bool = False,
) -> AsyncIterator[MailServer]:
    loop = asyncio.get_running_loop()

    def connection() -> SMTP:
        return SMTP(
            server,
            hostname="mail.test",
            tls_context=starttls,
            require_starttls=starttls is not None,
            authenticator=_authenticate if auth else None,
            auth_required=auth,
            auth_require_tls=starttls is not None,
            loop=loop,
        )

    listening = await loop.create_server(connection, "127.0.0.1", 0, ssl=implicit)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def talking(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that is told what to say; gives its port."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await talk(reader, writer)
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
