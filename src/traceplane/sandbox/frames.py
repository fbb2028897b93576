"""Messages between the wrapper, the fork server, its slots and the child that runs a task.

    wrapper ── Configure, OpenSlot ──► fork server ── Hello ──► wrapper
    wrapper ── Kill, Inspect ──► slot ── Ready (with the child's channel and log pipe), Inspected, Exited ──► wrapper
    wrapper ── Assign, EventsAccepted, EventsRefused ──► child
    child ── Started, Progress, Declined, Passed, Events, Succeeded, Failed ──► wrapper

A frame is a four-byte length and JSON. Everything from the child is treated as hostile: it is bounded in size and
decoded into exactly these types or not at all.
"""

from __future__ import annotations

import array
import socket
import struct
from typing import Annotated, Literal

import msgspec

from traceplane.model import checks
from traceplane.model.json_object import JsonObject
from traceplane.model.task_payload import TaskPayload

_LENGTH = struct.Struct(">I")
_MAX_TRUSTED_FRAME = 1 << 30
_MAX_DESCRIPTORS = 4


class FrameInvalid(Exception):
    """A frame that is too large, cut short, or not what was expected."""

    code = "operator.result_invalid"


class OutputInUse(FrameInvalid):
    """An output that can still be written to after the operator has ended."""

    code = "operator.output_in_use"


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one task may use. Memory and cpu are per process, the rest for the whole task."""

    memory_bytes: int | None = 4 << 30
    cpu_seconds: int | None = None
    open_files: int = 1024
    processes: int = 128
    """Processes and threads."""
    file_bytes: int = 8 << 30
    """The largest single file."""
    disk_bytes: int | None = 32 << 30
    """All files of the task together; checked every half second."""
    result_bytes: int = 8 << 20
    """One frame from the child: the result, or one batch of streamed events."""
    log_bytes: int = 4 << 20
    """How much is forwarded to `on_log`; beyond it the log is read slowly and only its tail is kept."""


class Reach(msgspec.Struct, frozen=True, tag=True):
    """Operators reach other machines; connections are supervised (`linux.connect_supervisor`)."""

    allowed: list[str] = []
    denied: list[str] = []
    never: list[str] = []
    """Denied even if it is allowed."""


class ReachSpark(msgspec.Struct, frozen=True, tag=True):
    """Operators reach the port of their task's Spark server, and nothing else."""


class ReachNothing(msgspec.Struct, frozen=True, tag=True):
    pass


class ServeSpark(msgspec.Struct, frozen=True, tag=True):
    """The Spark server itself: TCP, within its network."""


NetworkAccess = Reach | ReachSpark | ReachNothing | ServeSpark


class Configure(msgspec.Struct, frozen=True):
    """May carry descriptors of the network namespace for the fork server to enter."""

    folder: str
    network: NetworkAccess
    uids: list[int]
    disabled: list[str]
    preload: list[str]
    hidden: list[str]


class OpenSlot(msgspec.Struct, frozen=True):
    """Carries one descriptor: the slot's end of its control socket."""

    slot: int
    uid: int | None


