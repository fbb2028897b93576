"""Python client of the gateway: deploys, events, tasks, queries as Arrow tables, and executions for Celery workers.

from traceplane.client import Client

client = Client()  # the platform that runs here, found as the command line finds it
client.emit("shop.days", range(14))
table = client.query("select count(*) from shop.sales")
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import operator
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit
from uuid import UUID, uuid4

import msgspec

from traceplane.errors import Conflict, InvalidInput, PlatformError
from traceplane.http_service.client import as_error, caller_context, error_after, unreachable
from traceplane.http_service.routes import ERROR_MARK
from traceplane.model.invalid_values import in_words
from traceplane.model.scope import Cursor, Partition
from traceplane.runtime.retrying import pauses
from traceplane.settings import Settings, load, user_token
from traceplane.wire.control import (
    EmitRequest,
    EmitResponse,
    ExplainResponse,
    ManualEvent,
    StatusResponse,
    TaskDetail,
    TaskLogs,
    TasksResponse,
    TaskView,
)
from traceplane.wire.deploys import DeployRequest, DeployResponse, VersionsResponse, VersionView
from traceplane.wire.pipelines import ExecutionChange, ExecutionView
from traceplane.wire.queries import Engine, QueryPlan, QueryRequest, QueryTask
from traceplane.wire.scalars import MAX_BATCH, Position, Scope

if TYPE_CHECKING:
    import pyarrow as pa

Answer = TypeVar("Answer")
Format = Literal["json", "csv", "arrow", "parquet"]
OneScope = int | str | tuple[int, int] | Cursor | Partition | Scope
_PIECE_BYTES = 1 << 20
_POLL_SECONDS = 1.0
_ENDED = ("completed", "dead", "canceled")
_REPORT_PATIENCE_SECONDS = 600.0


class Client:
    """Calls a gateway, given its address and a user token. Calls block, so they work in scripts and notebooks alike.

    Missing arguments are found as the command line finds them: in the environment, in `traceplane.toml`, and, for the
    token of a platform that runs here, in its home folder. `home` selects another home folder. `tls_ca` is a PEM file
    with the certificate authorities of a gateway with TLS; without it, the setting of that name or the system's.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        home: str | Path | None = None,
        timeout_seconds: float = 600.0,
        tls_ca: str | Path | None = None,
    ) -> None:
        self._home = home
        self._url = _address(url or self._settings.gateway_address)
        self._token = token or user_token(self._settings, url_chosen=url is not None)
        self._timeout = timeout_seconds
        if self._url.scheme == "https":
            self._trusted = caller_context(Path(tls_ca) if tls_ca is not None else self._settings.tls_ca)

    @cached_property
    def _settings(self) -> Settings:
        return load(home=self._home)

    def deploy(
        self,
        file: str | Path,
        *,
        code: str | Path | Sequence[str | Path] = (),
        expect_version: int | None = None,
        manual_cutover: bool = False,
        drop_missing: bool = False,
        no_rematerialize: bool = False,
    ) -> DeployResponse:
        """Deploys the DAG in a file, with the modules that its jobs run: those of `code`, a folder or several, or of
        `./code`."""
        folders = [code] if isinstance(code, str | Path) else code
        request = msgspec.structs.replace(
            deploy_request(self._settings, Path(file), tuple(map(Path, folders))),
            expect_version=expect_version,
            manual_cutover=manual_cutover,
            drop_missing=drop_missing,
            no_rematerialize=no_rematerialize,
        )
        return self._ask("POST", "/api/v1/deploy", DeployResponse, request)

    def versions(self, dag: str, *, limit: int = 20) -> list[VersionView]:
        """Versions of a DAG, newest first, with the progress of one that is being built."""
        return self._ask("GET", "/api/v1/versions", VersionsResponse, dag=dag, limit=limit).versions

    def emit(
        self,
        dataset: str,
        scopes: OneScope | Iterable[OneScope],
        *,
        kind: Literal["data", "invalidation"] = "data",
        emission: str = "",
    ) -> EmitResponse:
        """Emits events of a source dataset, a thousand per request. A number is a cursor, a pair of numbers the
        partition from the first to the last, and text the name of a partition (`2026-11-16`) or a range of them
        (`2026-11-01..2026-11-16`); a list, a range or another iterable holds several."""
        events = (_event(dataset, scope, kind, emission) for scope in _scopes(scopes))
        accepted = duplicates = 0
        while batch := list(itertools.islice(events, MAX_BATCH)):
            answer = self._ask("POST", "/api/v1/events", EmitResponse, EmitRequest(batch))
            accepted, duplicates = accepted + answer.accepted, duplicates + answer.duplicates
        return EmitResponse(accepted, duplicates)

    def status(self) -> StatusResponse:
        """What failed, what is stuck, unfinished tasks, and what each dataset holds."""
        return self._ask("GET", "/api/v1/status", StatusResponse)

    def tasks(
        self,
        *,
        dag: str | None = None,
        job: str | None = None,
        state: str | None = None,
        standing: str | None = None,
        before: UUID | None = None,
        limit: int = 50,
    ) -> list[TaskView]:
        """Tasks, newest first. `before`: the last task of the previous page."""
        return self._ask(
            "GET",
            "/api/v1/tasks",
            TasksResponse,
            dag=dag,
            job=job,
            state=state,
            standing=standing,
            before=before,
            limit=limit,
        ).tasks

    def explain(self, task_id: UUID | str) -> ExplainResponse:
        """Why a task is waiting or failed, with its error, its output and the next step."""
        return self._ask("GET", f"/api/v1/tasks/{_task_id(task_id)}/explain", ExplainResponse)

    def logs(self, task_id: UUID | str) -> TaskLogs:
        """What the attempts of a task wrote, the newest first."""
        return self._ask("GET", f"/api/v1/tasks/{_task_id(task_id)}/logs", TaskLogs)

    def query(
        self,
        sql: str,
        *,
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
        engine: Engine = "auto",
    ) -> pa.Table:
        """The whole result. An incomplete result raises an error; it is never a shorter table. One that Spark computes
        is waited for."""
        import pyarrow.ipc as ipc  # slow to import, and no other call needs it

        with _Pieces(
            self.pieces(
                sql,
                format="arrow",
                as_of_version=as_of_version,
                as_of_time=as_of_time,
                max_rows=max_rows,
                engine=engine,
            )
        ) as file:
            return ipc.open_stream(file).read_all()

    def pieces(
        self,
        sql: str,
        *,
        format: Format = "arrow",
        as_of_version: Mapping[str, int] | None = None,
        as_of_time: datetime | None = None,
        max_rows: int | None = None,
        engine: Engine = "auto",
        handed_over: Callable[[QueryTask], None] = lambda task: None,
    ) -> Iterator[bytes]:
        """The result as it arrives, in any format. If Spark computes it, `handed_over` is called with the task, which
        is waited for."""
        versions = dict(as_of_version) if isinstance(as_of_version, Mapping) else as_of_version or {}
        request = QueryRequest(sql, format, versions, as_of_time, max_rows, engine)
        try:
            yield from self._call("POST", "/api/v1/query", request)
        except _HandedOver as over:
            made = over.task
        else:
            return
        handed_over(made)
        self._wait_for(made)
        again = QueryRequest(f'from "{made.dataset}"', format, max_rows=max_rows)  # named by the platform
        yield from self._call("POST", "/api/v1/query", again)

    def query_plan(
        self, sql: str, *, as_of_version: Mapping[str, int] | None = None, engine: Engine = "auto"
    ) -> QueryPlan:
        """Which engine would run a query, and what it would read."""
        request = QueryRequest(sql, as_of_version=dict(as_of_version or {}), engine=engine)
        return self._ask("POST", "/api/v1/query-plan", QueryPlan, request)

    def _wait_for(self, made: QueryTask) -> None:
        while (
            task := self._ask("GET", f"/api/v1/tasks/{made.task_id}", TaskDetail).task
        ).state not in _ENDED:
            time.sleep(_POLL_SECONDS)
        if task.state != "completed":
            error = task.error or {}
            raise Conflict(
                "query.task_failed",
                f"Spark did not compute the result: {error.get('message') or task.state}",
                value=str(made.task_id),
                next_step=f"see traceplane explain {made.task_id}",
            )

    @contextlib.contextmanager
    def execution(self, execution_id: str) -> Iterator[ExecutionView | None]:
        """For a Celery worker that received a message about an execution: claims it and yields it, or yields None if
        another worker has it. It completes when the block ends, and fails when the block raises."""
        path = f"/api/v1/executions/{execution_id}"
        try:
            claimed = self._move(path, ExecutionChange("RUNNING"))
        except Conflict:
            yield None
            return
        try:
            yield claimed
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:20_000]
            self._patiently_move(path, ExecutionChange("FAILED", text))
            raise
        self._patiently_move(path, ExecutionChange("COMPLETED"))

    def _move(self, path: str, change: ExecutionChange) -> ExecutionView:
        return msgspec.json.decode(b"".join(self._call("PATCH", path, change)), type=ExecutionView)

    def _patiently_move(self, path: str, change: ExecutionChange) -> None:
        """Retries the report while the gateway is unavailable; reporting twice is harmless."""
        tries = pauses(0.1, 5.0, seconds=_REPORT_PATIENCE_SECONDS)
        while True:
            try:
                self._move(path, change)
                return
            except Conflict:
                return  # it was declared lost in the meantime
            except PlatformError:
                if (pause := next(tries, None)) is None:
                    raise
                time.sleep(pause)

    def _ask(
        self, method: str, path: str, kind: type[Answer], body: msgspec.Struct | None = None, **query: object
    ) -> Answer:
        parameters = {name: str(value) for name, value in query.items() if value is not None}
        target = f"{path}?{urlencode(parameters)}" if parameters else path
        return msgspec.json.decode(b"".join(self._call(method, target, body)), type=kind)

    def _connection(self) -> http.client.HTTPConnection:
        if self._url.scheme == "http":
            return http.client.HTTPConnection(self._url.netloc, timeout=self._timeout)
        return http.client.HTTPSConnection(self._url.netloc, timeout=self._timeout, context=self._trusted)

    def _call(self, method: str, path: str, body: msgspec.Struct | None) -> Iterator[bytes]:
        content = _encoded(body) if body is not None else None
        connection = self._connection()
        mark, held = uuid4().hex, b""
        try:
            connection.request(
                method,
                self._url.path.rstrip("/") + path,
                content,
                {
                    "authorization": f"Bearer {self._token}",
                    "content-type": "application/json",
                    ERROR_MARK: mark,
                },
            )
            answer = connection.getresponse()
            if answer.status >= 400:
                raise as_error(answer.status, answer.read())
            if path == "/api/v1/query" and answer.getheader("traceplane-engine") == "spark":
                raise _HandedOver(msgspec.json.decode(answer.read(), type=QueryTask))
            # One piece behind, because the error of an answer that is cut off may begin in the piece before.
            while piece := answer.read(_PIECE_BYTES):
                if held:
                    yield held
                held = piece
            if held:
                yield held
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, http.client.IncompleteRead):
                reason = error_after(mark.encode(), held + error.partial)
                if reason is not None:
                    raise reason from None
            message = "the service did not answer, or its answer was cut off"
            raise unreachable(self._url.geturl(), message, error) from error
        finally:
            connection.close()


