"""How clients reach a Spark Connect server: by its address, and with the certificates that it is trusted by."""

from __future__ import annotations

from typing import Any

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder


class Channel(DefaultChannelBuilder):
    """`authorities`: certificates in PEM, of which one has signed the server's; None: those that the system trusts."""

    def __init__(self, remote: str, options: list[tuple[str, Any]], authorities: str | None = None) -> None:
        super().__init__(remote, options)
        self._authorities = authorities

    def toChannel(self) -> grpc.Channel:
        if self._authorities is None or not self.secure:
            return super().toChannel()
        credentials = grpc.ssl_channel_credentials(self._authorities.encode())
        if self.token is not None:
            of_call = grpc.access_token_call_credentials(self.token)
            credentials = grpc.composite_channel_credentials(credentials, of_call)
        return self._secure_channel(self.endpoint, credentials)
