"""Operators that try to get out, get at others, or take the machine down; and a few well-behaved ones.

Each one reports what it could do with `tell`, as one JSON line of its log. None of them is clever
about hiding: the point is that it does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from traceplane.sdk import OperatorTask

CHANNEL = 3


def tell(**facts: Any) -> None:
    print("TELL " + json.dumps(facts), flush=True)


def attempt(act: Any) -> str:
    """What came of it: the value, or the error's name."""
    try:
        return f"did: {act()!r:.200}"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except Exception as error:
        return type(error).__name__


def read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(4096).decode(errors="replace")


# --- well-behaved -----------------------------------------------------------------------------------


def nothing(task: OperatorTask) -> None:
    pass


def innocent(task: OperatorTask) -> None:
    """Works next to the hostile ones and must not notice them."""
    private = task.temp_dir / "private"
    private.write_text("mine")
    time.sleep(task.config.get("seconds", 0.05))
    assert private.read_text() == "mine"
    task.write("rows", [{"n": n} for n in range(10)])


def wait_for_ever(task: OperatorTask) -> None:
    tell(waiting=True)
    time.sleep(1000)


def double(task: OperatorTask) -> dict[str, Any]:
    """Reads its input, writes one output, returns the other."""
    numbers = task.read("numbers").column("n").to_pylist()
    task.write("doubled", [{"n": 2 * n} for n in numbers])
    task.emit("doubled", scope=task.scope if task.scope is not None else 0, emission="again")
    task.log("doubled", rows=len(numbers))
    return {"count": {"rows": [len(numbers)]}}


def describe(task: OperatorTask) -> None:
    tell(
        task_id=task.task_id,
        attempt=task.attempt,
        kind=task.kind,
        scope=str(task.scope),
        config=task.config,
        inputs={name: [list(i.files), dict(i.where)] for name, i in task.inputs.items()},
        outputs=list(task.outputs),
        temp_exists=task.temp_dir.is_dir(),
        cwd=os.getcwd() == os.path.realpath(task.temp_dir),
    )


def uses_threads_and_processes(task: OperatorTask) -> None:
    seen: list[int] = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    output = subprocess.run(["/bin/echo", "from a program"], capture_output=True, text=True, check=True)
    tell(threads=sorted(seen), output=output.stdout.strip())


def source(task: OperatorTask) -> None:
    """Emits, waits for each acceptance, and says when it had it."""
    for position in range(task.config["count"]):
        task.emit("rows", scope=position)
        tell(accepted=position)
    time.sleep(task.config.get("then_seconds", 0))


def hasty_source(task: OperatorTask) -> None:
    for position in range(task.config["count"]):
        task.emit("rows", scope=position, wait=False)


def writes_elsewhere(task: OperatorTask) -> None:
    task.write("not_declared", [{"n": 1}])


def raises(task: OperatorTask) -> None:
    def inner() -> None:
        raise LookupError("no such ticker: ACME")

    inner()


