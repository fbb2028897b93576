"""Provides children for tasks: keeps the fork server running and its slots open.

A lost slot is reopened. A fork server that dies is replaced once no process of its slots is left; if it keeps dying,
requests for a child fail with `sandbox.unavailable`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import time
from collections.abc import Hashable
from pathlib import Path

from traceplane import telemetry
from traceplane.errors import PlatformError
from traceplane.sandbox import confinement
from traceplane.sandbox.confinement import Isolation
from traceplane.sandbox.frames import Configure
from traceplane.sandbox.idle_slots import IdleSlots
from traceplane.sandbox.sandbox_settings import SandboxSettings
from traceplane.sandbox.server import SandboxServer
from traceplane.sandbox.slot import Child, Slot
from traceplane.sandbox.staging import TempFolder

_RESTARTS_ALLOWED = 5
_RESTART_WINDOW_SECONDS = 30.0
_TEND_SECONDS = 1.0


class SlotSupply:
    def __init__(self, settings: SandboxSettings, folder: Path, uids: list[int]) -> None:
        self._settings = settings
        self._folder = folder
        self._uids = uids
        self._server: SandboxServer | None = None
        self._slots: dict[int, Slot] = {}
        self._idle = IdleSlots(settings.child_seconds)
        self._watchers: list[asyncio.Task[None]] = []
        self._numbers = itertools.count(1)
        self._deaths: list[float] = []
        self._unavailable: PlatformError | None = None
        self.isolation = Isolation((), {})

    @property
    def server_pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    async def start(self) -> None:
        """Raises PlatformError `sandbox.too_weak`."""
        await self._start_server()
        self._watchers = [
            asyncio.create_task(self._keep_server_running()),
            asyncio.create_task(self._tend_idle_children()),
        ]

    async def close(self) -> None:
        """Pending and later requests for a child fail with `sandbox.closed`."""
        self._unavailable = PlatformError("sandbox.closed", "the sandbox is closed")
        self._idle.wake_all()
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(slot.end() for slot in list(self._slots.values())))
        self._slots.clear()
        if self._server is not None:
            await self._server.stop()

    async def take(self, job: Hashable) -> tuple[Slot, Child]:
        """A child that may run a task of this job; for None, a fresh one."""
        while True:
            if self._unavailable is not None:
                raise self._unavailable
            if (taken := await self._idle.take(job)) is not None:
                return taken

    def is_awaited(self, job: Hashable) -> bool:
        """Whether a task of this job waits for a child."""
        return self._idle.waits(job)

    async def _tend_idle_children(self) -> None:
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            self._idle.tend()

    # --- slots ------------------------------------------------------------------------------------

    def _open_slot(self, index: int) -> None:
        assert self._server is not None
        uid = self._uids[index] if self._uids and self.isolation.has(confinement.UID_SLOTS) else None
        self._slots[index] = Slot(
            index,
            uid,
            self._server.open_slot(index, uid),
            make_temp=functools.partial(self._make_temp, uid),
            on_ready=self._idle.add,
            on_lost=self._on_slot_lost,
        )

    def _make_temp(self, uid: int | None) -> TempFolder:
        return TempFolder(self._folder / "runs" / str(next(self._numbers)), uid)

    def _on_slot_lost(self, slot: Slot) -> None:
        self._idle.forget(slot)
        if self._slots.get(slot.index) is not slot:
            return
        del self._slots[slot.index]
        if self._unavailable is None:
            telemetry.emit("sandbox.slot_lost", "warning", slot=slot.index)
            with contextlib.suppress(OSError):  # the fork server is gone too; its watcher starts another
                self._open_slot(slot.index)

    # --- the fork server --------------------------------------------------------------------------

    async def _start_server(self) -> None:
        settings = self._settings
        configure = Configure(
            folder=str(self._folder),
            network=settings.network,
            uids=self._uids,
            disabled=sorted(settings.disabled_layers),
            preload=list(settings.preload),
            hidden=[str(self._folder), *(os.path.realpath(path) for path in settings.hidden)],
        )
        self._server = await SandboxServer.start(configure, settings.private_network)
        self.isolation = self._server.isolation
        settings.refuse_weakness(self.isolation.weakness())
        for index in range(settings.slots):
            self._open_slot(index)

    async def _keep_server_running(self) -> None:
        while self._unavailable is None and self._server is not None:
            code = await self._server.wait()
            telemetry.emit("sandbox.server_died", "error", exit_code=code)
            now = time.monotonic()
            self._deaths = [t for t in self._deaths if now - t < _RESTART_WINDOW_SECONDS] + [now]
            try:
                if len(self._deaths) > _RESTARTS_ALLOWED:
                    value = f"exit code {code}"
                    raise PlatformError("sandbox.unavailable", "the fork server keeps dying", value=value)
                await self._replace_server(self._server)
            except PlatformError as error:
                self._unavailable = error
                self._idle.wake_all()

    async def _replace_server(self, dead: SandboxServer) -> None:
        """Its slots end with it; wait for that, so that their uids are free of processes."""
        lost, self._slots = list(self._slots.values()), {}
        for slot in lost:
            self._idle.forget(slot)
        await asyncio.gather(*(slot.end() for slot in lost))
        await dead.stop()
        await self._start_server()
