"""The trigger process, wired by hand."""

from __future__ import annotations

import asyncio
import gc

from traceplane import __version__, telemetry
from traceplane.adapters.signal_source import Offsets, SignalSource
from traceplane.auth.master_key_file import MasterKeyFile
from traceplane.errors import InvalidInput
from traceplane.http_service.metrics import metrics_app
from traceplane.http_service.server import connection_limits, serve
from traceplane.postgres import trigger
from traceplane.postgres.database import Database
from traceplane.postgres.processes import Presence
from traceplane.runtime.process import run_loop, task_group
from traceplane.secrets.own_settings import with_secrets
from traceplane.settings import Settings
from traceplane.trigger.cache import PipelineCache
from traceplane.trigger.consumer import Consumer
from traceplane.trigger.figures import WRITTEN_EVERY_SECONDS, SignalFigures
from traceplane.trigger.rules import custom_rules

_CONNECTIONS = 3
"""One writes batches, one reads and stores offsets, one reads pipelines."""


async def run(settings: Settings, stop: asyncio.Event, bound: asyncio.Future[int] | None = None) -> None:
    """Launches pipelines until `stop`."""
    assert settings.state_url is not None
    telemetry.emit("trigger_dispatcher_starting", version=__version__)
    batching = settings.batching
    database = await Database.connect(settings.state_url, connections=_CONNECTIONS)
    settings = await with_secrets(settings, database, MasterKeyFile(settings.master_key_path).keys)
    cache = PipelineCache(database, interval=batching.cache_refresh_seconds)
    changed = asyncio.Event()
    figures = SignalFigures(database, cache)
    consumer = Consumer(
        database,
        cache,
        figures,
        lambda offsets: _source(settings, offsets),
        group=settings.kafka_consumer_group,
        topic=settings.kafka_signal_topic,
        batch_size=batching.size,
        batch_timeout=batching.timeout_seconds,
        custom=custom_rules(settings.trigger_rules),
    )
    try:
        await cache.refresh()  # a signal that arrived before the pipelines would match none
        # A batch is tens of thousands of short-lived objects without cycles, so garbage collection runs rarely.
        gc.freeze()
        gc.set_threshold(100_000, 20, 100)
        await task_group(
            stop,
            api=serve(
                metrics_app("Traceplane trigger"),
                host=settings.host,
                port=settings.trigger_port,
                setting="trigger_port",
                stop=stop,
                bound=bound,
                limits=connection_limits(settings),
            ),
            cache=run_loop(
                "cache", cache.refresh, interval=batching.cache_refresh_seconds, kick=changed, stop=stop
            ),
            listener=database.listen([trigger.CHANNEL], lambda *_: changed.set(), stop),
            presence=Presence(database, "trigger").run(stop),
            consumer=consumer.run(stop),
            figures=run_loop("figures", figures.run_once, interval=WRITTEN_EVERY_SECONDS, stop=stop),
        )
    finally:
        await database.close()


def _source(settings: Settings, offsets: Offsets) -> SignalSource:
    if settings.kafka_bootstrap_servers is None:
        from traceplane.adapters.signal_source_folder import FolderSignalSource

        return FolderSignalSource(
            settings.signals_folder,
            settings.kafka_signal_topic,
            settings.kafka_consumer_group,
            settings.kafka_auto_offset_reset,
            offsets,
        )
    try:
        from traceplane.adapters.signal_source_kafka import KafkaAddress, KafkaSignalSource
    except ImportError as error:
        raise InvalidInput(
            "trigger.no_kafka_client",
            "kafka_bootstrap_servers is set, but the Kafka client is not installed",
            value=settings.kafka_bootstrap_servers,
            next_step="pip install '.[trigger]' in a clone of Traceplane, or unset kafka_bootstrap_servers",
        ) from error
    return KafkaSignalSource(KafkaAddress.from_settings(settings), offsets)
