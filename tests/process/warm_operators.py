"""Operators that look at what an earlier task of the same process left, and then leave something."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from traceplane.sdk import OperatorTask

CHANNEL = 3
SO_PEEK_OFF = 42
PROCESS = os.urandom(8).hex()
"""The same for all tasks that run in one process."""
earlier: list[str] = []
kept_open: list[Any] = []


def look_then_act(task: OperatorTask) -> Any:
    tell(
        process=PROCESS,
        earlier=list(earlier),
        temp=own_entries(str(task.temp_dir)),
        environment=dict(os.environ),
        cwd=os.getcwd(),
        umask=read_umask(),
        path=list(sys.path),
        arguments=list(sys.argv),
        polite_end=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
    )
    earlier.append(task.task_id)
    for name in task.config.get("acts", ()):
        ACTS[name](task)


def tell(**facts: Any) -> None:
    print("TELL " + json.dumps(facts), flush=True)


def own_entries(folder: str) -> list[str]:
    """Without the mount points of what lies below /tmp outside as well."""
    return sorted(e.name for e in os.scandir(folder) if e.stat(follow_symlinks=False).st_uid == os.getuid())


def read_umask() -> int:
    found = os.umask(0o077)
    os.umask(found)
    return found


def attempt(act: Callable[[], Any]) -> str:
    try:
        return f"did: {act()!r:.200}"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)


# --- leaving something ------------------------------------------------------------------------------


def leave_files(task: OperatorTask) -> None:
    below = task.temp_dir / "folder" / "deeper"
    below.mkdir(parents=True)
    (below / "file").write_text("left")
    (task.temp_dir / "left-behind").write_text("left")
    Path("/dev/shm/shared").write_text("left")
    os.mkfifo(task.temp_dir / "pipe")
    (task.temp_dir / "link").symlink_to(task.config["victim"])
    (task.temp_dir / "folder" / "link").symlink_to(os.path.dirname(task.config["victim"]))
    (task.temp_dir / "closed").mkdir(mode=0)


def leave_deep_folders(task: OperatorTask) -> None:
    path = task.temp_dir
    for _ in range(100):
        path = path / "d"
    path.mkdir(parents=True)


def disturb_surroundings(task: OperatorTask) -> None:
    os.environ["LEFT"] = "behind"
    del os.environ["HOME"]
    os.chdir("/")
    os.umask(0)
    sys.path.insert(0, "/nowhere")
    sys.argv.append("left")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout = sys.stderr


def write_rows(task: OperatorTask) -> None:
    task.write("rows", [{"n": 1}])


def write_file(task: OperatorTask) -> None:
    """Rows that lie in the output's folder, as those of a large output do."""
    table = pa.table({"n": [1]})
    with task.open_writer("rows", table.schema) as write:
        write(table)


def write_unreported(task: OperatorTask) -> None:
    (task.outputs["rows"].folder / "unreported").write_text("x")


def keep_output_open(task: OperatorTask) -> None:
    write_file(task)
    kept_open.append(os.open(_part(task), os.O_RDWR))


def keep_output_mapped(task: OperatorTask) -> None:
    write_file(task)
    with open(_part(task), "r+b") as file:
        kept_open.append(mmap.mmap(file.fileno(), 0))


def keep_output_in_flight(task: OperatorTask) -> None:
    """A descriptor that no table of this process holds: it is under way in a socket."""
    write_file(task)
    one, other = socket.socketpair()
    with open(_part(task), "r+b") as file:
        socket.send_fds(one, [b"x"], [file.fileno()])
    kept_open.append((one, other))


def reach_old_outputs(task: OperatorTask) -> None:
    """After a task whose outputs were sealed: try to change them."""
    old = task.config["old"]
    tell(
        wrote=attempt(lambda: os.open(old, os.O_RDWR)),
        removed=attempt(lambda: os.unlink(old)),
        planted=attempt(lambda: Path(old).with_name("planted").write_text("x")),
        owned=attempt(lambda: os.chmod(old, 0o666)),
        read=attempt(lambda: bool(Path(old).read_bytes())),
    )


def _part(task: OperatorTask) -> Path:
    return task.outputs["rows"].folder / "part-00000.parquet"


# --- being no good any more ------------------------------------------------------------------------------


def fail(task: OperatorTask) -> None:
    raise LookupError("no")


def leave(task: OperatorTask) -> None:
    sys.exit(0)


def die(task: OperatorTask) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang(task: OperatorTask) -> None:
    time.sleep(1000)


def start_process(task: OperatorTask) -> None:
    subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)


