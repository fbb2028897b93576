"""A real Kafka broker for the long tests and the benchmark: one KRaft node, in a folder of its own.

    broker = KafkaBroker.in_folder(folder)   # KafkaUnavailable says why there is none
    broker.start(); ...; broker.kill(); broker.start(); ...; broker.stop()

With `secured=True` there are two more doors beside the open one: by password, and by password and certificate.

Its jars come from Maven Central, once, by `mvn`, into `.venv/kafka`. Where there is no Java, no Maven or no network,
callers say so and do without.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from uuid import uuid4

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from confluent_kafka.cimpl import NewTopic
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.platform import die_with_parent
from tests.ports import free_port

VERSION = "4.1.0"
USER, PASSWORD = "trigger", "a good one"
JARS = Path(__file__).parents[1] / ".venv" / f"kafka-{VERSION}"
_POM = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
  </dependencies>
</project>
"""


class KafkaUnavailable(Exception):
    """There is no broker here; the message says why."""


def installed() -> Path:
    """The folder of the jars, which are fetched if they are not there."""
    if (JARS / "complete").exists():
        return JARS
    if shutil.which("java") is None or shutil.which("mvn") is None:
        raise KafkaUnavailable("a Kafka broker needs java and mvn")
    draft = JARS.with_name(f"{JARS.name}.{os.getpid()}")
    draft.mkdir(parents=True)
    try:
        (draft / "pom.xml").write_text(_POM)
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={draft}"]
        done = subprocess.run(command, check=False, cwd=draft, capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise KafkaUnavailable(f"mvn could not fetch Kafka: {(done.stdout + done.stderr).strip()[:300]}")
        (draft / "complete").touch()
        shutil.rmtree(JARS, ignore_errors=True)
        draft.rename(JARS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KafkaUnavailable(f"mvn could not fetch Kafka: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return JARS


@dataclass
class KafkaBroker:
    folder: Path
    port: int
    secured: bool = False
    _controller: int = field(default_factory=free_port)
    _password_port: int = field(default_factory=free_port)
    _certificate_port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def in_folder(cls, folder: Path, *, secured: bool = False) -> KafkaBroker:
        jars = installed()
        folder.mkdir(parents=True, exist_ok=True)
        broker = cls(folder, free_port(), secured)
        if secured:
            broker.authority.write_bytes(make_certificates(folder / "broker.pem"))
        (folder / "server.properties").write_text(broker._properties())
        made = subprocess.run(
            [
                *broker._java(jars, "256m"),
                "kafka.tools.StorageTool",
                "format",
                "-t",
                uuid4().hex[:22],
                "-c",
                str(folder / "server.properties"),
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if made.returncode != 0:
            raise KafkaUnavailable(f"Kafka's storage could not be made: {made.stderr[-300:]}")
        return broker

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def password_address(self) -> str:
        """SASL_PLAINTEXT, SCRAM-SHA-256; see `set_password`."""
        return f"127.0.0.1:{self._password_port}"

    @property
    def certificate_address(self) -> str:
        """SASL_SSL, PLAIN, for USER and PASSWORD."""
        return f"127.0.0.1:{self._certificate_port}"

    @property
    def authority(self) -> Path:
        """Who signed the broker's certificate."""
        return self.folder / "authority.pem"

    def start(self, *, long_running: bool = False) -> None:
        """Runs it, with what it had stored, and waits until it answers. What runs for long is compiled in full, as
        the broker's own scripts would have it; what does not starts sooner."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._java(installed(), "640m", long_running),
                    "kafka.Kafka",
                    str(self.folder / "server.properties"),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + 120
        while True:
            try:
                client.list_topics(timeout=2)
                return
            except KafkaException as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text(errors="replace")[-500:]
                    raise KafkaUnavailable(f"Kafka did not start: {said}") from error

    def create_topic(self, name: str, partitions: int) -> None:
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 3})
        for future in client.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(60)

    def set_password(self, password: str) -> None:
        """Of USER, at `password_address`."""
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 3})
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        change = UserScramCredentialUpsertion(USER, scram, password.encode())
        for future in client.alter_user_scram_credentials([change]).values():
            future.result(60)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)

    def _java(self, jars: Path, heap: str, long_running: bool = False) -> list[str]:
        options = [f"-Xmx{heap}", "-XX:+UseSerialGC"]
        if not long_running:
            options.append("-XX:TieredStopAtLevel=1")
        return ["java", *options, "-cp", f"{jars}/*"]

    def _properties(self) -> str:
        doors = {"PLAINTEXT": self.port, "CONTROLLER": self._controller}
        if self.secured:
            doors |= {"PASSWORD": self._password_port, "CERTIFICATE": self._certificate_port}
        listeners = {name: f"{name}://127.0.0.1:{port}" for name, port in doors.items()}
        modules = "org.apache.kafka.common.security"
        secured = [
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PASSWORD:SASL_PLAINTEXT,"
            "CERTIFICATE:SASL_SSL",
            "listener.name.password.sasl.enabled.mechanisms=SCRAM-SHA-256",
            f"listener.name.password.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;",
            "listener.name.certificate.sasl.enabled.mechanisms=PLAIN",
            f"listener.name.certificate.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required "
            f'user_{USER}="{PASSWORD}";',
            "listener.name.certificate.ssl.keystore.type=PEM",
            f"listener.name.certificate.ssl.keystore.location={self.folder / 'broker.pem'}",
        ]
        return "\n".join(
            [
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@127.0.0.1:{self._controller}",
                f"listeners={','.join(listeners.values())}",
                f"advertised.listeners={','.join(v for n, v in listeners.items() if n != 'CONTROLLER')}",
                "controller.listener.names=CONTROLLER",
                f"log.dirs={self.folder / 'data'}",
                "num.partitions=4",
                "offsets.topic.replication.factor=1",
                "offsets.topic.num.partitions=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "group.initial.rebalance.delay.ms=0",
                "group.min.session.timeout.ms=1000",
                "auto.create.topics.enable=true",
                *(secured if self.secured else ()),
            ]
        )


def make_certificates(broker: Path | None = None) -> bytes:
    """The certificate of a new authority; `broker` is given the key and certificate of a broker on this machine."""
    now = datetime.now(UTC)

    def signed(name: str, key: ec.EllipticCurvePrivateKey, of: str, by: ec.EllipticCurvePrivateKey) -> bytes:
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, of)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == of, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
            )
            .sign(by, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    authority, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = signed("authority", authority, "authority", authority)
    if broker is not None:
        secret = own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        broker.write_bytes(secret + signed("broker", own, "authority", authority) + root)
    return root