def raises_unprintable(task: OperatorTask) -> None:
    class Spiteful(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no message for you")

    raise Spiteful


def raises_strange_text(task: OperatorTask) -> None:
    raise ValueError("\0 and \ud800")


# --- looking for secrets ------------------------------------------------------------------------------


def look_at_environment(task: OperatorTask) -> None:
    tell(environment=dict(os.environ), raw=attempt(lambda: read("/proc/self/environ")))


def look_at_descriptors(task: OperatorTask) -> None:
    found = {}
    for descriptor in range(4096):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            found[descriptor] = (
                attempt(lambda d=descriptor: os.pread(d, 100, 0)) if descriptor > CHANNEL else ""
            )
    tell(descriptors=found)


def look_at_processes(task: OperatorTask) -> None:
    """Everything /proc has on every process that can be named."""
    pids = {os.getppid(), *task.config["pids"]}
    with contextlib.suppress(OSError):
        pids |= {int(name) for name in os.listdir("/proc") if name.isdigit()}
    pids -= {os.getpid(), 0}
    found = {}
    for pid in sorted(pids):
        for name in ("environ", "mem", "maps", "fd", "cwd", "root"):
            path = f"/proc/{pid}/{name}"
            act = os.listdir if name == "fd" else os.readlink if name in ("cwd", "root") else read
            outcome = attempt(lambda act=act, path=path: act(path))
            if outcome.startswith("did"):
                found[path] = outcome
    tell(found=found, tried=len(pids))


def trace(task: OperatorTask) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    attach, read_memory = 16, 310 if os.uname().machine == "x86_64" else 270
    outcomes = {}
    for pid in (os.getppid(), *task.config["pids"]):
        traced = libc.ptrace(attach, pid, 0, 0) >= 0
        buffer = ctypes.create_string_buffer(8)
        local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
        remote = (ctypes.c_void_p * 2)(task.config["address"], 8)
        got = libc.syscall(read_memory, pid, local, 1, remote, 1, 0) > 0
        outcomes[str(pid)] = {"traced": traced, "memory": got}
    tell(outcomes=outcomes)


def look_at_files(task: OperatorTask) -> None:
    tell(outcomes={path: attempt(lambda p=path: _open_or_list(p)) for path in task.config["paths"]})


def _open_or_list(path: str) -> Any:
    return os.listdir(path) if os.path.isdir(path) else read(path)


def climb_out(task: OperatorTask) -> None:
    """The ways out of a chroot or a namespace, and links and handles around the rules."""
    target = task.config["path"]
    link = task.temp_dir / "link"
    link.symlink_to(target)
    libc = ctypes.CDLL(None, use_errno=True)
    tell(
        symlink=attempt(lambda: read(str(link))),
        hardlink=attempt(lambda: os.link(target, task.temp_dir / "hard")),
        dots=attempt(lambda: read("/proc/self/root" + target)),
        up=attempt(lambda: read("/".join([".."] * 40) + target)),
        chroot=attempt(lambda: os.chroot(task.temp_dir)),
        unshare=libc.unshare(0x10000000) == 0,
        mount=libc.mount(b"none", os.fsencode(task.temp_dir), b"tmpfs", 0, None) == 0,
        become_root=attempt(lambda: os.setuid(0)),
        device=attempt(lambda: os.mknod(task.temp_dir / "disk", 0o060600, os.makedev(254, 0))),
    )


def write_around(task: OperatorTask) -> None:
    here = str(Path(__file__).parent)
    paths = [here, *task.config["paths"]]
    tell(
        outcomes={path: attempt(lambda p=path: Path(p, "planted.py").write_text("evil")) for path in paths},
        removed=attempt(lambda: os.unlink(__file__)),
        own_temp=attempt(lambda: (task.temp_dir / "x").write_text("fine")),
        shared_temp=attempt(lambda: Path("/tmp/left-behind").write_text("for the next one")),
    )


def leave_something(task: OperatorTask) -> None:
    for folder in {str(task.temp_dir), "/tmp", "/dev/shm", "/var/tmp"}:
        with contextlib.suppress(OSError):
            Path(folder, "left-behind").write_text("for the next one")


def find_something(task: OperatorTask) -> None:
    found = [f"{folder}/left-behind" for folder in (str(task.temp_dir), "/tmp", "/dev/shm", "/var/tmp")]
    tell(found=[path for path in found if os.path.exists(path)], temp=os.listdir(task.temp_dir))


# --- reaching others ------------------------------------------------------------------------------------


def signal_others(task: OperatorTask) -> None:
    pids = [os.getppid(), *task.config["pids"]]
    tell(outcomes={str(pid): attempt(lambda p=pid: os.kill(p, signal.SIGKILL)) for pid in pids})


def call_internal_api(task: OperatorTask) -> None:
    tell(
        http=_status(f"http://127.0.0.1:{task.config['port']}/internal/task-claim"),
        udp=attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))),
        listen=attempt(lambda: socket.create_server(("127.0.0.1", 0)).getsockname()),
    )


def be_reached_and_look_around(task: OperatorTask) -> None:
    def listen_unbound() -> object:
        with socket.socket() as server:
            server.listen(5)
            return server.getsockname()

    def accept() -> object:
        with socket.socket() as server:
            server.settimeout(0.1)
            return server.accept()

    tell(
        listen=attempt(listen_unbound),
        accept=attempt(accept),
        netlink={n: attempt(lambda n=n: socket.socket(16, socket.SOCK_RAW, n).close()) for n in range(22)},
        resolved=attempt(lambda: socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)[0][4][1]),
    )


