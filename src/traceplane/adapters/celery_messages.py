"""Messages to Celery's workers, through their broker. Needs the extra `celery`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu import pools
from kombu.exceptions import LimitExceeded, OperationalError

from traceplane.errors import QueueUnavailable

TASK = "execute_pipeline"
_SECONDS = 5.0


class CeleryMessages:
    """Blocks for up to a few seconds, so call it from a thread."""

    def __init__(self, broker_url: str) -> None:
        self._app = Celery("traceplane", broker=broker_url)
        # Celery's environment variables override an application's settings. They may be meant for another application,
        # and nobody reads results here.
        self._app.backend_cls = "disabled"
        self._broker = self._app.connection_for_write(broker_url)
        self._app.conf.update(
            task_ignore_result=True,  # workers report over HTTP how executions end
            broker_connection_timeout=_SECONDS,
            # The relay retries by itself, and holds a transaction in the meantime.
            broker_transport_options={
                "socket_timeout": _SECONDS,
                "socket_connect_timeout": _SECONDS,
                "max_retries": 1,
                "interval_start": 0,
                "interval_step": 0,
            },
        )

    def send(self, messages: Sequence[tuple[str, Sequence[Any]]]) -> None:
        """Sends messages, each an id and the task's arguments. If it fails, some may have been sent."""
        try:
            with pools.producers[self._broker].acquire(block=True, timeout=_SECONDS) as producer:
                for message_id, arguments in messages:
                    self._app.send_task(
                        TASK, args=list(arguments), task_id=message_id, producer=producer, retry=False
                    )
        except (OperationalError, LimitExceeded, OSError) as error:
            raise _unavailable(error) from error


def _unavailable(error: BaseException) -> QueueUnavailable:
    return QueueUnavailable(
        "queue.unavailable",
        "Celery's broker does not answer",
        value=f"{type(error).__name__} {error}"[:200],
        next_step="check celery_broker_url and that the broker is running; the messages will be sent again",
    )
