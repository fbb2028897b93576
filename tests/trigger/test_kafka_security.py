"""Brokers that require a password or show a certificate: a rejected client says why and loses nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from tests.kafka import PASSWORD, USER, KafkaBroker, KafkaUnavailable, make_certificates
from tests.platform import Process, until
from tests.trigger.signals import PARTITIONS, Pipelines, Topic, signal, trigger_process
from traceplane.adapters.signal_source_kafka import KafkaAddress, KafkaSignalSource
from traceplane.cli.main import cli
from traceplane.errors import InvalidInput
from traceplane.postgres.database import Database
from traceplane.settings import Settings


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    try:
        server = KafkaBroker.in_folder(tmp_path_factory.mktemp("kafka"), secured=True)
        server.start()
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    yield server
    server.stop()


class Desk:
    """A separate topic, and a pipeline for each signal in it."""

    def __init__(self, broker: KafkaBroker, name: str, pipelines: Pipelines) -> None:
        self.broker, self.pipelines = broker, pipelines
        broker.create_topic(name, PARTITIONS)
        self.topic = Topic.at(broker.address)
        self.topic.name = name
        self.expected: set[tuple[UUID, str]] = set()
        self.waiting: list[UUID] = []

    @classmethod
    async def of(cls, broker: KafkaBroker, name: str, database: Database) -> Desk:
        pipelines = await Pipelines.of(database)
        desk = await asyncio.to_thread(cls, broker, name, pipelines)
        desk.waiting = await pipelines.add_many([((f"signal-{n}",), ()) for n in range(5)])
        return desk

    async def publish(self) -> None:
        name = f"signal-{len(self.expected)}"
        self.expected.add((self.waiting.pop(0), name))
        await asyncio.to_thread(self.topic.publish, [signal(name, name)])

    async def launches_all(self) -> None:
        async def all_launched() -> bool:
            return await self.pipelines.launched() == self.expected

        await until(all_launched, what="every signal launched its pipeline")

    async def tells(self, process: Process, code: str) -> dict[str, Any]:
        async def logged() -> dict[str, Any] | None:
            assert process.alive
            lines = [json.loads(line) for line in process.log.read_text().splitlines()]
            return next((line for line in lines if line.get("code") == code), None)

        line: dict[str, Any] = await until(logged, what=f"{code} in the log")
        return line


@pytest.mark.chaos
async def test_a_trigger_reports_a_rejected_password_and_continues_once_the_broker_accepts_it(
    broker: KafkaBroker, database: Database, database_url: str, tmp_path: Path
) -> None:
    desk = await Desk.of(broker, "by-password", database)
    await asyncio.to_thread(broker.set_password, "the old one")
    await desk.publish()
    process = trigger_process(
        "trigger",
        database_url,
        tmp_path,
        broker.password_address,
        KAFKA_SIGNAL_TOPIC=desk.topic.name,
        TRACEPLANE_KAFKA_SECURITY_PROTOCOL="SASL_PLAINTEXT",
        TRACEPLANE_KAFKA_SASL_MECHANISM="SCRAM-SHA-256",
        TRACEPLANE_KAFKA_SASL_USERNAME=USER,
        TRACEPLANE_KAFKA_SASL_PASSWORD="the new one",
    )
    await process.start()
    try:
        line = await desk.tells(process, "trigger.kafka_refused")
        assert (line["event"], line["level"]) == ("kafka_error", "error")
        assert "invalid credentials" in line["message"]
        assert "kafka_sasl_password" in line["next_step"]
        assert "the new one" not in process.log.read_text()
        await desk.publish()
        assert await desk.pipelines.launched() == set()
        await asyncio.to_thread(broker.set_password, "the new one")
        await desk.launches_all()
        await desk.publish()
        await desk.launches_all()
    finally:
        assert await process.stop() == 0


@pytest.mark.chaos
async def test_a_trigger_connects_only_to_a_broker_whose_certificate_it_trusts(
    broker: KafkaBroker, database: Database, database_url: str, tmp_path: Path
) -> None:
    desk = await Desk.of(broker, "by-certificate", database)
    stranger = tmp_path / "stranger.pem"
    stranger.write_bytes(make_certificates())

    def trigger(name: str, authority: Path, password: str) -> Process:
        return trigger_process(
            name,
            database_url,
            tmp_path,
            broker.certificate_address,
            KAFKA_SIGNAL_TOPIC=desk.topic.name,
            TRACEPLANE_KAFKA_SECURITY_PROTOCOL="SASL_SSL",
            TRACEPLANE_KAFKA_SASL_MECHANISM="PLAIN",
            TRACEPLANE_KAFKA_SASL_USERNAME=USER,
            TRACEPLANE_KAFKA_SASL_PASSWORD=password,
            TRACEPLANE_KAFKA_SSL_CA_LOCATION=str(authority),
        )

    for authority, password, code, setting in (
        (stranger, PASSWORD, "trigger.kafka_untrusted", "kafka_ssl_ca_location"),
        (broker.authority, "guessed", "trigger.kafka_refused", "kafka_sasl_password"),
    ):
        await desk.publish()
        process = trigger(code, authority, password)
        await process.start()
        try:
            line = await desk.tells(process, code)
            assert (line["event"], line["level"]) == ("kafka_error", "error")
            assert setting in line["next_step"]
            assert await desk.pipelines.launched() == set()
            doctor = await asyncio.to_thread(
                CliRunner().invoke, cli, ["trigger", "doctor", "--json"], env=process.environment
            )
            (source,) = [f for f in json.loads(doctor.output) if f["code"] == "source_unreachable"]
            assert code in source["sentence"]
        finally:
            assert await process.stop() == 0
    process = trigger("right", broker.authority, PASSWORD)
    await process.start()
    try:
        await desk.publish()
        await desk.launches_all()
    finally:
        assert await process.stop() == 0
    rows = await desk.pipelines.sql("select sum(next_offset)::int as n from trigger_offsets")
    assert rows[0]["n"] == len(desk.expected)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"kafka_security_protocol": "SSL", "kafka_ssl_ca_location": Path("/nowhere.pem")},
            "ssl.ca.location",
        ),
        ({"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "MAGIC"}, "mechanism"),
        ({"kafka_security_protocol": "SASL_SSL", "kafka_sasl_mechanism": "PLAIN"}, "sasl.username"),
        ({"kafka_security_protocol": "TLS"}, "security.protocol"),
    ],
)
def test_invalid_client_settings_are_rejected_at_startup(options: dict[str, Any], why: str) -> None:
    address = KafkaAddress.from_settings(Settings(kafka_bootstrap_servers="127.0.0.1:1", **options))
    with pytest.raises(InvalidInput, match=why) as refused:
        KafkaSignalSource(address, offsets=None)  # type: ignore[arg-type]
    assert refused.value.code == "trigger.kafka_settings"