def look_at_mounts(task: OperatorTask) -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def call(number: int) -> str:
        libc.syscall(number, 0, 0, 0, 0, 0)
        return errno.errorcode[ctypes.get_errno()]

    tell(open_tree_attr=call(467), statmount=call(457), listmount=call(458))


def _status(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return f"did: {response.status}"
    except urllib.error.HTTPError as error:
        return f"did: {error.code}"
    except OSError as error:
        return f"refused: {error}"


def connect_in_every_way(task: OperatorTask) -> None:
    """To this machine, its link and clouds' metadata: by every spelling, socket and call there is."""
    port = task.config["port"]
    own = [(a, port) for a in task.config["addresses"]]
    v4 = [("127.0.0.1", port), ("127.1.2.3", port), ("0.0.0.0", port), ("2130706433", port), ("0x7f.1", port)]
    v6 = [("::1", port), ("::", port), ("::ffff:127.0.0.1", port), ("64:ff9b::7f00:1", port)]
    link = [("169.254.169.254", 80), ("fe80::1", 80), ("fd00:ec2::254", 80), ("::ffff:169.254.169.254", 80)]
    outcomes = {}
    for address in (*own, *v4, *v6, *link):
        for way in (_connect_blocking, _connect_with_timeout, _connect_in_thread):
            outcomes[f"{way.__name__} {address}"] = attempt(lambda w=way, a=address: w(a))
    loopback = ("127.0.0.1", port)
    fast_open = getattr(socket, "MSG_FASTOPEN", 0x20000000)
    with socket.socket() as client:
        outcomes["fast open, sendto"] = attempt(lambda: client.sendto(b"GET", fast_open, loopback))
    with socket.socket() as client:
        outcomes["fast open, sendmsg"] = attempt(lambda: client.sendmsg([b"GET"], [], fast_open, loopback))
    for kind, protocol in ((socket.SOCK_DGRAM, 0), (socket.SOCK_RAW, 1), (socket.SOCK_STREAM, 132)):
        outcomes[f"socket {kind} {protocol}"] = attempt(lambda k=kind, p=protocol: _send(k, p, loopback))
    outcomes["raced"] = _race_for(loopback)
    tell(outcomes=outcomes)


def _connect_blocking(address: tuple[str, int]) -> str:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as client:
        client.connect(address)
        return "connected"


def _connect_with_timeout(address: tuple[str, int]) -> str:
    with socket.create_connection(address, timeout=5):
        return "connected"


def _connect_in_thread(address: tuple[str, int]) -> str:
    outcomes: list[Any] = []

    def connect() -> None:
        try:
            outcomes.append(_connect_blocking(address))
        except OSError as error:
            outcomes.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if isinstance(outcomes[0], OSError):
        raise outcomes[0]
    return str(outcomes[0])


def _send(kind: int, protocol: int, address: tuple[str, int]) -> int:
    with socket.socket(socket.AF_INET, kind, protocol) as client:
        return client.sendto(b"x", address)


def _race_for(address: tuple[str, int]) -> str:
    """Exchanges the address while somebody looks at it: harmless when it is read, this machine's when it is used."""
    harmless = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(9), socket.inet_aton("192.0.2.1"))
    wanted = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(address[1]), socket.inet_aton(address[0]))
    memory = ctypes.create_string_buffer(harmless)
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            ctypes.memmove(memory, wanted, 16)
            ctypes.memmove(memory, harmless, 16)

    thread = threading.Thread(target=exchange)
    thread.start()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        for _ in range(300):
            with socket.socket() as client:
                client.setblocking(False)
                libc.connect(client.fileno(), memory, 16)
                try:
                    if client.getpeername()[0] == address[0]:
                        return "did: connected"
                except OSError:
                    pass
        return "never"
    finally:
        stop.set()
        thread.join()


