"""`traceplane doctor` and `traceplane trigger doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import asyncio
import collections
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPResponse
from pathlib import Path

import click
import msgspec

from traceplane import __version__
from traceplane.cli.output import as_json, say, say_json
from traceplane.cli.services import with_database
from traceplane.cli.trigger import trigger
from traceplane.cli.whereabouts import call
from traceplane.client.connection import Connection
from traceplane.client.local_platform import running_here
from traceplane.errors import TraceplaneError
from traceplane.model.finding import Finding
from traceplane.runtime.process import listen
from traceplane.settings import Settings, with_unprefixed
from traceplane.wire.health import HealthResponse
from traceplane.wire.people import WhoAmI

_MARKS = {"ok": "ok     ", "warning": "look at", "problem": "PROBLEM"}
_LOW_DISK_BYTES = 2 << 30
_LOW_MEMORY_BYTES = 2 << 30
"""A Spark worker takes about one, and its tasks as much again."""
_CLOCK_SECONDS = 5
_PATIENCE_SECONDS = 10


@click.command()
@as_json
@click.pass_obj
def doctor(settings: Settings, as_json: bool) -> None:
    """Examine this machine and the platform, and say what to do; exit code 1 if there is a problem."""
    _report([*_of_this_machine(settings), *_of_the_platform(settings)], as_json)


@trigger.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.pass_obj
def trigger_doctor(settings: Settings, as_json: bool) -> None:
    """Say why pipelines are not triggered; exit code 1 if there is a problem."""
    from traceplane.postgres.database import Database
    from traceplane.trigger import doctor as examination

    chosen = with_database(with_unprefixed(settings))

    async def examine() -> list[Finding]:
        assert chosen.state_url is not None
        database = await Database.connect(chosen.state_url, connections=1)
        try:
            return await examination.examine(chosen, database)
        finally:
            await database.close()

    _report(asyncio.run(examine()), as_json)


def _report(findings: Iterable[Finding], as_json: bool) -> None:
    findings = list(findings)
    if as_json:
        say_json(findings)
    else:
        for finding in findings:
            say(f"{_MARKS[finding.level]}  {finding.sentence}")
            if finding.next_step is not None:
                say(f"         → {finding.next_step}")
    if any(finding.level == "problem" for finding in findings):
        raise SystemExit(1)


def _of_this_machine(settings: Settings) -> Iterator[Finding]:
    yield _python()
    yield _java()
    yield _memory(Path("/proc/meminfo"))
    yield _disk(settings.home)
    if running_here(settings) is None and settings.gateway_url is None:
        yield from _ports(settings)


def _python() -> Finding:
    return Finding("ok", "python", f"Traceplane {__version__} on Python {platform.python_version()}.")


def _memory(file: Path) -> Finding:
    """Of what Linux says is free to use."""
    fields = dict(re.findall(r"(\w+): +(\d+) kB", file.read_text()))
    total, available = (int(fields[name]) << 10 for name in ("MemTotal", "MemAvailable"))
    sentence = f"{_gib(available)} of {_gib(total)} of memory are available."
    if available >= _LOW_MEMORY_BYTES:
        return Finding("ok", "memory", sentence)
    step = "close other programs, or run without Spark: `traceplane up --no-spark`"
    return Finding("warning", "memory_low", sentence, step)


def _ports(settings: Settings) -> Iterator[Finding]:
    """Of `traceplane up`, which does not run here."""
    taken = []
    for name in ("dispatcher_port", "gateway_port"):
        port = getattr(settings, name)
        try:
            listen(settings.host, port).close()
        except TraceplaneError:
            taken.append(f"{port} ({name})")
    if not taken:
        yield Finding("ok", "ports", "The ports of `traceplane up` are free.")
        return
    step = (
        "stop what listens there, or set other ports; if it is a platform, go to the folder that it runs in"
    )
    yield Finding("warning", "port_in_use", f"Another process listens on {', '.join(taken)}.", step)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def _java() -> Finding:
    from traceplane.dataplane.java import find_java

    try:
        java = find_java()
    except TraceplaneError as error:
        return Finding("problem", error.code, f"Spark cannot start here: {error.message}", error.next_step)
    skipped = f" ({java.skipped})" if java.skipped else ""
    return Finding("ok", "java", f"Spark runs on Java {java.version} of {java.source}{skipped}.")


def _disk(home: Path) -> Finding:
    existing = next(folder for folder in (home.absolute(), *home.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    sentence = f"{_gib(free)} are free for {home}."
    if free >= _LOW_DISK_BYTES:
        return Finding("ok", "disk", sentence)
    step = "make room, collect what nobody reads any more with `traceplane gc`, or choose another folder with --home"
    return Finding("problem", "disk_low", sentence, step)


def _of_the_platform(settings: Settings) -> Iterator[Finding]:
    here = running_here(settings)
    try:
        caller = call(settings, lambda c: c.call("GET", "/api/v1/whoami", WhoAmI))
    except TraceplaneError as error:
        yield Finding(
            "problem", error.code, f"The platform cannot be used: {error.message}.", error.next_step
        )
        return
    where = f", run by process {here.pid}" if here is not None else ""
    yield Finding("ok", "gateway", f"The gateway answers at {settings.gateway_address}{where}.")
    yield from _of_the_gateway(settings)
    roles = ", ".join(caller.roles)
    if not roles:
        yield Finding("warning", "no_role", f"{caller.name} has no role in {caller.org}.", caller.next_step)
        return
    yield Finding("ok", "caller", f"You are {caller.name} of {caller.org}, with {roles}.")
    try:
        health = call(settings, lambda c: c.call("GET", "/api/v1/health", HealthResponse))
    except TraceplaneError as error:
        yield Finding("problem", error.code, f"Its health cannot be read: {error.message}.", error.next_step)
        return
    for found in health.findings:
        yield Finding(found.level, found.code, found.sentence, found.next_step)


def _of_the_gateway(settings: Settings) -> Iterator[Finding]:
    gateway = Connection(
        settings.gateway_address, "", timeout_seconds=_PATIENCE_SECONDS, trusted=lambda: settings.tls_ca
    )
    theirs: list[datetime] = []

    def read_clock(answer: HTTPResponse) -> None:
        if date := answer.getheader("date"):
            theirs.append(parsedate_to_datetime(date))

    try:
        collections.deque(gateway.pieces("GET", "/readyz", None, read_clock), maxlen=0)
        about = gateway.ask("GET", "/openapi.json", _About)
    except TraceplaneError as error:
        yield Finding("problem", error.code, f"The gateway is not ready: {error.message}.", error.next_step)
        return
    yield Finding("ok", "database", "The gateway reaches its database.")
    yield same_version(about.info.version)
    if theirs:
        yield same_clock((datetime.now(UTC) - theirs[0]).total_seconds())


class _Info(msgspec.Struct):
    version: str


class _About(msgspec.Struct):
    info: _Info


def same_version(gateway: str) -> Finding:
    if gateway == __version__:
        return Finding("ok", "version", f"The gateway runs Traceplane {gateway}, as this command does.")
    return Finding(
        "warning",
        "other_version",
        f"The gateway runs Traceplane {gateway}, this command {__version__}.",
        "install the same version here, and restart processes that run the older one",
    )


def same_clock(ahead_seconds: float) -> Finding:
    if abs(ahead_seconds) <= _CLOCK_SECONDS:
        return Finding("ok", "clock", "The clocks of this machine and the gateway agree.")
    side = "ahead of" if ahead_seconds > 0 else "behind"
    return Finding(
        "warning",
        "clock_differs",
        f"The clock of this machine is {abs(ahead_seconds):.0f} s {side} the gateway's.",
        "set both by NTP: tokens and certificates expire by the clock",
    )