class _HandedOver(Exception):
    def __init__(self, task: QueryTask) -> None:
        super().__init__(str(task.task_id))
        self.task = task


def deploy_request(
    settings: Settings, file: Path, code: Sequence[Path], *, code_on_workers: bool = False
) -> DeployRequest:
    """The request to deploy a file. Problems are raised before anything is sent.

    `code_on_workers`: modules missing from the folders here are on the workers; this is not checked.
    """
    # Imports a SQL parser, which no other call needs.
    from traceplane.registry import code_identity, code_project, job_checks, job_requirements, package_locks
    from traceplane.registry.spec import dag_file

    dag, text = dag_file.load(file, known_runtimes=frozenset(settings.runtimes)), file.read_text()
    folders = tuple(code) or tuple(path for path in settings.worker_code_paths if path.is_dir())
    project = code_project.project_in(folders)
    files = job_requirements.read_files(dag, file.parent)
    dag = job_requirements.with_requirements(dag, settings.runtimes, files, project)
    job_checks.refuse(
        dag,
        settings.runtimes,
        project,
        text,
        str(file),
        is_elsewhere=lambda package: code_on_workers or _is_installed(package),
        no_folder=None if folders else ", ".join(map(str, settings.worker_code_paths)),
        knows_packages=False,
    )
    modules = code_identity.collect(
        dag, settings.runtimes, folders, is_installed=_is_installed, all_are_there=not code_on_workers
    )
    locks = package_locks.make(dag, files, file.parent)
    return DeployRequest(text, str(file), code=modules or None, requirement_files=files, locks=locks)


