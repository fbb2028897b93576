"""TLS by certificate files, which may be renewed while the service runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traceplane import telemetry
from traceplane.errors import InvalidInput
from traceplane.runtime.process import describe
from traceplane.settings import Settings

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_READ_BYTES = 256 * 1024


class ServerCertificate:
    """The certificate of a service. Each new connection gets `context`, the one that was loaded last."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Refuses files that no caller could use."""
        self._certificate, self._key = certificate, key
        self._seen = self._state()
        self.context = self._load()

    @classmethod
    def of(cls, settings: Settings) -> ServerCertificate | None:
        if settings.tls_certificate is None or settings.tls_key is None:
            return None
        return cls(settings.tls_certificate, settings.tls_key)

    def renew(self) -> bool:
        """Loads files that have changed; says whether it did. If they are bad, the old certificate stays."""
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self.context = self._load()
        except InvalidInput as error:
            # Both files cannot be replaced at the same instant, so this may pass with the next change.
            telemetry.emit(
                "tls.not_renewed", "warning", certificate=str(self._certificate), **describe(error)
            )
            return False
        telemetry.emit("tls.renewed", certificate=str(self._certificate))
        return True

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_file_state(path) for path in (self._certificate, self._key))

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(["http/1.1"])
        for path in (self._certificate, self._key):
            try:
                path.read_bytes()
            except OSError as error:
                raise _unusable(path, f"cannot be read: {error.strerror}") from error
        try:
            # Without a password function, OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self._certificate, self._key, password=lambda: "")
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise _unusable(self._key, "is not the key of the certificate") from error
            raise _unusable(self._bad_file(), "is not PEM, or is encrypted") from error
        if (end := _certificate(self._certificate).not_valid_after_utc) <= datetime.now(UTC):
            raise _unusable(self._certificate, f"expired at {end:%Y-%m-%d %H:%M} UTC")
        return context

    def _bad_file(self) -> Path:
        try:
            _certificate(self._certificate)
        except ValueError:
            return self._certificate
        return self._key


class TlsTransport(asyncio.Transport):
    """A connection's transport that encrypts what it writes.

    It exists from the moment the connection is accepted, so that a connection that never finishes its handshake is
    counted, and ended in time, like any other.
    """

    def __init__(self, raw: asyncio.Transport, context: ssl.SSLContext) -> None:
        super().__init__()
        self._raw, self._context = raw, context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_open = False  # whether the handshake is complete

    def decrypted(self, data: bytes) -> Iterator[bytes]:
        """What a caller said, given what arrived."""
        self._incoming.write(data)
        try:
            if not self._is_open:
                self._tls.do_handshake()
                self._is_open = True
            while not self._raw.is_closing():
                self._send()
                piece = self._tls.read(_READ_BYTES)
                if not piece:
                    self.close()
                    return
                yield piece
        except ssl.SSLWantReadError:
            self._send()
        except ssl.SSLError:  # not TLS, no version in common, or the caller ends
            self._send()  # the alert, if there is one
            self._raw.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not data or not self._is_open or self._raw.is_closing():
            return  # nobody could read it
        self._tls.write(data)
        self._send()

    def _send(self) -> None:
        if self._outgoing.pending and not self._raw.is_closing():
            self._raw.write(self._outgoing.read())

    def close(self) -> None:
        if self._is_open and not self._raw.is_closing():
            with contextlib.suppress(ssl.SSLError):  # it would wait for the other side's farewell
                self._tls.unwrap()
            self._send()
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._context if name == "sslcontext" else self._raw.get_extra_info(name, default)


def _file_state(path: Path) -> tuple[int, int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


def _certificate(path: Path) -> Certificate:
    from cryptography import x509  # slow to import, and a service without TLS does not need it

    return x509.load_pem_x509_certificate(path.read_bytes())


def _unusable(path: Path, reason: str) -> InvalidInput:
    return InvalidInput(
        "tls.certificate_unusable",
        f"the file {reason}",
        value=str(path),
        next_step="set tls_certificate to a PEM file with the certificate and its chain, and tls_key to its key",
    )
