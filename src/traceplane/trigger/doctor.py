"""Why pipelines are not triggered: gathers facts, and a pure function derives findings from them.

Findings follow the path of a signal from its publisher to the execution, because the first broken step is the one that
people look for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import aiohttp

from traceplane.adapters.signal_tail import Tail, signal_tail
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.errors import TraceplaneError
from traceplane.model.finding import Finding
from traceplane.postgres import doctor as queries
from traceplane.postgres.database import Database
from traceplane.postgres.doctor import (
    Consumed,
    OldestRunning,
    PipelineCounts,
    PipelineWithoutJob,
    WatchingPipeline,
)
from traceplane.secrets.own_settings import with_secrets
from traceplane.settings import Settings
from traceplane.trigger import messages

_SAMPLE = 200
_PIPELINES = 1000
_LONG_SECONDS = 3600.0
_IDLE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Facts:
    topic: str
    group: str
    counts: PipelineCounts
    without_job: list[PipelineWithoutJob] = field(default_factory=list)
    oldest_running: OldestRunning | None = None
    offsets: list[Consumed] = field(default_factory=list)
    watching: list[WatchingPipeline] = field(default_factory=list)
    """Pipelines that watch tickers like those of the sample."""
    tail: Tail | None = None
    tail_error: str | None = None
    trigger_metrics: dict[str, float] | None = None
    """Metrics of the trigger on this machine; None if none answers."""
    trigger_address: str = ""
    celery_configured: bool = False


async def examine(settings: Settings, database: Database) -> list[Finding]:
    group, topic = settings.kafka_consumer_group, settings.kafka_signal_topic
    tail, tail_error = None, None
    try:
        settings = await with_secrets(settings, database, MasterKeyFile(settings.master_key_path).keys)
        tail = await asyncio.to_thread(signal_tail, settings, _SAMPLE)
    except TraceplaneError as error:
        tail_error = str(error)
    signals, _ = messages.decode(tail.payloads if tail is not None else [])
    tickers = {t.ticker.upper() for signal in signals if signal is not None for t in signal.tickers}
    async with database.transaction() as tx:
        facts = Facts(
            topic=topic,
            group=group,
            counts=await queries.counts(tx),
            without_job=await queries.without_job(tx, 5),
            oldest_running=await queries.oldest_running(tx),
            offsets=await queries.offsets(tx, group, topic),
            watching=await queries.watching(tx, sorted(tickers), _PIPELINES) if tickers else [],
            tail=tail,
            tail_error=tail_error,
            trigger_metrics=await _metrics(f"http://{settings.host}:{settings.trigger_port}/metrics"),
            trigger_address=f"{settings.host}:{settings.trigger_port}",
            celery_configured=settings.celery_broker_url is not None,
        )
    return list(diagnose(facts))


async def _metrics(url: str) -> dict[str, float] | None:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(url) as answer,
        ):
            text = await answer.text()
    except (aiohttp.ClientError, TimeoutError):
        return None
    pairs = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def diagnose(facts: Facts) -> Iterator[Finding]:
    yield from _source(facts)
    yield from _consumer(facts)
    yield from _pipelines(facts)
    yield from _matching(facts)
    yield from _executions(facts)


def _source(facts: Facts) -> Iterator[Finding]:
    if facts.tail is None:
        yield Finding("problem", "source_unreachable", f"Signals cannot be read: {facts.tail_error}")
    elif not facts.tail.payloads:
        yield Finding(
            "problem",
            "no_signals",
            f"{facts.topic} is empty: nothing was published, or its messages have expired.",
            "check the publisher, and that publisher and trigger use the same topic",
        )
    else:
        _, refused = messages.decode(facts.tail.payloads)
        total = len(facts.tail.payloads)
        if refused:
            yield Finding(
                "problem" if len(refused) == total else "warning",
                "signals_refused",
                f"{len(refused)} of the last {total} messages are not valid signals: {refused[0].reason}",
                "fix the publisher; rejected messages are in the dead-letter topic",
            )
        else:
            yield Finding("ok", "signals_published", f"The last {total} messages are valid signals.")


def _consumer(facts: Facts) -> Iterator[Finding]:
    metrics = facts.trigger_metrics
    if metrics is None:
        yield Finding(
            "warning",
            "trigger_not_here",
            f"No trigger answers at {facts.trigger_address}; it may run elsewhere.",
            "start one with `traceplane trigger run`",
        )
    elif (cached := metrics.get("cache_pipelines")) is not None and int(cached) != facts.counts.active:
        yield Finding(
            "warning",
            "cache_stale",
            f"The trigger has {int(cached)} pipelines in memory, but {facts.counts.active} are active.",
            "wait for cache_refresh_interval_seconds; if it persists, look for cache.error in the trigger's log",
        )
    if not facts.offsets:
        yield Finding(
            "problem",
            "never_consumed",
            f"No trigger of the group {facts.group} has ever read {facts.topic}.",
            "start one, and check kafka_consumer_group and kafka_signal_topic",
        )
        return
    ends = facts.tail.ends if facts.tail is not None else {}
    behind = sum(max(0, ends.get(o.partition, 0) - o.next_offset) for o in facts.offsets)
    unread = sorted(ends.keys() - {o.partition for o in facts.offsets})
    seconds = min(o.seconds for o in facts.offsets)
    if unread:
        yield Finding("warning", "partitions_unread", f"Partitions {unread} have not been read yet.")
    if behind and seconds > _IDLE_SECONDS:
        yield Finding(
            "problem",
            "not_consuming",
            f"Signals are waiting, and none was consumed in the last {seconds:.0f} s.",
            "start a trigger; if one is running, check its log",
        )
    elif not behind:
        yield Finding("ok", "caught_up", f"All signals have been consumed, the last {seconds:.0f} s ago.")
    else:
        yield Finding("warning", "behind", f"Signals are waiting; one was consumed {seconds:.0f} s ago.")


def _pipelines(facts: Facts) -> Iterator[Finding]:
    counts = facts.counts
    if not counts.signal_pipelines:
        yield Finding(
            "problem",
            "no_pipelines",
            "No pipeline has trigger_mode 'signal'.",
            "create one with `traceplane pipeline create`",
        )
        return
    if not counts.active:
        yield Finding(
            "problem",
            "none_active",
            f"None of the {counts.signal_pipelines} pipelines is active.",
            "`traceplane pipeline update ID --active`",
        )
        return
    yield Finding("ok", "active", f"{counts.active} of {counts.signal_pipelines} pipelines are active.")
    if counts.without_tickers:
        yield Finding("warning", "without_tickers", f"{counts.without_tickers} of them watch no ticker.")
    for row in facts.without_job:
        yield Finding(
            "problem",
            "job_missing",
            f"The job {row.dag}/{row.job} of the pipeline {row.name!r} is not deployed for pipelines.",
            "deploy it with source: { kind: pipeline }, or change the pipeline's config",
        )
    if counts.by_celery and not facts.celery_configured:
        yield Finding(
            "warning",
            "celery_not_configured",
            f"{counts.by_celery} pipelines run on Celery, but celery_broker_url is not set here.",
            "set it for the dispatcher",
        )
    if counts.celery_waiting:
        yield Finding("warning", "celery_waiting", f"{counts.celery_waiting} messages to Celery are waiting.")


def _matching(facts: Facts) -> Iterator[Finding]:
    """Compares recent signals with the pipelines, and reports the closest miss if none matches."""
    if facts.tail is None or not facts.counts.active:
        return
    signals = [signal for signal in messages.decode(facts.tail.payloads)[0] if signal is not None]
    matched, free, near = 0, 0, Counter[str]()
    for signal in signals:
        verdicts = [_verdict(signal, pipeline) for pipeline in facts.watching]
        if None in verdicts:
            matched += 1
            hit = (p for p, verdict in zip(facts.watching, verdicts, strict=True) if verdict is None)
            free += any(not pipeline.rules for pipeline in hit)
        elif close := [verdict for verdict in verdicts if verdict]:
            near[close[0]] += 1
        else:
            near[f"no pipeline watches {signal.tickers[0].ticker}"] += 1
    if matched and not free:
        yield Finding(
            "warning",
            "rules_may_hold",
            f"{matched} of the last {len(signals)} signals match, but only pipelines with rules.",
            "check their rules: market hours, number of signals within a time, custom rules",
        )
    elif matched:
        yield Finding(
            "ok", "signals_match", f"{matched} of the last {len(signals)} signals match a pipeline."
        )
    elif signals:
        reason, times = near.most_common(1)[0]
        yield Finding(
            "problem",
            "nothing_matches",
            f"None of the last {len(signals)} signals match a pipeline; {times} because {reason}.",
            "compare the signals with the pipelines' scanner_tickers and signal_subscriptions",
        )


def _verdict(signal: messages.Signal, pipeline: WatchingPipeline) -> str | None:
    """None if it matches, what is missing if it nearly does, "" if it is unrelated."""
    watched = set(pipeline.tickers)
    about = [t for t in signal.tickers if t.ticker in watched]
    if not about:
        lower = {ticker.upper(): ticker for ticker in watched}
        for t in signal.tickers:
            if t.ticker.upper() in lower:
                return f"{pipeline.name!r} watches {lower[t.ticker.upper()]!r}, but signals say {t.ticker!r}"
        return ""
    subscriptions = pipeline.subscriptions
    if not subscriptions:
        return None
    closest = ""
    for w in subscriptions:
        if w.get("signal_type") not in (None, signal.signal_type):
            closest = closest or f"{pipeline.name!r} does not subscribe to {signal.signal_type!r}"
        elif not any(w.get("direction") in (None, t.signal) for t in about):
            closest = (
                f"{pipeline.name!r} wants the direction {w['direction']}, but signals say {about[0].signal}"
            )
        elif not any(
            w.get("direction") in (None, t.signal) and t.confidence >= w.get("min_confidence", 0)
            for t in about
        ):
            closest = (
                f"{pipeline.name!r} wants a confidence of {w['min_confidence']:g}, but signals have less"
            )
        else:
            return None
    return closest


def _executions(facts: Facts) -> Iterator[Finding]:
    oldest = facts.oldest_running
    if oldest is None:
        return
    if oldest.seconds > _LONG_SECONDS:
        what = f"its task is {oldest.task_state}" if oldest.target == "task" else "Celery has it"
        yield Finding(
            "warning",
            "runs_long",
            f"{oldest.running} pipelines are running and are not launched until they end; {oldest.pipeline!r} "
            f"has been {oldest.status} for {oldest.seconds:.0f} s, and {what}.",
            f"`traceplane explain {oldest.execution_id}`"
            if oldest.target == "task"
            else "check Celery's workers; set timeout_seconds in the pipeline's config",
        )
    else:
        yield Finding("ok", "running", f"{oldest.running} pipelines are running.")