def _encoded(body: msgspec.Struct) -> bytes:
    """The body as it is sent, checked here: the arguments of a call become its fields, and Python checks no types."""
    try:
        content = msgspec.json.encode(body)
        msgspec.json.decode(content, type=type(body))
    except msgspec.ValidationError as error:
        text = in_words(error)
        place = re.match(r"`(\w+)", text)
        value = getattr(body, place[1], None) if place is not None else None
        raise _bad_argument(text, value) from None
    except (TypeError, ValueError) as error:  # a value that JSON cannot hold
        raise _bad_argument(f"an argument cannot be sent: {error}", body) from None
    return content


def _bad_argument(message: str, value: object) -> InvalidInput:
    return InvalidInput(
        "client.bad_argument", message, value=repr(value), next_step="see docs/reference/client.md"
    )


def _task_id(text: UUID | str) -> UUID:
    try:
        return UUID(str(text))
    except ValueError:
        raise InvalidInput(
            "client.bad_argument",
            "`task_id` must be a UUID",
            value=text,
            next_step="use an id from `tasks()` or `traceplane tasks`",
        ) from None


def _address(url: str) -> SplitResult:
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise InvalidInput(
            "client.bad_argument",
            "the address of a gateway must start with http:// or https://, and name a host",
            value=url,
            next_step="for example http://127.0.0.1:7461",
        )
    return address


