"""The settings: the only code that reads the environment and TOML. One frozen object per process, read once.

Precedence: environment (`TRACEPLANE_…`), then `traceplane.toml`, then the defaults below. Unknown keys are
refused, so that a misspelt setting is never silently ignored.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from traceplane.errors import InvalidInput
from traceplane.linux.connect_supervisor import Endpoints
from traceplane.model import durations, file_places, hook_keys, resources
from traceplane.model.invalid_values import in_words
from traceplane.model.runtimes import DEFAULT_RUNTIMES, Driver, InvokerKind, Runtime

PREFIX = "TRACEPLANE_"
DEFAULT_ORG = "default"
_S3 = "s3://"
_DEFAULT_CODE_PATHS = (Path("code"),)
_S3_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^?#]*)?")
_SPARK_PROPERTY = re.compile(
    r"spark\.(?!connect\.|hadoop\.fs\.s3a\.|jars=|master=|authenticate)[A-Za-z0-9_.-]+=[^\n]*"
)
_SPARK_MASTER = re.compile(r"local(\[[^\]]+\])?|spark://.+")
_TASK_SECONDS = (900, 43_200)
_ADDRESS = re.compile(r"[A-Za-z0-9.-]+:(?!\d{6})\d{1,5}")
_PART_OF_A_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_HTTP_URL = re.compile(
    r"https?://(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[a-zA-Z0-9.-]+))(?::[0-9]+)?(?:/[^\\@]*)?"
)
_FILE_URL = re.compile(r"file:///[^?#\\]+")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,199}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    config: Path | None = None
    """The settings file that was read."""
    home: Path = Path(".traceplane")
    """Folder of the local profile: embedded Postgres, object store, tokens."""
    state_url: str | None = None
    """Postgres of the control plane; unset: the embedded server."""
    object_store: str | None = None
    """Where datasets live: a folder, or `s3://bucket/prefix`; unset: a folder under `home`."""
    s3_endpoint_url: str | None = None
    s3_read_role: str | None = None
    """The role whose credentials, cut down to a table's files, readers of Iceberg tables in S3 get; unset: none."""
    s3_task_role: str | None = None
    """The role whose credentials, cut down to a task's files, Spark's executors get; unset: workers transfer files."""
    s3_task_seconds: int = 3600
    """How long these credentials may last: at most the role's maximum session. Longer tasks renew them."""
    s3_renewal_address: str | None = None
    """`10.0.0.5:7480`: an address of a worker at which executors renew them; unset: no task lasts longer than they."""
    object_cache: Path | None = None
    """Local files of a worker whose object store is in S3; unset: a folder under `home`."""
    object_cache_mb: int = 10_240
    environments_mb: int = 10_240
    """How much the Python packages that jobs need may take on a worker."""
    master_key_file: Path | None = None
    """Its keys encrypt signing keys and secrets at rest; unset: made under `home`."""
    secret_store: str = "postgres"  # noqa: S105 -- the kind of a store
    """postgres | aws | files: where the values of secrets are."""
    secret_folder: Path | None = None
    """With secret_store `files`: the folder of the mounted volume."""
    secret_environment: str = "default"  # noqa: S105 -- a part of a name
    """With secret_store `aws`: the first part of the names of secrets, such as `production`."""
    secretsmanager_endpoint_url: str | None = None
    host: str = "127.0.0.1"
    dispatcher_port: int = 7460
    gateway_port: int = 7461
    dispatcher_url: str | None = None
    """Where workers find the internal API; unset: this machine."""
    gateway_url: str | None = None
    """Where the command line finds the public API; unset: this machine."""
    tls_certificate: Path | None = None
    """PEM file with the certificate of dispatcher and gateway and its chain; unset: they speak plain HTTP."""
    tls_key: Path | None = None
    """PEM file with its private key."""
    tls_ca: Path | None = None
    """PEM file with the authorities that callers of dispatcher and gateway trust; unset: those of the system."""
    metrics_host: str = "127.0.0.1"
    """Address that dispatchers and gateways serve their metrics on."""
    dispatcher_metrics_port: int = 7463
    gateway_metrics_port: int = 7464
    """0: no metrics."""
    worker_token: str | None = None
    """Token of a worker; unset: the file under `home`."""
    user_token: str | None = None
    """Token of the command line; unset: the file under `home`."""
    org: str | None = None
    """The organization that commands work for; unset: that of the user token, or `default` where there is none."""
    wake_queue: str = "postgres"
    """postgres | sqs"""
    sqs_endpoint_url: str | None = None
    sqs_queue_prefix: str = "traceplane-"
    aws_region: str = "us-east-1"
    worker_concurrency: int = 8
    worker_drain_seconds: float = 20.0
    """How long a stopping worker lets its tasks run before it hands them back for another worker."""
    worker_offers: tuple[str, ...] = ()
    """What a worker has for each of its tasks that others may lack: `memory=16g`, `gpu=1`, `label=eu`."""
    worker_code_paths: tuple[Path, ...] = _DEFAULT_CODE_PATHS
    """Folders that operator code is imported from. Operators can read all of them, so `home` must not lie inside."""
    allow_weak_sandbox: bool = False
    operator_network_allow: tuple[str, ...] = ()
    """Addresses on this machine or its link, or of the platform, that operators with the network may reach anyway:
    `127.0.0.1:8545`, `10.0.0.0/8`, `[::1]:80`; `*` is everything."""
    operator_network_deny: tuple[str, ...] = ()
    """Addresses that they never reach, even if allowed: the parts of the platform that a worker does not know of."""
    spark_master: str = "local[*]"
    """Where Spark jobs run: this machine, or a cluster: `spark://host:port`, `yarn`, `k8s://...`."""
    spark_jars: Path | None = None
    """The folder of the jars that `traceplane spark jars` fetched; unset: below `home`."""
    spark_conf: tuple[str, ...] = ()
    """Properties of Spark, such as `spark.driver.host=10.0.0.5`: what a cluster needs, resources, history."""
    spark_remote: str | None = None
    """A Spark Connect server, `sc://host:port/;use_ssl=true;token=…`, that a worker uses instead of one of its own."""
    spark_remote_ca: Path | None = None
    """Certificates in PEM, of which one has signed that server's; unset: those that the system trusts."""
    spark_executors_trusted: bool = False
    """Whether a cluster, or the server of `spark_remote`, may share a folder with the worker. All code that runs there
    then has the rights of the worker's user over the whole store, and over the worker's machine."""
    spark_ui_url: str | None = None
    """Where Spark's own interface, or its history server, shows an application: a URL with `{application}` in it."""
    spark_memory_mb: int = 1024
    """Heap of a worker's Spark server."""
    spark_disk_mb: int = 65536
    """Disk that the temporary files of a worker's Spark server may use before it is restarted."""
    spark_compiler: str = "full"
    """full | quick: with quick, a start costs two thirds of the CPU, and long jobs take up to twice as long."""
    spark_isolation: str = "shared"
    """shared | job: whether tasks of different jobs use one Spark server, or each job has one of its own."""
    spark_servers: int = 2
    """Maximum number of servers per worker if each job has its own; tasks of further jobs wait."""
    dispatch_window: int = 1000
    """Maximum number of tasks of one job that may be queued or running if it has no max_concurrency."""
    resend_after_seconds: float = 30.0
    reap_grace_seconds: float = 15.0
    """How long a dispatcher reaps nothing after its start or after losing Postgres."""
    history: str = "30d"
    """How long events, finished tasks, lineage, executions, unused code, refused queries and the audit log are kept; or
    `forever`."""
    background_gc: bool = True
    """Whether dispatchers delete history that has ended, and files that nobody can read any more."""
    background_compaction: bool = True
    """Whether dispatchers have small files of datasets merged."""
    compaction_target_mb: int = 128
    compaction_min_files: int = 8
    compaction_after_seconds: float = 600.0
    """How long files are left alone."""
    dispatcher_runs_sinks: bool = True
    """Whether dispatchers also write buffered datasets; if not, `traceplane sink` does."""
    dispatcher_runs_delivery: bool = True
    """Whether dispatchers also send the messages that wait for channels; if not, `traceplane delivery` does."""
    gc_grace: str = "24h"
    """How long files stay after the last task or query could begin to read them."""
    gc_keep_versions: int = 2
    """Earlier versions of each DAG that are kept for a rollback."""
    token_overlap_seconds: float = 3600.0
    max_body_bytes: int = 16 * 1024 * 1024
    http_head_seconds: float = 10.0
    """How long the head of a request may take to arrive."""
    http_body_seconds: float = 60.0
    """How long a request may take to arrive, its body included."""
    http_idle_seconds: float = 300.0
    """How long a connection may stay open without a request."""
    http_answer_seconds: float = 60.0
    """How long a caller may go without reading a single byte of a response."""
    http_max_connections: int = 2000
    """Concurrent connections of one process; fewer if its limit of open files is low."""
    http_max_connections_per_address: int = 1000
    """Concurrent connections of one process with one address; at most three quarters of all."""
    rate_limit_per_second: float = 500.0
    """Calls that one caller may make to one gateway in the long run; 0: no limit."""
    rate_limit_burst: int = 5000
    """Calls that it may make at once."""
    webhook_max_body_bytes: int = 5 * 1024 * 1024
    """Size of one delivery to a webhook source."""
    webhook_memory_mb: int = 64
    """Deliveries that a gateway holds in memory, all together; others are told to come again."""
    webhook_max_waiting: int = 1000
    """Deliveries of one source that wait for their commit; others are told to come again."""
    webhook_key_days: int = 7
    """How long a delivery is recognized when it is repeated; senders repeat for up to three days."""
    file_source_allow: tuple[str, ...] = ()
    """Folders and S3 prefixes that file sources may list, and whose files their jobs get; unset: none."""
    outgoing_allow: tuple[str, ...] = ()
    """Hosts and networks that the gateway may call though they are not public, or without https: `idp.corp`,
    `127.0.0.1:8080`, `10.0.0.0/8`."""
    hook_keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The signing keys of webhook sources, by the variables that hold them."""
    database_connections: int = 10
    query_concurrency: int = 4
    """Queries that one gateway runs concurrently; others wait."""
    query_concurrency_per_caller: int | None = None
    """How many of them may be one caller's; unset: all but one."""
    query_timeout_seconds: float = 60.0
    """How long a query may take, including sending its result."""
    query_max_rows: int = 1_000_000
    query_max_bytes: int = 256 * 1024 * 1024
    """Size of a result, as it is sent."""
    query_memory_mb: int = 1024
    """Memory of one query."""
    query_spill_mb: int = 4096
    """Disk that one query may use, under `home`, when its memory is full."""
    query_spark_above_mb: int = 65_536
    """Files of this size together are left to Spark by queries with the engine `auto`."""
    query_threads: int = 0
    """Threads of one query; 0: one for each core."""
    kafka_bootstrap_servers: str | None = None
    """Brokers that the trigger reads signals from; unset: files in the folder `signals` under `home`."""
    kafka_signal_topic: str = "trading-signals"
    kafka_consumer_group: str = "trigger-dispatcher"
    kafka_auto_offset_reset: str = "latest"
    """latest | earliest: where a group starts that has consumed nothing yet."""
    kafka_session_timeout_seconds: float = 10.0
    """How long a trigger may be silent before its partitions move to the others."""
    kafka_dead_letter_topic: str | None = None
    """Topic for messages that are not valid signals; unset: the signal topic's name plus `.dead-letter`."""
    kafka_security_protocol: str | None = None
    kafka_sasl_mechanism: str | None = None
    kafka_sasl_username: str | None = None
    kafka_sasl_password: str | None = None
    kafka_ssl_ca_location: Path | None = None
    celery_broker_url: str | None = None
    """Redis that Celery workers consume from, for pipelines with the target celery."""
    trigger_port: int = 7462
    """Where the trigger serves its metrics."""
    trigger_rules: str | None = None
    """A Python module whose functions pipelines may name as their custom rule."""
    trigger_preset: str = "balanced"
    """low_latency | balanced | high_throughput: default values of the next three settings."""
    batch_size: int | None = None
    """Number of signals that completes a batch."""
    batch_timeout_seconds: float | None = None
    """How long a batch waits for more signals before it is processed incomplete."""
    cache_refresh_interval_seconds: float | None = None
    """How often the trigger polls for changed pipelines, in addition to the notifications that it gets."""
    service_name: str | None = None
    """Name of the process in logs and traces; unset: its role, such as `dispatcher`."""
    log_level: str = "info"
    log_format: str = "auto"
    """`auto`: text if standard error is a terminal, otherwise JSON."""
    otlp_endpoint: str | None = None
    openlineage_url: str | None = None
    """Where dispatchers send OpenLineage events about the runs of tasks: `https://marquez.example.com`, or
    `file:///var/lib/traceplane/lineage.jsonl`; unset: nowhere."""
    openlineage_api_key: str | None = None
    """Sent to it as a bearer token."""
    openlineage_namespace: str = "traceplane"
    """The first part of the namespaces of jobs and datasets; the second one is the organization."""
    openlineage_orgs: tuple[str, ...] = ()
    """The organizations whose runs it is told of; none: all."""
    crash_at: str | None = None
    """Kills the process at a named boundary (see crash_points); for recovery tests only."""
    runtimes: Mapping[str, Runtime] = field(default_factory=lambda: dict(DEFAULT_RUNTIMES))

    @property
    def own_org(self) -> str:
        return DEFAULT_ORG if self.org is None else self.org

    @property
    def history_age(self) -> timedelta | None:
        """None: forever."""
        return durations.parsed_or_forever(self.history)

    @property
    def grace(self) -> timedelta:
        return durations.parsed(self.gc_grace)

    @property
    def offers(self) -> resources.Resources:
        return resources.parsed(self.worker_offers)

    @property
    def object_bucket(self) -> tuple[str, str] | None:
        """Bucket and prefix of an object store in S3; None: it is the folder `object_store_root`."""
        if self.object_store is None or not self.object_store.startswith(_S3):
            return None
        bucket, _, prefix = self.object_store.removeprefix(_S3).partition("/")
        return bucket, prefix

    @property
    def master_key_path(self) -> Path:
        return self.master_key_file or self.home / "master.key"

    @property
    def object_store_root(self) -> Path:
        assert self.object_bucket is None, "the object store is a folder"
        return Path(self.object_store) if self.object_store else self.home / "objects"

    @property
    def object_store_address(self) -> str:
        """Where the object store is, for a process in another folder."""
        if self.object_bucket is None:
            return str(self.object_store_root.resolve())
        assert self.object_store is not None
        return self.object_store

    @property
    def spark_properties(self) -> tuple[tuple[str, str], ...]:
        parts = (text.partition("=") for text in self.spark_conf)
        return tuple((name, value) for name, _, value in parts)

    @property
    def s3_renewals(self) -> tuple[str, int] | None:
        """Host and port at which a worker's credentials are renewed."""
        if self.s3_renewal_address is None:
            return None
        host, _, port = self.s3_renewal_address.rpartition(":")
        return host, int(port)

    @property
    def spark_jars_folder(self) -> Path:
        return self.spark_jars or self.home / "spark-jars"

    @property
    def object_cache_root(self) -> Path:
        return self.object_cache or self.home / "cache"

    @property
    def batching(self) -> Batching:
        preset = PRESETS[self.trigger_preset]
        return Batching(
            preset.size if self.batch_size is None else self.batch_size,
            preset.timeout_seconds if self.batch_timeout_seconds is None else self.batch_timeout_seconds,
            preset.cache_refresh_seconds
            if self.cache_refresh_interval_seconds is None
            else self.cache_refresh_interval_seconds,
        )

    @property
    def queries_of_one_caller(self) -> int:
        return self.query_concurrency_per_caller or max(1, self.query_concurrency - 1)

    @property
    def signals_folder(self) -> Path:
        """Where signals are stored if there is no broker."""
        return self.home / "signals"

    @property
    def dispatcher_address(self) -> str:
        return self.dispatcher_url or f"{self._scheme}://{self.host}:{self.dispatcher_port}"

    @property
    def gateway_address(self) -> str:
        return self.gateway_url or f"{self._scheme}://{self.host}:{self.gateway_port}"

    @property
    def _scheme(self) -> str:
        return "http" if self.tls_certificate is None else "https"