def start_orphan(task: OperatorTask) -> None:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    os.wait()


def use_process(task: OperatorTask) -> None:
    subprocess.run(["/bin/true"], check=True)


def print_later(task: OperatorTask) -> None:
    threading.Timer(0.1, print, ("after its end",)).start()


def speak_later(task: OperatorTask) -> None:
    threading.Timer(0.1, _send, (b'{"type":"Started","monotonic_ns":1}',)).start()


def speak_garbage(task: OperatorTask) -> None:
    _send(b"garbage")
    time.sleep(1000)


def answer_unread(task: OperatorTask) -> None:
    """For every task that comes, as if it had been run, and leave it in the channel, until that is full."""
    channel = socket.socket(fileno=os.dup(CHANNEL))
    channel.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
    done = _frame(b'{"type":"Succeeded","outputs":[],"events":[]}')
    os.write(CHANNEL, done)
    while True:
        (length,) = struct.unpack(">I", _peeked(channel, 4))
        _peeked(channel, length)
        os.write(CHANNEL, _frame(b'{"type":"Started","monotonic_ns":%d}' % time.monotonic_ns()) + done)


def _peeked(channel: socket.socket, size: int) -> bytes:
    seen = b""
    while len(seen) < size:
        seen += channel.recv(size - len(seen), socket.MSG_PEEK)
    return seen


def _frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def speak_twice(task: OperatorTask) -> None:
    done = b'{"type":"Succeeded","outputs":[],"events":[]}'
    frame = struct.pack(">I", len(done)) + done
    os.write(CHANNEL, frame + frame)
    time.sleep(1000)


def say_it_starts_now(task: OperatorTask) -> None:
    """After it has run for a while."""
    time.sleep(task.config["seconds"])
    started = json.dumps({"type": "Started", "monotonic_ns": time.monotonic_ns()}).encode()
    os.write(CHANNEL, struct.pack(">I", len(started)) + started)


def end_later(task: OperatorTask) -> None:
    threading.Timer(0.1, os._exit, (0,)).start()


def spin_later(task: OperatorTask) -> None:
    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=True).start()


def write_later(task: OperatorTask) -> None:
    threading.Timer(0.1, (task.temp_dir / "late").write_text, ("left",)).start()


def grow(task: OperatorTask) -> None:
    kept_open.append(b"x" * (400 << 20))


def _send(body: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(CHANNEL, struct.pack(">I", len(body)) + body)


# --- looking at the same job's other tasks -----------------------------------------------------------------


def hold(task: OperatorTask) -> None:
    """Have files in every place while another task looks for them."""
    (task.temp_dir / "private").write_text("secret")
    (task.outputs["rows"].folder / "private").write_text("secret")
    (task.outputs["rows"].folder / "private").chmod(0o666)
    tell(holding=True)
    time.sleep(task.config["seconds"])
    (task.outputs["rows"].folder / "private").unlink()


def spoil_what_is_sealed(task: OperatorTask) -> None:
    """Wait for a file of somebody else in the folder of this task's output, until it is sealed, and change it."""
    file = _part(task)
    deadline = time.monotonic() + task.config["seconds"]
    tell(watching=True)
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if os.stat(file).st_mode & 0o777 == 0o444:
                os.chmod(file, 0o644)
                Path(file).write_bytes(b"changed")
                tell(spoiled=True)
                return
        time.sleep(0.001)


def look_around(task: OperatorTask) -> None:
    paths = [Path(path) for path in task.config["paths"]]
    tell(
        listed={str(path): attempt(partial(os.listdir, path)) for path in paths},
        read={str(path): attempt((path / "private").read_text) for path in paths},
        planted={str(path): attempt(partial((path / "planted").write_text, "x")) for path in paths},
        replaced={str(path): attempt(partial(os.rename, path, f"{path}-moved")) for path in paths},
    )


ACTS: dict[str, Callable[[OperatorTask], None]] = {
    act.__name__: act
    for act in (
        leave_files,
        leave_deep_folders,
        disturb_surroundings,
        write_rows,
        write_file,
        write_unreported,
        keep_output_open,
        keep_output_mapped,
        keep_output_in_flight,
        reach_old_outputs,
        fail,
        leave,
        die,
        hang,
        start_process,
        start_orphan,
        use_process,
        print_later,
        speak_later,
        speak_garbage,
        speak_twice,
        answer_unread,
        say_it_starts_now,
        end_later,
        spin_later,
        write_later,
        grow,
        hold,
        spoil_what_is_sealed,
        look_around,
    )
}