def _is_installed(package: str) -> bool:
    """Modules in the current folder do not count, although Python may look there too."""
    elsewhere = [path for path in sys.path if Path(path or ".").resolve() != Path.cwd()]
    return PathFinder.find_spec(package, elsewhere) is not None


def _event(
    dataset: str, scope: Scope | str, kind: Literal["data", "invalidation"], emission: str
) -> ManualEvent:
    if isinstance(scope, Scope):
        return ManualEvent(dataset, scope, kind, emission)
    first, _, last = scope.partition("..")
    return ManualEvent(dataset, None, kind, emission, partition=first, through=last or None)


def _scopes(scopes: OneScope | Iterable[OneScope]) -> Iterator[Scope | str]:
    if isinstance(scopes, int | str | bytes | Cursor | Partition | Scope) or _is_pair(scopes):
        return iter([_scope(scopes)])
    try:
        return map(_scope, iter(scopes))
    except TypeError:  # a number type of another library, or not a scope at all
        return iter([_scope(scopes)])


def _is_pair(scopes: object) -> bool:
    """A tuple of two numbers is one partition; two cursors are a list."""
    return isinstance(scopes, tuple) and len(scopes) == 2 and all(hasattr(end, "__index__") for end in scopes)


def _scope(scope: object) -> Scope | str:
    try:
        match scope:
            case Scope():
                return scope
            case str() if scope and not scope.lstrip("-").isdigit():
                return scope
            case Cursor(position):
                return _cursor(position)
            case Partition(name, start, end):
                return _partition(name, start, end)
            case (first, last):
                return _partition(f"{first}-{last}", first, last)
            case _:
                return _cursor(scope)
    except (TypeError, ValueError):
        raise InvalidInput(
            "client.bad_scope",
            "a scope must be a 64-bit integer, a pair (first, last) of them, or the name of a partition",
            value=repr(scope),
            next_step="for example 30, (40, 46), range(14), [30, (40, 46)] or '2026-11-16'",
        ) from None


def _cursor(position: object) -> Scope:
    return Scope(cursor=_position(position))


def _partition(name: str, first: object, last: object) -> Scope:
    start, end = _position(first), _position(last)
    if start > end:
        raise InvalidInput(
            "client.empty_range",
            "the partition ends before it starts",
            value=f"({start}, {end})",
            next_step=f"write the smaller position first: ({end}, {start})",
        )
    return Scope(partition_key=name, start=start, end=end)


def _position(value: object) -> int:
    """Raises TypeError or ValueError."""
    if isinstance(value, bool):
        raise TypeError("a boolean is not a position")
    return msgspec.convert(operator.index(value), Position)  # type: ignore[arg-type]


class _Pieces:
    """A file object over the pieces, for pyarrow to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest, self.closed = pieces, b"", False

    def __enter__(self) -> _Pieces:
        return self

    def __exit__(self, *_: Any) -> None:
        self._pieces.close()  # type: ignore[attr-defined]
        self.closed = True

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        pieces = [self._rest]
        have = len(self._rest)
        while size < 0 or have < size:
            piece = next(self._pieces, b"")
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        data = b"".join(pieces)
        if size < 0:
            self._rest = b""
            return data
        self._rest = data[size:]
        return data[:size]