@dataclass(frozen=True, slots=True)
class Batching:
    """When a batch of signals is processed, and how old the trigger's copy of the pipelines may be."""

    size: int
    timeout_seconds: float
    cache_refresh_seconds: float


PRESETS = {
    "low_latency": Batching(5, 0.1, 15.0),
    "balanced": Batching(20, 0.5, 30.0),
    "high_throughput": Batching(50, 1.0, 60.0),
}

UNPREFIXED = {
    "SERVICE_NAME": "service_name",
    "LOG_LEVEL": "log_level",
    "KAFKA_BOOTSTRAP_SERVERS": "kafka_bootstrap_servers",
    "KAFKA_SIGNAL_TOPIC": "kafka_signal_topic",
    "KAFKA_CONSUMER_GROUP": "kafka_consumer_group",
    "KAFKA_AUTO_OFFSET_RESET": "kafka_auto_offset_reset",
    "BATCH_SIZE": "batch_size",
    "BATCH_TIMEOUT_SECONDS": "batch_timeout_seconds",
    "CACHE_REFRESH_INTERVAL_SECONDS": "cache_refresh_interval_seconds",
}
"""Names that older deployments use for a trigger's settings; `with_unprefixed` reads them too."""

CELERY_BROKER = "CELERY_BROKER_URL"
"""Celery's own variable; `with_celery_broker` reads it."""

