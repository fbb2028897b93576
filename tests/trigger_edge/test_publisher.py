"""Published signals can be read at the end of the topic: one contract for Kafka and for a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trigger.signals import TOPIC, mock_cluster
from traceplane.adapters.signal_publisher import signal_publisher
from traceplane.adapters.signal_tail import signal_tail
from traceplane.errors import QueueUnavailable
from traceplane.settings import Settings


@pytest.fixture(params=["folder", "kafka"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    if request.param == "folder":
        yield Settings(home=tmp_path, kafka_signal_topic=TOPIC)
    else:
        with mock_cluster() as topic:
            yield Settings(home=tmp_path, kafka_signal_topic=TOPIC, kafka_bootstrap_servers=topic.brokers)


def test_published_signals_are_at_the_end_of_the_topic(settings: Settings) -> None:
    publisher = signal_publisher(settings)
    first = [("AAPL", b'{"n": 1}'), ("AAPL", b'{"n": 2}'), ("MSFT", b'{"n": 3}')]
    publisher.publish(first)
    tail = signal_tail(settings, 10)
    assert sorted(tail.payloads) == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']
    before = sum(tail.ends.values())
    publisher.publish([("AAPL", b'{"n": 4}')])
    tail = signal_tail(settings, 1)
    assert b'{"n": 4}' in tail.payloads
    assert sum(tail.ends.values()) > before


def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "signals").write_text("in the way")
    with pytest.raises(QueueUnavailable, match="cannot be written"):
        signal_publisher(Settings(home=tmp_path)).publish([("AAPL", b"{}")])