def connect_usefully(task: OperatorTask) -> None:
    url = f"http://127.0.0.1:{task.config['port']}/"
    from_thread: list[str] = []
    thread = threading.Thread(target=lambda: from_thread.append(_status(url)))
    thread.start()
    thread.join()
    with socket.socket() as client:
        client.connect(("127.0.0.1", task.config["port"]))
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        blocking = f"did: {client.recv(100).split()[1].decode()}"
    program = (
        "import urllib.request, urllib.error\n"
        f"try: urllib.request.urlopen({url!r})\n"
        "except urllib.error.HTTPError as error: print(error.code, end='')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    tell(
        blocking=blocking,
        with_timeout=_status(url),
        thread=from_thread[0],
        program=f"did: {done.stdout}",
        asyncio=attempt(lambda: asyncio.run(_open_and_close(task.config["port"]))),
        closed=attempt(lambda: _connect_blocking(("127.0.0.1", task.config["closed"]))),
        resolver=os.environ.get("RES_OPTIONS"),
    )


async def _open_and_close(port: int) -> bool:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await writer.wait_closed()
    return True


def connect_to_nobody(task: OperatorTask) -> None:
    address = ("127.0.0.1", task.config["port"])
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket() as client:
        libc.connect(client.fileno(), ctypes.c_void_p(8), 16)
        bad = errno.errorcode[ctypes.get_errno()]
    tell(
        blocking=attempt(lambda: _connect_blocking(address)),
        not_blocking=attempt(lambda: _connect_with_timeout(address)),
        bad_address=bad,
    )


def grab_shared_memory(task: OperatorTask) -> None:
    tell(
        shared=attempt(lambda: len(mmap.mmap(-1, 1 << 20))),
        private=attempt(lambda: len(mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))),
    )


def grab_stacks(task: OperatorTask) -> None:
    grows_down = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100
    tell(
        mapped=attempt(lambda: len(mmap.mmap(-1, 1 << 20, flags=grows_down))),
        most=resource.getrlimit(resource.RLIMIT_STACK)[1],
    )


def take_leases(task: OperatorTask) -> None:
    own = task.temp_dir / "own"
    own.write_text("mine")
    with open(own) as file:
        tell(
            lease=attempt(lambda: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)),
            delegation=attempt(lambda: fcntl.fcntl(file, 1040, bytes(8))),
            lock=attempt(lambda: fcntl.flock(file, fcntl.LOCK_EX)),
        )


def change_limits(task: OperatorTask) -> None:
    """Limits and priorities of other processes, and the calls for itself that libraries make."""
    others = [os.getppid() or 1, *task.config["pids"]]
    libc = ctypes.CDLL(None, use_errno=True)
    ioprio_set = {"x86_64": 251, "aarch64": 30}[os.uname().machine]

    def set_io_priority(kind: int, who: int) -> int:
        if (done := libc.syscall(ioprio_set, kind, who, (2 << 13) | 7)) < 0:
            raise OSError(ctypes.get_errno(), "ioprio_set")
        return int(done)

    def calls(pid: int) -> dict[str, Any]:
        return {
            "limit": lambda: resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, 1000)),
            "processor time": lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)),
            "read": lambda: resource.prlimit(pid, resource.RLIMIT_CPU),
            "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
            "scheduler": lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
            "parameters": lambda: os.sched_setparam(pid, os.sched_param(0)),
            "disk": lambda: set_io_priority(1, pid),
        }

    outcomes = {f"{name} {pid}": attempt(call) for pid in others for name, call in calls(pid).items()}
    outcomes |= {
        "priority user": attempt(lambda: os.setpriority(os.PRIO_USER, 0, 19)),
        "priority group": attempt(lambda: os.setpriority(os.PRIO_PGRP, 0, 19)),
        "disk user": attempt(lambda: set_io_priority(3, 0)),
    }
    affinities = [
        attempt(lambda p=pid: os.sched_setaffinity(p, {min(os.sched_getaffinity(0))})) for pid in others
    ]
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = {
        "limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files - 1, files - 1)),
        "priority": lambda: os.nice(1),
        "processors": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
        "disk": lambda: set_io_priority(1, 0),
    }
    tell(outcomes=outcomes, affinities=affinities, own={name: attempt(call) for name, call in own.items()})