_POSTGRES = ("POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_HOST", "POSTGRES_PORT", "POSTGRES_DB")

_NAMES = frozenset(f.name for f in fields(Settings))
_REMOVED = frozenset({"data_url"})
"""Settings of older versions, ignored because deployments may still set them."""

_SECRET_WORDS = ("token", "password", "url", "api_key")
"""Parts of the names of settings whose values may hold a secret, so that errors do not repeat them."""

REFERRING = ("kafka_sasl_password", "celery_broker_url", "openlineage_api_key")
"""Settings that may refer to a secret of the platform instead of holding it."""

LISTS = {
    "worker_code_paths": os.pathsep,
    "worker_offers": ",",
    "spark_conf": ";",
    "operator_network_allow": ",",
    "operator_network_deny": ",",
    "file_source_allow": ",",
    "outgoing_allow": ",",
    "openlineage_orgs": ",",
}
"""Settings that are lists, with their separator in the environment."""

_CHOICES = {
    "wake_queue": ("postgres", "sqs"),
    "secret_store": ("postgres", "aws", "files"),
    "spark_compiler": ("full", "quick"),
    "spark_isolation": ("shared", "job"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("auto", "json", "text"),
    "kafka_auto_offset_reset": ("latest", "earliest"),
    "trigger_preset": ("balanced", "low_latency", "high_throughput"),
}

_LEAST_KEY_DAYS = 7
_PORTS = (
    "dispatcher_port",
    "gateway_port",
    "trigger_port",
    "dispatcher_metrics_port",
    "gateway_metrics_port",
)
_ABOVE_ZERO = (
    *("batch_size", "batch_timeout_seconds", "cache_refresh_interval_seconds"),
    *(
        "worker_concurrency",
        "environments_mb",
        "database_connections",
        "query_concurrency",
        "query_concurrency_per_caller",
        "rate_limit_burst",
        "dispatch_window",
        "webhook_max_body_bytes",
        "webhook_memory_mb",
        "webhook_max_waiting",
        "spark_memory_mb",
        "spark_disk_mb",
        "compaction_target_mb",
        "query_spark_above_mb",
    ),
    *("http_head_seconds", "http_body_seconds", "http_idle_seconds", "http_answer_seconds"),
    *("http_max_connections", "http_max_connections_per_address"),
)


def load(
    file: Path | None = None, environment: Mapping[str, str] | None = None, **overrides: Any
) -> Settings:
    """Reads the settings; `overrides` (from the command line) win over everything else."""
    environment = os.environ if environment is None else environment
    values: dict[str, Any] = {}
    named = environment.get(f"{PREFIX}CONFIG", "traceplane.toml")
    if file is None and not named:
        raise InvalidInput(
            "settings.invalid",
            "a path cannot be empty: config",
            value="",
            next_step=f"set {PREFIX}CONFIG to a file, or unset it",
        )
    path = file or Path(named)
    if path.exists():
        if file is None and f"{PREFIX}CONFIG" not in environment:
            _check_owner(path)
        values |= _from_toml(path) | {"config": path.resolve()}
    elif file is not None:
        raise InvalidInput("settings.no_file", "the settings file does not exist", value=str(file))
    values["hook_keys"] = {
        name: key for name, key in environment.items() if name.startswith(hook_keys.PREFIX)
    }
    for name, text in environment.items():
        key = name.removeprefix(PREFIX).lower()
        if name in values["hook_keys"]:
            continue
        if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG" and key not in _REMOVED:
            separator = LISTS.get(_checked_name(key, source=name))
            values[key] = text if separator is None else [part for part in text.split(separator) if part]
    values |= {k: v for k, v in overrides.items() if v is not None}
    try:
        settings = msgspec.convert(values, Settings, strict=False, dec_hook=_as_path)
    except msgspec.ValidationError as error:
        raise _invalid(error, values) from error
    _check(settings)
    return settings


def of_function(object_store: str, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a function on AWS Lambda, where only the temporary folder can be written. The call says where the
    object store is, unless the function's environment knows better."""
    environment = os.environ if environment is None else environment
    defaults = {
        "OBJECT_STORE": object_store,
        "OBJECT_CACHE": os.path.join(tempfile.gettempdir(), "traceplane-cache"),
        "OBJECT_CACHE_MB": "256",
        "AWS_REGION": environment.get("AWS_REGION", ""),
    }
    prefixed = {f"{PREFIX}{name}": value for name, value in defaults.items() if value}
    return load(environment={**prefixed, **environment})


def with_offers(settings: Settings, text: str) -> Settings:
    """The settings of a worker that offers this."""
    chosen = replace(settings, worker_offers=tuple(part for part in text.split(",") if part.strip()))
    _check_offers(chosen)
    return chosen


def with_tokens(settings: Settings) -> Settings:
    """The settings, with missing tokens read from the home folder."""
    return replace(
        settings,
        worker_token=settings.worker_token or _token(token_file(settings, "worker")),
        user_token=settings.user_token or _token(token_file(settings, "user")),
    )


def token_file(settings: Settings, name: str) -> Path:
    return settings.home / "tokens" / name


def signed_in_file(settings: Settings) -> Path:
    """Says where `traceplane login` got the user token of this folder."""
    return token_file(settings, "signed_in")


def _token(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise InvalidInput(
            "home.unreadable",
            "the tokens of this folder belong to another user",
            value=file.absolute(),
            next_step="run as that user, or set TRACEPLANE_USER_TOKEN",
        ) from error


def running_file(settings: Settings) -> Path:
    """Locked by `up` while it runs; holds its process id and its address."""
    return settings.home / "running"


def user_token(
    settings: Settings, environment: Mapping[str, str] | None = None, *, url_chosen: bool = False
) -> str:
    """The token for calls to the gateway; `url_chosen`: the caller has named the address itself.

    A settings file may come with a cloned repository, so it cannot send a token that it does not contain elsewhere.
    """
    environment = os.environ if environment is None else environment
    if (token := with_tokens(settings).user_token) is not None:
        url_chosen |= f"{PREFIX}{'HOST' if settings.gateway_url is None else 'GATEWAY_URL'}" in environment
        if url_chosen or settings.user_token is not None or _is_own_address(settings):
            return token
        raise InvalidInput(
            "cli.token_withheld",
            f"{settings.config or 'the settings file'} names an address that is not the one of the platform in"
            f" {settings.home.absolute()}, so it does not get the user token of that folder",
            value=settings.gateway_address,
            next_step="if you trust that address, set TRACEPLANE_GATEWAY_URL to it, or set TRACEPLANE_USER_TOKEN"
            " to a token of its platform; otherwise correct the settings file",
        )
    raise InvalidInput(
        "cli.no_token",
        "this folder has no user token, so no platform was started here",
        value=token_file(settings, "user").absolute(),
        next_step="go to the folder where `traceplane up` runs, or run it here,"
        " or set TRACEPLANE_USER_TOKEN and TRACEPLANE_GATEWAY_URL",
    )


def _is_own_address(settings: Settings) -> bool:
    """Whether the gateway is on this machine, or where the platform of the home folder last ran."""
    url = settings.gateway_address
    if (parts := _HTTP_URL.fullmatch(url)) is None:
        return False
    try:
        address = ipaddress.ip_address(parts["v6"] or parts["host"])
        local = address.is_loopback or address.is_unspecified
    except ValueError:
        local = parts["host"] == "localhost"
    if local:
        return True
    token = token_file(settings, "user")
    if token.resolve() != settings.home.resolve() / "tokens" / "user":
        return False  # a link to the token of another platform
    signed_in = signed_in_file(settings)
    # The token is of the platform that the sign-in was with, not of the folder's own.
    record = signed_in if signed_in.exists() else running_file(settings)
    try:
        recorded = json.loads(record.read_text())["url"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(recorded.rstrip("/") == url.rstrip("/"))


def with_unprefixed(settings: Settings, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings of a trigger, which may also be set under names without the prefix. Other processes ignore those:
    a `LOG_LEVEL` or `BATCH_SIZE` may be meant for another program."""
    environment = os.environ if environment is None else environment
    values = {
        key: environment[name]
        for name, key in UNPREFIXED.items()
        if environment.get(name) and f"{PREFIX}{name}" not in environment
    }
    if "log_level" in values:
        values["log_level"] = values["log_level"].lower()
    if settings.state_url is None and environment.get("POSTGRES_HOST"):
        user, password, host, port, name = (quote(environment.get(n, ""), safe="") for n in _POSTGRES)
        url = f"postgresql://{user}{':' if password else ''}{password}@{host}:{port or 5432}/{name or user}"
        values["state_url"] = url
    try:
        prefixed = {name: getattr(settings, name) for name in _NAMES}
        merged = msgspec.convert({**prefixed, **values}, Settings, strict=False, dec_hook=_as_path)
    except msgspec.ValidationError as error:
        raise _invalid(error, values) from error
    _check(merged)
    return with_celery_broker(merged, environment)


def with_celery_broker(settings: Settings, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings, with a missing broker taken from Celery's own variable. Only the process that sends the messages
    needs it, and only if a pipeline uses Celery."""
    environment = os.environ if environment is None else environment
    url = environment.get(CELERY_BROKER)
    return (
        replace(settings, celery_broker_url=url) if url and settings.celery_broker_url is None else settings
    )


def checked_code_paths(settings: Settings) -> tuple[Path, ...]:
    """The folders with operator code. Operators can read them, so they must not contain the platform's own folder.

    The default folder may be missing: jobs bring the code that they were deployed with.
    """
    home = settings.home.resolve()
    paths: list[Path] = []
    for code_path in settings.worker_code_paths:
        path = code_path.resolve()
        if code_path in _DEFAULT_CODE_PATHS and not path.exists():
            continue
        if not path.is_dir() or not os.access(path, os.R_OK | os.X_OK):
            raise InvalidInput(
                "worker.code_path_unusable",
                "a folder for operator code is missing, not a folder, or not readable",
                value=str(path),
                next_step="create it, or set another one with `traceplane up --code` or worker_code_paths",
            )
        if home.is_relative_to(path):
            raise InvalidInput(
                "worker.home_in_code_path",
                f"operators could read the platform's secrets: {home} is inside a code path",
                value=str(path),
                next_step="keep operators in a folder of their own, for example `traceplane up --code code`",
            )
        paths.append(path)
    return tuple(paths)


def _invalid(error: msgspec.ValidationError, values: Mapping[str, Any]) -> InvalidInput:
    place = re.search(r" - at `\$\.(\w+)", str(error))
    shown = place is not None and not any(word in place[1] for word in _SECRET_WORDS)
    return InvalidInput(
        "settings.invalid",
        f"a setting is invalid: {in_words(error)}",
        value=values.get(place[1]) if place is not None and shown else None,
        next_step="see docs/reference/settings.md",
    )


def _as_path(kind: type, value: Any) -> Any:
    if kind is Path:
        if value == "":
            raise ValueError("a path cannot be empty")  # it would mean the current folder
        return Path(value).expanduser()
    raise NotImplementedError(kind)


def _check_owner(path: Path) -> None:
    """Refuses a file that lies in the current folder but that another user can write: it names programs to run and
    addresses to call."""
    link, file = path.lstat(), path.stat()
    if not {link.st_uid, file.st_uid} <= {0, os.geteuid()}:
        reason = "it belongs to another user"
    elif file.st_mode & stat.S_IWOTH or (file.st_mode & stat.S_IWGRP and file.st_gid != os.getegid()):
        reason = "others can write to it"
    else:
        return
    raise InvalidInput(
        "settings.untrusted_file",
        f"the settings file of this folder is not used, because {reason}",
        value=path.absolute(),
        next_step=f"go to a folder of your own; if you trust the file, own it and run `chmod go-w {path}`,"
        f" or name it: --config {path}",
    )


def _from_toml(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(
            "settings.bad_toml",
            f"{path} is not valid TOML: {error}",
            value=str(path),
            next_step="correct the file at the place named",
        ) from error
    values = {key: value for key, value in values.items() if key not in _REMOVED}
    for key in values:
        _checked_name(key, source=str(path))
    if "runtimes" in values:
        custom = {name: _runtime(name, entry) for name, entry in values["runtimes"].items()}
        values["runtimes"] = {**DEFAULT_RUNTIMES, **custom}
    return values


def _runtime(name: str, entry: Any) -> Runtime:
    try:
        runtime = msgspec.convert({"name": name, **entry}, Runtime, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidInput(
            "settings.runtime_invalid", f"runtime {name!r} is invalid: {in_words(error)}"
        ) from error
    unknown = set(entry) - {f.name for f in fields(Runtime)}
    if unknown:
        raise InvalidInput(
            "settings.unknown_key", f"runtime {name!r} has unknown keys", value=", ".join(sorted(unknown))
        )
    if runtime.driver is Driver.QUEUE and not runtime.queue:
        raise InvalidInput(
            "settings.runtime_invalid", f"runtime {name!r} needs a queue", next_step='add queue = "…"'
        )
    if runtime.driver is Driver.INVOKE and not (runtime.invoker and (runtime.target or runtime.functions)):
        raise InvalidInput("settings.runtime_invalid", f"runtime {name!r} needs invoker and target")
    if runtime.orgs and runtime.driver is not Driver.INVOKE:
        raise InvalidInput(
            "settings.runtime_invalid",
            f"runtime {name!r} has orgs, which only runtimes with driver invoke have",
            next_step="remove orgs: the tokens of workers say which organizations they serve",
        )
    if runtime.functions and runtime.invoker is not InvokerKind.AWS_LAMBDA:
        raise InvalidInput(
            "settings.runtime_invalid",
            f"runtime {name!r} has functions, which only the invoker aws_lambda calls",
            next_step="remove functions: a job must not choose which URLs and commands the dispatcher calls",
        )
    return runtime


def _checked_name(key: str, *, source: str) -> str:
    if key in _NAMES:
        return key
    matches = difflib.get_close_matches(key, sorted(_NAMES), n=1)
    raise InvalidInput(
        "settings.unknown_key",
        f"{source} sets an unknown setting",
        value=key,
        next_step=f"did you mean {matches[0]!r}?" if matches else "see docs/reference/settings.md",
    )


def _check(settings: Settings) -> None:
    for name, allowed in _CHOICES.items():
        if getattr(settings, name) not in allowed:
            raise InvalidInput(
                "settings.invalid",
                f"{name} must be one of {', '.join(allowed)}",
                value=getattr(settings, name),
            )
    store = settings.object_store
    if store == "":
        raise InvalidInput(
            "settings.invalid",
            "object_store cannot be empty",
            value=store,
            next_step="set it to a folder or an s3:// address, or unset it for a folder under home",
        )
    if store is not None and "://" in store and not _S3_URL.fullmatch(store):
        raise InvalidInput(
            "settings.invalid",
            "object_store must be a folder, or s3:// with a bucket name and a prefix",
            value=store,
            next_step="for example s3://my-bucket/traceplane",
        )
    for name in ("operator_network_allow", "operator_network_deny"):
        for endpoint in getattr(settings, name):
            _check_endpoint(name, endpoint)
    for place in settings.outgoing_allow:
        _check_outgoing(place)
    for place in settings.file_source_allow:
        if (problem := file_places.problem(place)) is not None:
            raise InvalidInput(
                "settings.invalid",
                f"file_source_allow must list folders and S3 prefixes: {problem}",
                value=place,
                next_step="for example /data/in,s3://my-bucket/incoming",
            )
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InvalidInput(
            "settings.invalid",
            "tls_certificate and tls_key belong together",
            value=settings.tls_certificate or settings.tls_key,
            next_step="set both, or none for plain HTTP",
        )
    _check_openlineage(settings)
    _check_secret_store(settings)
    _check_offers(settings)
    _check_spark(settings)
    if settings.spark_servers < 1:
        raise InvalidInput(
            "settings.invalid", "spark_servers must be at least 1", value=settings.spark_servers
        )
    if settings.object_cache_mb < 0:
        raise InvalidInput(
            "settings.invalid", "object_cache_mb must not be negative", value=settings.object_cache_mb
        )
    if settings.webhook_key_days < _LEAST_KEY_DAYS:
        raise InvalidInput(
            "settings.invalid",
            f"webhook_key_days must be at least {_LEAST_KEY_DAYS}, since senders repeat deliveries for days",
            value=settings.webhook_key_days,
        )
    for name in _PORTS:
        if not 0 <= (port := getattr(settings, name)) <= 65_535:
            raise InvalidInput("settings.invalid", f"{name} must be a port from 1 to 65535", value=port)
    for name in ("worker_drain_seconds", "rate_limit_per_second"):
        if not (value := getattr(settings, name)) >= 0:
            raise InvalidInput("settings.invalid", f"{name} must not be negative", value=value)
    _check_retention(settings)
    for name in _ABOVE_ZERO:
        if (value := getattr(settings, name)) is not None and not value > 0:
            raise InvalidInput("settings.invalid", f"{name} must be greater than zero", value=value)


def _check_openlineage(settings: Settings) -> None:
    url, namespace = settings.openlineage_url, settings.openlineage_namespace
    if url is not None and not _HTTP_URL.fullmatch(url) and not _FILE_URL.fullmatch(url):
        raise InvalidInput(
            "settings.invalid",
            "openlineage_url must be the address of a receiver, without a user, or of a file by its full path",
            next_step="for example https://marquez.example.com or file:///var/lib/traceplane/lineage.jsonl",
        )
    if not _NAMESPACE.fullmatch(namespace):
        raise InvalidInput(
            "settings.invalid",
            "openlineage_namespace must be 1 to 200 letters, digits, and characters of _ . : / -",
            value=namespace,
            next_step="for example traceplane or traceplane://production",
        )


def _check_spark(settings: Settings) -> None:
    if not _SPARK_MASTER.fullmatch(settings.spark_master):
        raise InvalidInput(
            "settings.invalid",
            "a worker starts Spark on its own machine or on a standalone cluster",
            value=settings.spark_master,
            next_step="set spark_master to local[*] or spark://host:port; for Kubernetes and YARN set spark_remote,"
            " see docs/guides/spark_cluster_managers.md",
        )
    for text in settings.spark_conf:
        if not _SPARK_PROPERTY.fullmatch(text):
            raise InvalidInput(
                "settings.invalid",
                "spark_conf must list properties of Spark, other than those that keep tasks apart",
                value=text.partition("=")[0],  # the rest may be a password
                next_step="for example spark.driver.host=10.0.0.5",
            )
    if (address := settings.s3_renewal_address) is not None and not _ADDRESS.fullmatch(address):
        raise InvalidInput(
            "settings.invalid",
            "s3_renewal_address must be the host and the port of a worker, without a scheme",
            value=address,
            next_step="for example 10.0.0.5:7480",
        )
    if (url := settings.spark_ui_url) is not None and not _HTTP_URL.fullmatch(
        url.replace("{application}", "")
    ):
        raise InvalidInput(
            "settings.invalid",
            "spark_ui_url must be the address of a page, in which {application} is replaced",
            value=url,
            next_step="for example http://spark-history.internal:18080/history/{application}/jobs/",
        )
    if settings.s3_task_role is not None and settings.object_bucket is None:
        raise InvalidInput(
            "settings.invalid",
            "s3_task_role is set, and the object store is not in S3",
            value=settings.s3_task_role,
            next_step="set object_store to s3://bucket/prefix, or unset s3_task_role",
        )
    if settings.s3_renewal_address is not None and settings.s3_task_role is None:
        raise InvalidInput(
            "settings.invalid",
            "s3_renewal_address is set, and there is no s3_task_role whose credentials could be renewed",
            value=settings.s3_renewal_address,
            next_step="set s3_task_role, or unset s3_renewal_address",
        )
    low, high = _TASK_SECONDS
    if not low <= settings.s3_task_seconds <= high:
        raise InvalidInput(
            "settings.invalid",
            f"s3_task_seconds must be between {low} and {high}, as STS has it",
            value=settings.s3_task_seconds,
        )


def _check_secret_store(settings: Settings) -> None:
    needs_folder = settings.secret_store == "files"  # noqa: S105 -- the kind of a store
    if needs_folder and settings.secret_folder is None:
        raise InvalidInput(
            "settings.invalid",
            "secret_store is files, so secret_folder must be set",
            next_step="set it to the folder where the volume is mounted",
        )
    if not _PART_OF_A_NAME.fullmatch(settings.secret_environment):
        raise InvalidInput(
            "settings.invalid",
            "secret_environment must be 1 to 100 letters, digits, _ . and -",
            value=settings.secret_environment,
        )


def _check_offers(settings: Settings) -> None:
    try:
        resources.parsed(settings.worker_offers)
    except resources.BadResources as error:
        raise InvalidInput(
            "settings.invalid",
            f"worker_offers is invalid: {error}",
            value=",".join(settings.worker_offers),
            next_step="write for example memory=16g,gpu=1,label=eu",
        ) from error


def _check_retention(settings: Settings) -> None:
    for name, parse in (("history", durations.parsed_or_forever), ("gc_grace", durations.parsed)):
        try:
            parse(getattr(settings, name))
        except durations.BadDuration as error:
            raise InvalidInput(
                "settings.invalid",
                f"{name} must be a number with a unit{' or forever' if name == 'history' else ''}",
                value=getattr(settings, name),
                next_step="for example 12h or 30d",
            ) from error
    if settings.history_age is not None and settings.history_age < settings.grace:
        raise InvalidInput(
            "settings.invalid",
            "history must not be shorter than gc_grace, since it is how leftovers of tasks are found",
            value=settings.history,
            next_step="lengthen history, or shorten gc_grace",
        )
    if settings.gc_keep_versions < 0:
        raise InvalidInput(
            "settings.invalid", "gc_keep_versions must not be negative", value=settings.gc_keep_versions
        )


_HOST_AND_PORT = re.compile(r"(?=.*[a-zA-Z])[a-zA-Z0-9_.-]+(?::[0-9]{1,5})?")


def _check_outgoing(text: str) -> None:
    try:
        Endpoints.parse(text)
    except ValueError:
        if not _HOST_AND_PORT.fullmatch(text):
            raise InvalidInput(
                "settings.invalid",
                "outgoing_allow must list hosts, addresses or networks, each with an optional port",
                value=text,
                next_step="write it like idp.corp, 127.0.0.1:8080 or 10.0.0.0/8",
            ) from None


def _check_endpoint(name: str, text: str) -> None:
    if text == "*" and name == "operator_network_allow":
        return
    try:
        Endpoints.parse(text)
    except ValueError:
        raise InvalidInput(
            "settings.invalid",
            f"{name} must list addresses or networks, each with an optional port",
            value=text,
            next_step="write it like 127.0.0.1:8545, 10.0.0.0/8 or [::1]:80",
        ) from None
