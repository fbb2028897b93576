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
    """Blocks, for a few seconds at most: belongs into a thread."""

    def __init__(self, broker_url: str) -> None:
        self._app = Celery("traceplane", broker=broker_url)
        # Celery's variables in the environment win over what an application says. They may be meant for another
        # one, and results are nobody's here.
        self._app.backend_cls = "disabled"
        self._broker = self._app.connection_for_write(broker_url)
        self._app.conf.update(
            task_ignore_result=True,  # how executions end is told over HTTP
            broker_connection_timeout=_SECONDS,
            # The relay tries again by itself, and holds a transaction meanwhile.
            broker_transport_options={
                "socket_timeout": _SECONDS,
                "socket_connect_timeout": _SECONDS,
                "max_retries": 1,
                "interval_start": 0,
                "interval_step": 0,
            },
        )

    def send(self, messages: Sequence[tuple[str, Sequence[Any]]]) -> None:
        """Of each message its id and the arguments of the task. What fails may have been sent in part."""
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
        next_step="check celery_broker_url and that the broker runs; the messages are sent again",
    )