def describe_limits(task: OperatorTask) -> None:
    tell(
        limits=[resource.getrlimit(kind) for kind in (resource.RLIMIT_FSIZE, resource.RLIMIT_CPU)],
        priority=os.getpriority(os.PRIO_PROCESS, 0),
        scheduler=os.sched_getscheduler(0),
        processors=sorted(os.sched_getaffinity(0)),
    )


def keep_descriptors_in_flight(task: OperatorTask) -> None:
    """The kernel counts them by user, and refuses to send more to whoever may have fewer files open."""
    pairs: list[tuple[socket.socket, socket.socket]] = []
    try:
        while len(pairs) < 100:
            pairs.append(socket.socketpair())
            socket.send_fds(pairs[-1][0], [b"."], [0] * 100)
    except OSError as error:
        tell(stopped_by=errno.errorcode[error.errno or 0])
    time.sleep(100)


def change_attributes(task: OperatorTask) -> None:
    path = task.config["path"]
    folder = os.path.dirname(path)
    outcomes: dict[str, object] = {}
    for target in (path, folder):
        outcomes[f"chmod {target}"] = attempt(lambda t=target: os.chmod(t, 0o666))
        outcomes[f"lchown {target}"] = attempt(lambda t=target: os.lchown(t, os.getuid(), os.getgid()))
        outcomes[f"utime {target}"] = attempt(lambda t=target: os.utime(t, (1, 1)))
        outcomes[f"setxattr {target}"] = attempt(lambda t=target: os.setxattr(t, "user.mine", b"1"))
        outcomes[f"program {target}"] = subprocess.run(["chmod", "777", target], check=False).returncode
    own = task.temp_dir / "own"
    own.write_text("mine")
    copied = attempt(lambda: Path(shutil.copy2(own, task.temp_dir / "copy")).read_text())
    tell(outcomes=outcomes, own_file_copied=copied)


def call_unix_sockets(task: OperatorTask) -> None:
    outcomes = {}
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for address in task.config["addresses"]:
            outcomes[f"{kind.name} {address}"] = attempt(lambda a=address, k=kind: _connect(a, k))
    pair = attempt(lambda: _reconnect_pair(task.config["addresses"][0]))
    tell(outcomes=outcomes, pair=pair, usual_pair=attempt(lambda: bool(socket.socketpair())))


def _connect(address: str, kind: socket.SocketKind) -> str:
    with socket.socket(socket.AF_UNIX, kind) as client:
        client.connect("\0" + address[1:] if address.startswith("@") else address)
        return "connected"


def _reconnect_pair(address: str) -> str:
    one, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    one.connect(address)
    return "connected"


# --- using up the machine ---------------------------------------------------------------------------------


def fork_bomb(task: OperatorTask) -> None:
    count, stopped_by = 0, ""
    while count < 5000:
        try:
            pid = os.fork()
        except OSError as error:
            stopped_by = errno.errorcode[error.errno or 0]
            break
        if pid == 0:
            time.sleep(1000)
            os._exit(0)
        count += 1
    tell(count=count, stopped_by=stopped_by)
    time.sleep(task.config.get("seconds", 0))


def relentless_fork_bomb(task: OperatorTask) -> None:
    """Every process forks for ever, so that killing one by one never ends."""
    tell(exploding=True)
    while True:
        with contextlib.suppress(OSError):
            if os.fork() == 0:
                os.setsid()


def hog_memory(task: OperatorTask) -> None:
    hoard: list[object] = []
    while len(hoard) < 100_000:
        hoard.append(bytearray(16 << 20))


def hog_shared_memory(task: OperatorTask) -> None:
    import mmap

    hoard: list[object] = []
    with contextlib.suppress(OSError):
        while len(hoard) < 4096:
            hoard.append(mmap.mmap(-1, 64 << 20))
    tell(megabytes=64 * len(hoard), memfd=attempt(lambda: os.memfd_create("hoard")))


def fill_disk(task: OperatorTask) -> None:
    number = 0
    while number < 100_000:
        (task.temp_dir / str(number)).write_bytes(b"x" * (1 << 20))
        number += 1
        time.sleep(0.002)


def fill_one_file(task: OperatorTask) -> None:
    with open(task.temp_dir / "large", "wb") as file:
        for _ in range(1000):
            file.write(b"x" * (1 << 20))


