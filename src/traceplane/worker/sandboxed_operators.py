"""Operators of workers: each task runs in the sandbox, with the code that its job was deployed with."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from traceplane.errors import InvalidInput, PlatformError
from traceplane.model.json_object import JsonObject
from traceplane.model.runtimes import Runtime
from traceplane.model.task_payload import SparkAccess, TaskPayload
from traceplane.operators import catalog
from traceplane.operators.spec import OperatorSpec
from traceplane.sandbox.assignment import Assignment, RunResult
from traceplane.sandbox.child_log import TaskLog
from traceplane.sandbox.frames import EmittedEvent
from traceplane.sandbox.sandboxes import Sandboxes
from traceplane.spark.server import SparkGrant
from traceplane.spark.servers import OneRemoteSpark, Spark, SparkServers
from traceplane.wire.tasks import Emission, EventOut
from traceplane.worker import report
from traceplane.worker.code_cache import CodeCache, JobCode
from traceplane.worker.direct_store import Borrowed
from traceplane.worker.dispatcher_client import DispatcherClient, patiently
from traceplane.worker.environment_cache import Environment, EnvironmentCache
from traceplane.worker.held_task import HeldTask
from traceplane.worker.payload import entrypoint_of, run_limits, task_payload
from traceplane.worker.store_on_disk import StoreOnDisk

_SPARK_TASK = "traceplane.dataplane.task:run"


class SandboxedOperators:
    def __init__(
        self,
        *,
        client: DispatcherClient,
        sandboxes: Sandboxes,
        runtime: Runtime,
        store: StoreOnDisk,
        code: CodeCache,
        environments: EnvironmentCache,
        spark: SparkServers | OneRemoteSpark | None,
        online_spark: SparkServers | None,
        spark_ui_url: str | None,
    ) -> None:
        self._client = client
        self._sandboxes = sandboxes
        self._runtime = runtime
        self._store = store
        self._code = code
        self._environments = environments
        self._spark = spark
        self._online_spark = online_spark
        """For operators that split their scope, if the others' servers have no network."""
        self._spark_ui_url = spark_ui_url

    async def run(self, held: HeldTask, *, log: TaskLog, traceparent: str | None) -> RunResult:
        job = held.job
        async with AsyncExitStack() as during:
            operator = _usable_operator(held)
            spark = None
            if (servers := self._servers_for(held, operator)) is not None:
                spark = await during.enter_async_context(servers.for_job(job.org, str(job.job_id), job.spark))
                held.spark = spark
            if operator.splits_on_spark and spark is not None:
                code = JobCode(())  # nothing of the users' may be imported where its server can be reached
            else:
                code = await self._code.code_of(job.code_bundle)
            environment = await during.enter_async_context(self._environments.using(job.environment))
            if environment is not None:
                code = code.with_packages(environment.packages)
            sandbox = await self._sandboxes.for_job(network=job.network or operator.network)
            borrowed = None
            if spark is not None and self._store.direct is not None and lends(held):
                borrowed = await during.enter_async_context(
                    self._store.direct.lent(held.task, job, held.local)
                )
            # No await from here to the run: the payload names the server that gets access to its folders.
            assignment = self._assignment(held, operator, code, spark, environment, borrowed)

            async def on_events(events: list[EmittedEvent]) -> None:
                await self._emit(held, report.events_of(events), traceparent)

            def on_progress(progress: JsonObject) -> None:
                held.progress = self._with_link(progress)

            return await sandbox.run(
                assignment,
                log=log,
                on_events=on_events if job.endless else None,
                on_progress=on_progress,
                timeout=None if job.endless else job.timeout_seconds,
                grant=self._grant(held, spark, assignment.payload, environment, borrowed)
                if spark is not None
                else None,
            )

    def _with_link(self, progress: JsonObject) -> JsonObject:
        """To what Spark's own interface says of the task's application."""
        if self._spark_ui_url is None or not (application := progress.get("application")):
            return progress
        return progress | {"spark_ui": self._spark_ui_url.replace("{application}", str(application))}

    def _servers_for(self, held: HeldTask, operator: OperatorSpec) -> SparkServers | OneRemoteSpark | None:
        if not operator.splits_on_spark:
            return self._spark
        scope = held.task.scope
        is_one = scope is None or scope.first == scope.last
        if is_one or (self._store.direct is not None and not lends(held)):
            return None
        return self._online_spark or self._spark

    def _assignment(
        self,
        held: HeldTask,
        operator: OperatorSpec,
        code: JobCode,
        spark: Spark | None,
        environment: Environment | None,
        borrowed: Borrowed | None,
    ) -> Assignment:
        task, job = held.task, held.job
        entrypoint = entrypoint_of(job, operator)
        access = None
        if spark is not None:
            sends = spark.executors_elsewhere
            access = SparkAccess(
                spark.remote,
                entrypoint,
                code.bundled,
                python=str(environment.python) if environment is not None and not sends else None,
                environment_to_send=str(environment.folder) if environment is not None and sends else None,
                shuffle_partitions=job.spark.shuffle_partitions,
                authorities=spark.authorities,
            )
        return Assignment(
            task_id=str(task.task_id),
            attempt=task.attempt,
            entrypoint=entrypoint if spark is None else _SPARK_TASK,
            error_codes=tuple(error.code for error in operator.errors),
            payload=task_payload(
                task,
                job,
                self._store,
                held.local,
                access,
                query_field=operator.query_field,
                borrowed=borrowed,
            ),
            code_paths=code.paths,
            limits=run_limits(self._runtime, job),
            spark=spark.used if spark is not None else None,
            reuse=None if job.endless else held.reuse,
        )

    def _grant(
        self,
        held: HeldTask,
        spark: Spark,
        payload: TaskPayload,
        environment: Environment | None,
        borrowed: Borrowed | None,
    ) -> SparkGrant:
        """The generations that the task reads and writes, and the packages that its code needs; writable are only this
        attempt's folders."""
        local = [Path(file).parent for files in held.local.files.values() for file in files]
        writable = [Path(output.folder) for output in payload.outputs if output.folder is not None]
        packages = [environment.folder] if environment is not None else []
        readable = [*self._store.readable_generations(held.task), *local, *packages]
        hidden = [*held.job.secrets.values(), *(borrowed.secrets if borrowed is not None else ())]
        return spark.granting(readable, writable, hidden)

    async def _emit(self, held: HeldTask, events: list[EventOut], traceparent: str | None) -> None:
        task = held.task
        emission = Emission(
            task.task_id, task.attempt, task.lease_token, events=events, traceparent=traceparent
        )
        (answer,) = await patiently(lambda: self._client.events([held.token], [emission]))
        if answer.outcome != "ok":
            message = f"the task's events were not accepted: it is {answer.outcome}"
            raise PlatformError(f"task.{answer.outcome}", message)


def lends(held: HeldTask) -> bool:
    """Whether Spark's executors may read and write the bucket themselves for this task. What splits its scope by itself
    does not start Spark for one position, and reads rows that its outputs have already from folders."""
    if held.operator is None or not held.operator.splits_on_spark:
        return True
    scope = held.task.scope
    return scope is not None and scope.first != scope.last and not any(held.task.output_files or ())


def _usable_operator(held: HeldTask) -> OperatorSpec:
    """The operator's spec as installed on this worker."""
    if held.operator is not None:
        return held.operator
    name, package = held.job.operator, held.job.package
    if package is None:
        raise InvalidInput("operator.unknown", "this worker has no operator of that name", value=name)
    if catalog.listed(name) and (problem := catalog.problem(name)) is not None:
        raise PlatformError("operator.package_broken", problem.message)
    message = f"the operator {name} is in the package {package}, which this worker does not have"
    raise PlatformError("operator.package_missing", message)
