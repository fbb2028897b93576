"""Operators and functions that try to get out through Spark, or at others who use it.

Each probe is a function here and one line of a table in `probes`. What came of it is told as one JSON
line of the operator's log: `did: ...` with what it got, or the name of the refusal.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traceplane.sdk import OperatorTask


def tell(**facts: Any) -> None:
    print("TELL " + json.dumps(facts), flush=True)


def attempt(act: Any) -> str:
    """What came of it: the value, or the error's name."""
    try:
        return f"did: {act()!r:.300}"
    except TimeoutError:
        return "ETIMEDOUT"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


# --- what an operator does with them ------------------------------------------------------------------------------


def _session(task: OperatorTask) -> Any:
    from traceplane.dataplane.session import session

    return session(task.config["remote"])


def in_udf(task: OperatorTask) -> None:
    """`config.probes`: [[name, function of this module, arguments]], all run by one Python worker of Spark's."""
    from pyspark.sql.functions import udf

    spark = _session(task)
    probes = json.dumps(task.config["probes"])

    @udf("string")
    def run(_: int) -> str:
        import hostile_spark

        return hostile_spark.run_probes(probes)

    (row,) = spark.range(1).select(run("id").alias("told")).collect()
    for name, outcome in json.loads(row["told"]).items():
        tell(**{name: outcome})


def run_probes(probes: str) -> str:
    outcomes = {}
    for name, act, arguments in json.loads(probes):
        with _given_up_after(60.0):
            outcomes[name] = attempt(functools.partial(globals()[act], *arguments))
    return json.dumps(outcomes)


@contextlib.contextmanager
def _given_up_after(seconds: float) -> Iterator[None]:
    """A probe that hangs is told by its own name, and the others still run."""
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def _give_up(*_: Any) -> None:
    raise TimeoutError


def in_sql(task: OperatorTask) -> None:
    """`config.probes`: [[name, statement]]."""
    spark = _session(task)
    for name, statement in task.config["probes"]:
        tell(**{name: attempt(lambda s=statement: [tuple(row) for row in spark.sql(s).collect()])})


def in_client(task: OperatorTask) -> None:
    """`config.probes`: [[name, function of this module, arguments]], run by the task's own process."""
    for name, act, arguments in task.config["probes"]:
        tell(**{name: attempt(functools.partial(globals()[act], task.config["remote"], *arguments))})


def writes_by_spark(task: OperatorTask) -> None:
    """Well-behaved: reads its input, and has Spark write its output."""
    spark = _session(task)
    rows = spark.read.parquet(*task.inputs["rows"].files) if task.inputs else spark.range(10).toDF("n")
    folder = Path(task.outputs["rows"].folder)
    rows.coalesce(1).write.mode("append").parquet(str(folder))
    for path in sorted(folder.iterdir()):
        if path.suffix == ".parquet":
            task.add_file("rows", path)
        else:
            path.unlink()
    tell(rows=spark.read.parquet(str(folder)).count())


def waits(task: OperatorTask) -> None:
    """For an answer of Spark's that takes longer than any test."""
    _session(task).sql("select reflect('java.lang.Thread', 'sleep', 600000L)").collect()


def spoils_its_output(task: OperatorTask) -> None:
    """As above; then `config.spoil` is done to the folder by a function that Spark runs."""
    from pyspark.sql.functions import udf

    writes_by_spark(task)
    folder, spoil = str(task.outputs["rows"].folder), json.dumps(task.config["spoil"])

    @udf("string")
    def run(_: int) -> str:
        import hostile_spark

        return hostile_spark.run_probes(json.dumps([["spoil", json.loads(spoil), [folder]]]))

    (row,) = _session(task).range(1).select(run("id").alias("told")).collect()
    tell(**json.loads(row["told"]))


# --- probes that Spark's Python workers run -----------------------------------------------------------------------


def read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(4096).decode(errors="replace")


def listing(path: str) -> list[str]:
    return sorted(os.listdir(path))


def overwrite(path: str) -> str:
    with open(path, "r+b") as file:
        file.write(b"FORGED")
    return "written"


