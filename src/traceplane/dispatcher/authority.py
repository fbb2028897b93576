"""Who may call: signing keys and tokens from Postgres, refreshed every few seconds."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from traceplane.auth.access import bearer
from traceplane.auth.capability import Capability, VerifiedCache
from traceplane.auth.keyring import Keyring
from traceplane.auth.opaque import Principal, TokenBook, TokenRecord
from traceplane.auth.second_look import SecondLook
from traceplane.auth.store import load_keyring, load_token_book
from traceplane.postgres import tokens
from traceplane.postgres.database import Database
from traceplane.runtime.process import Outcome
from traceplane.secrets.sealed_store import SealedStore
from traceplane.secrets.vault import Vault


class Authority:
    """Mints and checks tokens against the database's clock."""

    def __init__(
        self, database: Database, master_keys: Callable[[], Sequence[bytes]], vault: Vault | None = None
    ) -> None:
        self._database = database
        self._master_keys = master_keys
        self.vault = vault or Vault(SealedStore(master_keys))
        self._keyring = Keyring(())
        self._book = TokenBook(())
        self._second_look = SecondLook(self.refresh)
        self._clock_offset = 0.0
        self._cache = VerifiedCache(2_000)

    async def refresh(self) -> Outcome:
        async with self._database.transaction() as tx:
            self._keyring = await load_keyring(tx, self._master_keys())
            self._book = await load_token_book(tx)
            self._clock_offset = await tokens.clock(tx) - time.monotonic()
        return Outcome()

    @property
    def now(self) -> float:
        """The database's time, advanced by this process's monotonic clock between refreshes."""
        return time.monotonic() + self._clock_offset

    def worker(self, authorization: str | None) -> TokenRecord | Awaitable[TokenRecord]:
        token = bearer(authorization)
        return self._second_look.check(lambda: self._book.check(token, Principal.WORKER, self.now))

    def mint(self, capability: Capability) -> str:
        return self._cache.mint(capability, self._keyring, self.now)

    def capabilities(self, tokens: Sequence[str]) -> list[Capability]:
        return [self._cache.verify(token, self._keyring, self.now) for token in tokens]

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        return self._keyring.jwks(self.now)