def burn(task: OperatorTask) -> None:
    while True:
        pass


def ignore_polite_signals(task: OperatorTask) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    tell(ignoring=True)
    while True:
        time.sleep(0.01)


def heeds_polite_signals(task: OperatorTask) -> None:
    def leave(number: int, frame: object) -> None:
        tell(leaving=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, leave)
    tell(waiting=True)
    time.sleep(1000)


def daemonize(task: OperatorTask) -> None:
    """Double fork, own session, other program: everything that usually loses a supervisor."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(4):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            os.execv("/bin/sleep", ["sleep", task.config["marker"]])
        os._exit(0)
    os.wait()
    time.sleep(task.config.get("seconds", 0.1))


def flood_log(task: OperatorTask) -> None:
    line = "x" * 1000
    for number in range(task.config["lines"]):
        print(number, line)
    print("the end")


def flood_one_line(task: OperatorTask) -> None:
    while True:
        os.write(1, b"x" * 65536)


def large_result(task: OperatorTask) -> None:
    for number in range(task.config["events"]):
        task.emit("rows", scope=number)


def deep_folders(task: OperatorTask) -> None:
    os.chdir(task.temp_dir)
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")


def hide_deep(task: OperatorTask) -> None:
    """Where no path can name them, files would go uncounted."""
    os.chdir(task.temp_dir)
    for _ in range(40):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    time.sleep(100)


# --- lying ------------------------------------------------------------------------------------------------


def write_raw(task: OperatorTask) -> None:
    os.write(CHANNEL, bytes.fromhex(task.config["hex"]))
    os._exit(task.config.get("exit", 0))


def forge_result(task: OperatorTask) -> None:
    """A well-formed result with whatever the test wants in it; may also arrange the file."""
    folder = task.outputs["rows"].folder
    match task.config.get("arrange"):
        case "symlink":
            (folder / "part").symlink_to(task.config["target"])
        case "fifo":
            os.mkfifo(folder / "part")
        case "extra":
            (folder / "part").write_bytes(b"12345")
            (folder / "unreported").write_bytes(b"12345")
            (folder / "unreported folder").mkdir()
    events = task.config.get("events", [])
    body = json.dumps({"type": "Succeeded", "events": events, "outputs": task.config["outputs"]}).encode()
    frame = struct.pack(">I", len(body)) + body
    os.write(CHANNEL, frame * task.config.get("times", 1))
    os._exit(0)


def forge_failure(task: OperatorTask) -> None:
    body = json.dumps({"type": "Failed", "error": task.config}).encode()
    os.write(CHANNEL, struct.pack(">I", len(body)) + body)
    os._exit(0)


def stall_after_result(task: OperatorTask) -> None:
    body = json.dumps({"type": "Succeeded", "events": [], "outputs": []}).encode()
    os.write(CHANNEL, struct.pack(">I", len(body)) + body)
    time.sleep(1000)


def unencodable_result(task: OperatorTask) -> None:
    task.emitted.append({"scope": object()})


def returns_nonsense(task: OperatorTask) -> object:
    return object()


def returns_a_number_as_a_column(task: OperatorTask) -> dict[str, int]:
    return {"day": 1}


def takes_nothing() -> None:
    pass


# --- dying ------------------------------------------------------------------------------------------------


def exit_politely(task: OperatorTask) -> None:
    sys.exit(task.config.get("code", 0))


def exit_at_once(task: OperatorTask) -> None:
    os._exit(task.config.get("code", 0))


def abort(task: OperatorTask) -> None:
    os.abort()


def crash(task: OperatorTask) -> None:
    ctypes.string_at(0)


def recurse(task: OperatorTask) -> None:
    recurse(task)


def recurse_without_limit(task: OperatorTask) -> None:
    sys.setrecursionlimit(10**9)

    def down(n: int) -> int:
        return max([n], key=lambda m: down(m + 1))  # through C, so that the C stack runs out

    down(0)


def close_everything(task: OperatorTask) -> None:
    os.closerange(0, 4096)


def kill_own_parent(task: OperatorTask) -> None:
    tell(outcome=attempt(lambda: os.kill(os.getppid(), signal.SIGKILL)))