def create(path: str) -> str:
    with open(path, "xb") as file:
        file.write(b"FORGED")
    return "created"


def remove(path: str) -> None:
    os.unlink(path)


def replace_by_link(path: str, target: str) -> None:
    os.symlink(target, path + ".link")
    os.replace(path + ".link", path)


def hard_link(source: str, path: str) -> None:
    os.link(source, path)


def change_mode(path: str) -> None:
    os.chmod(path, 0o4777)


def change_owner(path: str) -> None:
    os.lchown(path, os.getuid(), os.getgid())


def change_times(path: str) -> None:
    os.utime(path, (1, 1))


def change_attribute(path: str) -> None:
    os.setxattr(path, "user.mine", b"1")


def chmod_program(path: str) -> str:
    done = subprocess.run(["chmod", "4777", path], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return "changed"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def signal_strangers() -> list[int]:
    """Who can be signalled and is not the server's own: signal 0 asks for the permission only."""
    reached = set()
    for pid in range(2, 70_000):
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            reached.add(pid)
    strangers = reached - _own_processes() - _own_threads()
    return sorted(pid for pid in strangers if os.path.exists(f"/proc/{pid}"))  # others have ended meanwhile


def _own_processes() -> set[int]:
    """Those above this one up to the JVM, and all below the JVM."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            parents[int(name)] = int(read(f"/proc/{name}/stat").rpartition(")")[2].split()[1])
    jvm = os.getpid()
    while "java" not in _program(jvm):
        jvm = parents[jvm]
    own = {jvm}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return own


def _own_threads() -> set[int]:
    threads = set()
    for pid in _own_processes():
        with contextlib.suppress(OSError):
            threads |= {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    return threads


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    return ""


def kill_launcher() -> str:
    """In a pid namespace the signal is sent and does nothing; the test looks at the process."""
    os.kill(_launcher(), signal.SIGKILL)
    return "sent"


def look_at_launcher(name: str) -> str:
    path = f"/proc/{_launcher()}/{name}"
    return str(os.listdir(path)) if name in ("fd", "root") else read(path)


def trace_launcher() -> int:
    return call(101, 117, 16, _launcher())


def _launcher() -> int:
    """The parent of the JVM, as the JVM's /proc has it."""
    jvm = next(pid for pid in _own_processes() if "java" in _program(pid))
    return int(read(f"/proc/{jvm}/stat").rpartition(")")[2].split()[1])


def call(x86_64: int, aarch64: int, *arguments: int) -> int:
    """A raw system call."""
    return _syscall(x86_64 if os.uname().machine == "x86_64" else aarch64, *arguments)


def _syscall(number: int, *arguments: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) for a in arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def connect(host: str, port: int) -> str:
    with socket.create_connection((host, port), timeout=2):
        return "connected"


def connect_unix(address: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + address[1:] if address.startswith("@") else address)
        return "connected"


def make_socket(family: int, kind: int, protocol: int) -> str:
    with socket.socket(family, kind, protocol):
        return "made"


def listen() -> int:
    """For ever, in a process that nobody waits for; its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        _start(["/bin/sleep", "1000"], server.fileno())
        return int(server.getsockname()[1])


def _start(command: list[str], *kept: int) -> None:
    nothing = subprocess.DEVNULL
    subprocess.Popen(
        command, pass_fds=kept, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing
    )


def ask_every_port_as_an_executor() -> list[int]:
    """Those who take a message of Spark's own protocol, which is a Java object, from a stranger.

    Who asks for a handshake first says so. (Files that users added are handed out without one; there are none.)
    """
    body = struct.pack(">Bqi", 3, 1, 6) + b"object"
    request = struct.pack(">q", len(body) + 8) + body
    return sorted(port for port in _listening_ports() if _answers(port, request))


def _listening_ports() -> set[int]:
    lines = [line.split() for name in ("tcp", "tcp6") for line in read_all(f"/proc/net/{name}")[1:]]
    mine = str(os.getuid())  # there may be other servers on the machine, of other users
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A" and words[7] == mine}


def read_all(path: str) -> list[str]:
    with open(path) as file:
        return file.read().splitlines()


def _answers(port: int, request: bytes) -> bool:
    answer = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as client:
        client.sendall(request)
        while part := client.recv(4096):
            answer += part
    return len(answer) > 9 and answer[8] in (4, 5) and b"Sasl" not in answer


def daemon(marker: str) -> str:
    _start(["/bin/sleep", marker])
    return "started"


def daemon_that_watches(path: str, copy: str) -> str:
    """Outlives its task, and copies a file as soon as it can be read."""
    _start([sys.executable, "-S", "-c", _WATCHES, path, os.path.join(os.environ["TMPDIR"], copy)])
    return "started"


_WATCHES = """
import os, sys, time
while True:
    try:
        with open(sys.argv[1], "rb") as file:
            data = file.read()
        with open(sys.argv[2] + ".part", "wb") as file:
            file.write(data)
        os.rename(sys.argv[2] + ".part", sys.argv[2])
        break
    except OSError:
        time.sleep(0.01)
"""


def daemon_that_waits_for_a_gap(folder: str) -> str:
    """Tries, without a pause, to leave something in a folder that is shown for reading from time to time."""
    _start(
        [sys.executable, "-S", "-c", _WAITS_FOR_A_GAP, folder, os.path.join(os.environ["TMPDIR"], "enough")]
    )
    return "started"


_WAITS_FOR_A_GAP = """
import os, sys
forged, enough = sys.argv[1] + "/forged", sys.argv[2]
tries = 0
while tries % 4096 or not os.path.exists(enough):
    tries += 1
    try:
        os.mkdir(forged)
    except OSError:
        pass
"""


def in_temp(name: str) -> str:
    """What is in a file that one of the daemons left in the server's temporary folder."""
    return read(os.path.join(os.environ["TMPDIR"], name))


def forget_in_temp(name: str) -> None:
    Path(os.environ["TMPDIR"], name).unlink(missing_ok=True)


def fill_temp(size: int) -> str:
    """In the server's temporary folder, until somebody minds."""
    with open(os.path.join(os.environ["TMPDIR"], "much"), "wb") as file:
        for _ in range(size >> 20):
            file.write(bytes(1 << 20))
    time.sleep(600)
    return "filled"


def make_in_temp(name: str) -> str:
    return create(os.path.join(os.environ["TMPDIR"], name))


def limit_of(name: str) -> int:
    """The hard limit of this process, after trying to raise it."""
    kind = getattr(resource, name)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return resource.getrlimit(kind)[1]


def hoard_memory() -> str:
    hoard: list[object] = []
    with contextlib.suppress(MemoryError):
        while len(hoard) < 1024:
            hoard.append(bytearray(64 << 20))  # zeroed pages that nobody touches cost nothing
    return f"{len(hoard) * 64} MB"


def write_proc(path: str, text: str) -> str:
    with open(path, "w") as file:
        file.write(text)
    return "written"


_USUAL = (
    *(
        "HOME",
        "JAVA_HOME",
        "LANG",
        "PATH",
        "PWD",
        "PYSPARK_PYTHON",
        "PYTHONPATH",
        "PYTHONUNBUFFERED",
        "SHLVL",
    ),
    *(
        "SPARK_HOME",
        "SPARK_LOCAL_IP",
        "SPARK_LOCAL_DIRS",
        "SPARK_JOB_ARTIFACT_UUID",
        "TMPDIR",
        "TZ",
        "_",
        "LC_CTYPE",
        "OMP_NUM_THREADS",
    ),
)


def unusual_environment() -> list[str]:
    """All but what says how Spark and Python are to run; no more than fits into what is told."""
    mine = (
        "PYTHON_",
        "PYSPARK_",
        "SPARK_BUFFER",
        "SPARK_REUSE",
        "SPARK_AUTH",
        "SPARK_SIMPLIFIED",
        "SPARK_PYTHON",
    )
    return sorted(name for name in os.environ if name not in _USUAL and not name.startswith(mine))


def identity() -> dict[str, Any]:
    status = dict(line.split(":", 1) for line in read_all("/proc/self/status") if ":" in line)
    names = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    return {"uid": os.getuid(), **{name: int(status[name], 16) for name in names}}


# --- what a function does to its task's output --------------------------------------------------------------------


def keep_file_open(folder: str) -> str:
    (path,) = Path(folder).glob("*.parquet")
    with open(path, "r+b") as file:
        _start(["/bin/sleep", "1000"], file.fileno())
    return "kept"


def keep_folder_open(folder: str) -> str:
    """Somebody who lives on has it, and waits for a sign."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import hostile_spark; hostile_spark.use_kept_folder()"
    )
    folder_of_this = str(Path(__file__).parent)
    _start([sys.executable, "-c", code, folder_of_this, str(descriptor)], descriptor)
    os.close(descriptor)
    return "kept"


def use_kept_folder() -> None:
    descriptor, temp = int(sys.argv[2]), os.environ["TMPDIR"]
    while not os.path.exists(f"{temp}/use the folder"):
        time.sleep(0.01)
    outcomes = {
        "create": attempt(lambda: os.open("forged", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor)),
        "make a folder": attempt(lambda: os.mkdir("forged folder", dir_fd=descriptor)),
    }
    for name in os.listdir(descriptor):
        outcomes["overwrite"] = attempt(lambda n=name: os.open(n, os.O_WRONLY, dir_fd=descriptor))
        outcomes["change the mode"] = attempt(lambda n=name: os.chmod(n, 0o666, dir_fd=descriptor))
        outcomes["rename"] = attempt(
            lambda n=name: os.rename(n, "gone", src_dir_fd=descriptor, dst_dir_fd=descriptor)
        )
        outcomes["remove"] = attempt(lambda n=name: os.unlink(n, dir_fd=descriptor))
    Path(f"{temp}/outcomes.part").write_text(json.dumps(outcomes))
    os.rename(f"{temp}/outcomes.part", f"{temp}/outcomes")


_EXCHANGES = """
import errno, os, sys, time
folder, told = int(sys.argv[1]), sys.argv[2]
outcome = ""
while not outcome:
    time.sleep(0.0002)
    try:
        for name in os.listdir(folder):
            if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & 0o777 == 0o444:
                os.rename(name, "." + name, src_dir_fd=folder, dst_dir_fd=folder)
                os.symlink("/etc", name, dir_fd=folder)
                outcome = "exchanged"
    except FileNotFoundError:
        pass  # Spark renames and removes files while it writes
    except OSError as error:
        outcome = errno.errorcode[error.errno]
with open(told + ".part", "w") as file:
    file.write(outcome)
os.rename(told + ".part", told)
"""


def exchange_once_sealed(folder: str) -> str:
    """Somebody who lives on waits for the moment at which the worker has looked at a file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    told = os.path.join(os.environ["TMPDIR"], "exchanged")
    _start([sys.executable, "-S", "-c", _EXCHANGES, str(descriptor), told], descriptor)
    os.close(descriptor)
    return "waits"


def exchange_by_link(folder: str) -> str:
    (path,) = Path(folder).glob("*.parquet")
    path.unlink()
    path.symlink_to("/etc/passwd")
    return "exchanged"


def link_twice(folder: str) -> str:
    (path,) = Path(folder).glob("*.parquet")
    os.link(path, Path(folder) / "second name")
    return "linked"


def exchange_by_folder(folder: str) -> str:
    (path,) = Path(folder).glob("*.parquet")
    path.unlink()
    path.mkdir()
    return "exchanged"


def exchange_by_pipe(folder: str) -> str:
    (path,) = Path(folder).glob("*.parquet")
    path.unlink()
    os.mkfifo(path)
    return "exchanged"


def set_id_file(folder: str) -> str:
    path = Path(folder) / "program"
    path.write_bytes(b"#!/bin/sh\n")
    path.chmod(0o6755)
    return "made"


# --- probes of Connect, from the task's own process ---------------------------------------------------------------


def _address(remote: str) -> str:
    return remote.partition("/;")[0]


def _rows_of(remote: str) -> int:
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    builder = DefaultChannelBuilder(remote)
    opened = SparkSession.builder.channelBuilder(builder).create()
    opened.client.set_retry_policies([DefaultPolicy(max_retries=0)])
    return int(opened.range(3).count())


def with_the_token(remote: str) -> int:
    return _rows_of(remote)


def without_token(remote: str) -> int:
    return _rows_of(_address(remote))


def with_wrong_token(remote: str) -> int:
    return _rows_of(_address(remote) + "/;authorization=Bearer%20guessed")


def with_token_in_another_header(remote: str) -> int:
    return _rows_of(remote.replace(";authorization=", ";x-authorization="))


def with_token_of_another_kind(remote: str) -> int:
    return _rows_of(remote.replace("Bearer", "Basic"))


def with_cut_token(remote: str) -> int:
    return _rows_of(remote[:-1])


def _client(remote: str) -> Any:
    from traceplane.dataplane.session import session

    return session(remote).client


def send_artifact(remote: str, name: str) -> str:
    """As the client would not do it: with a name that leads elsewhere."""
    from pyspark.sql.connect import proto

    client = _client(remote)
    data = b"FORGED"
    batch = proto.AddArtifactsRequest.Batch(
        artifacts=[
            proto.AddArtifactsRequest.SingleChunkArtifact(
                name=name, data=proto.AddArtifactsRequest.ArtifactChunk(data=data, crc=zlib.crc32(data))
            )
        ]
    )
    request = proto.AddArtifactsRequest(
        session_id=client._session_id,
        user_context=proto.UserContext(user_id=client._user_id or ""),
        batch=batch,
    )
    answer = client._stub.AddArtifacts(iter([request]), metadata=client._builder.metadata())
    if not all(summary.is_crc_successful for summary in answer.artifacts):
        raise RuntimeError("not stored")
    return "stored"


def send_extension(remote: str, where: str) -> str:
    from google.protobuf import any_pb2
    from pyspark.sql.connect import proto

    client = _client(remote)
    message = any_pb2.Any(type_url="type.googleapis.com/hostile.Plugin", value=b"run me")
    plan = proto.Plan()
    if where == "relation":
        plan.root.extension.CopyFrom(message)
    elif where == "expression":
        plan.root.project.input.range.CopyFrom(proto.Range(end=1, step=1))
        plan.root.project.expressions.add().extension.CopyFrom(message)
    else:
        plan.command.extension.CopyFrom(message)
    if where == "command":
        client.execute_command(plan.command)
    else:
        client.to_table(plan, {})
    return "ran"


def run_external_command(remote: str) -> str:
    from pyspark.sql.connect import proto

    command = proto.Command()
    command.execute_external_command.runner = (
        "org.apache.spark.sql.execution.datasources.jdbc.JdbcRelationProvider"
    )
    command.execute_external_command.command = "id"
    _client(remote).execute_command(command)
    return "ran"


def set_conf(remote: str, name: str, value: str) -> str:
    from traceplane.dataplane.session import session

    session(remote).conf.set(name, value)
    return "set"


def use_session_of_another(remote: str) -> list[int]:
    """With the right token, by the id of a session that is not one's own."""
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

    mine = SparkSession.builder.channelBuilder(DefaultChannelBuilder(remote)).create()
    mine.range(3).createOrReplaceTempView("private_view")
    mine.range(5).createOrReplaceGlobalTempView("shared_view")
    identifier = f";session_id={mine.client._session_id}"
    theirs = SparkSession.builder.channelBuilder(DefaultChannelBuilder(remote + identifier)).create()
    other = SparkSession.builder.channelBuilder(DefaultChannelBuilder(remote)).create()
    return [theirs.table("private_view").count(), other.table("global_temp.shared_view").count()]


def reach_server(task: OperatorTask) -> None:
    """From an operator that has nothing to do with Spark, with all that it takes to use it."""
    address = _address(task.config["remote"]).removeprefix("sc://")
    host, _, port = address.partition(":")
    outcomes = {
        "tcp": attempt(lambda: connect(host, int(port))),
        "tcp6": attempt(lambda: connect("::1", int(port))),
        "connect": attempt(lambda: _rows_of(task.config["remote"])),
    }
    tell(**outcomes)