class Hello(msgspec.Struct, frozen=True):
    active: list[str]
    missing: dict[str, str]
    landlock_abi: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    """Ignored unless that child is the current one."""

    pid: int
    grace_seconds: float


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Asks for the state of a child that says it has finished its task. Ignored if it has ended."""

    pid: int


SlotRequest = Kill | Inspect


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Carries the wrapper's ends of the child's channel and log pipe, and with namespaces its pidfd."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """Sent once no process of the task is left."""

    pid: int
    exit_code: int | None
    signal: int | None
    cpu_seconds: float
    max_rss_bytes: int
    leftovers: bool
    """Whether processes outlived the operator and had to be killed."""


class Inspected(msgspec.Struct, frozen=True, tag=True):
    pid: int
    alone: bool
    """Whether it is the only process of its slot."""
    cpu_seconds: float
    """Since it was forked."""
    resident_bytes: int
    grown_bytes: int
    """Growth of its resident memory over a child that has run nothing."""


SlotReport = Ready | Inspected | Exited


class Assign(msgspec.Struct, frozen=True):
    task_id: str
    attempt: int
    entrypoint: str
    payload: TaskPayload
    code_paths: list[str]
    readable: list[str]
    writable: list[str]
    """Both apply to the first task of a child; it stays confined to them."""
    output_folders: dict[str, str]
    temp: str
    limits: RunLimits
    streaming: bool
    keep: bool
    """After this task, wait for another one."""
    error_codes: list[str] = []
    """Error codes that the operator may raise, besides those of the platform."""
    spark_port: int | None = None
    inline_bytes: int = 0
    """How many bytes of files may come with the result."""
    batch: int = 0
    """Tasks with the same number were sent together; 0: it was sent alone."""
    leads: bool = False
    """Whether it is the first of its batch."""
    batch_ends_ns: int = 0
    """Monotonic clock. From then on no task of the batch but the first is started: the others run elsewhere."""

    @property
    def log_end(self) -> bytes:
        """Marks the end of the log of a task in a batch, so that each task has its own log."""
        return f"\0{self.task_id}\n".encode() if self.batch else b""


class EventsAccepted(msgspec.Struct, frozen=True, tag=True):
    batch: int


class EventsRefused(msgspec.Struct, frozen=True, tag=True):
    batch: int
    code: str
    message: str


FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._=-]{0,199}\Z")]
Content = bytes
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Position = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{0,64}\Z")]
ApplicationId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{0,100}\Z")]
Name = Annotated[str, msgspec.Meta(max_length=512, pattern=r"^[^\x00]+$")]
Emission = Annotated[str, msgspec.Meta(max_length=256, pattern=r"^[^\x00]*$")]
Bound = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"^[^\x00]*$")]
SampledValue = Annotated[str, msgspec.Meta(max_length=checks.LONGEST_VALUE, pattern=r"^[^\x00]*$")]
_Several = msgspec.Meta(max_length=10_000)
"""The maximum in a report to the dispatcher."""
_SMALLEST_FILE = 128
"""The minimum that a file in the result counts; no Parquet file is smaller."""


class EventScope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A cursor, or a partition with both ends."""

    cursor: Position | None = None
    partition_key: Name | None = None
    start: Position | None = None
    end: Position | None = None

    def __post_init__(self) -> None:
        is_cursor = self.cursor is not None
        bounds = (self.partition_key, self.start, self.end)
        if (
            any(bound is not None for bound in bounds)
            if is_cursor
            else any(bound is None for bound in bounds)
        ):
            raise ValueError("a scope must be either a cursor or a partition_key with start and end")
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ValueError("a scope must not start after its end")


class EmittedEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    output_index: Annotated[int, msgspec.Meta(ge=0, le=10_000)]
    scope: EventScope
    kind: Literal["data", "invalidation"]
    emission: Emission


class Started(msgspec.Struct, frozen=True, tag=True):
    """The operator is about to be called; the time is the system-wide monotonic clock."""

    monotonic_ns: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Progress of the operator's Spark job."""

    stages: Count
    tasks: Count
    tasks_done: Count
    application: ApplicationId = ""
    """By which Spark's own interface knows it."""

    def figures(self) -> JsonObject:
        figures: JsonObject = {"stages": self.stages, "tasks": self.tasks, "tasks_done": self.tasks_done}
        return figures | ({"application": self.application} if self.application else {})


class Declined(msgspec.Struct, frozen=True, tag=True):
    """The task was not started: the code on disk has changed since this child loaded it."""


class Passed(msgspec.Struct, frozen=True, tag=True):
    """The task was not started, and neither will the rest of its batch be: its time is over."""


class Events(msgspec.Struct, frozen=True, tag=True):
    batch: Count
    events: list[EmittedEvent]


class ColumnBounds(msgspec.Struct, frozen=True):
    min: Bound | Position | float | bool | None = None
    max: Bound | Position | float | bool | None = None
    null_count: Count | None = None


class ReportedFile(msgspec.Struct, frozen=True):
    name: FileName
    rows: Count
    bytes: Count
    statistics: dict[Name, ColumnBounds] = {}
    content: Content | None = None
    """Content of a small file that is not in the output's folder."""
    stored: bool = False
    """Whether Spark's executors have stored it, as the operator's process says."""

    def __post_init__(self) -> None:
        if self.content is not None and len(self.content) != self.bytes:
            raise ValueError("a file's content does not have the reported size")
        if self.stored and self.content is not None:
            raise ValueError("a file is stored, or comes with the report, not both")


class ReportedColumn(msgspec.Struct, frozen=True):
    name: Name
    type: Name
    nullable: bool = True


class ReportedCheck(msgspec.Struct, frozen=True):
    """A check that the output does not meet."""

    name: Name
    rows: Count
    sample: Annotated[
        list[Annotated[dict[Name, SampledValue | None], msgspec.Meta(max_length=checks.MOST_COLUMNS)]],
        msgspec.Meta(max_length=checks.MOST_SAMPLED),
    ] = []
    error: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.]{0,100}$")] = ""


class ReportedOutput(msgspec.Struct, frozen=True):
    name: str
    files: list[ReportedFile]
    schema_hash: Digest | None
    columns: Annotated[list[ReportedColumn], _Several] = []
    broken_checks: Annotated[list[ReportedCheck], _Several] = []

    def __post_init__(self) -> None:
        if len({file.name for file in self.files}) < len(self.files):
            raise ValueError("a file is reported twice")


class Succeeded(msgspec.Struct, frozen=True, tag=True):
    outputs: list[ReportedOutput]
    events: Annotated[list[EmittedEvent], _Several]

    @property
    def inline_bytes(self) -> int:
        """Total size of the files in the result. The wrapper writes them, in its own time."""
        files = (file for output in self.outputs for file in output.files)
        return sum(max(len(file.content), _SMALLEST_FILE) for file in files if file.content is not None)


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a run failed: a stable code, one sentence, and where it happened if that is known."""

    code: str
    message: str
    type: str | None = None
    traceback: str | None = None
    file: str | None = None
    line: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    hint: str | None = None


class Failed(msgspec.Struct, frozen=True, tag=True):
    error: Failure


FromChild = Started | Progress | Declined | Passed | Events | Succeeded | Failed

_from_child: msgspec.json.Decoder[FromChild] = msgspec.json.Decoder(FromChild)


def encode(message: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(message)
    return _LENGTH.pack(len(body)) + body


def frame_length(header: bytes | bytearray, limit: int) -> int:
    length: int = _LENGTH.unpack(header)[0]
    if length > limit:
        raise FrameInvalid(f"a frame of {length} bytes; the limit is {limit}")
    return length


def decode_from_child(body: bytes) -> FromChild:
    try:
        return _from_child.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise FrameInvalid(f"not a frame of a child: {str(error)[:200]}") from error


def send(connection: socket.socket, message: msgspec.Struct, descriptors: tuple[int, ...] = ()) -> None:
    """Blocking; the descriptors travel with the first byte."""
    data = encode(message)
    if descriptors:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        sent = connection.sendmsg([data], [rights])
        data = data[sent:]
    connection.sendall(data)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Blocking; one frame's body and its descriptors. Raises EOFError when the other end is gone."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    header, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, _MAX_DESCRIPTORS, flags)
    header += _receive_exactly(connection, _LENGTH.size - len(header))
    return _receive_exactly(connection, frame_length(header, _MAX_TRUSTED_FRAME)), descriptors


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise EOFError("the other end closed the connection")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
