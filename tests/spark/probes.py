"""What users' code tries in Spark, one line each, with the refusal that it must meet.

`isolated` is where the machine has namespaces; `weakest` is the weakest way of confining that may start, Landlock and
seccomp alone. What succeeds there is marked by `OPEN` and a reason, so `LEFT_OPEN` is the list for the docs.
"""

# ruff: noqa: E501 - a probe is one line, however long

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

from traceplane.sandbox.confinement import NAMESPACES

WITHOUT = frozenset(filter(None, os.environ.get("TRACEPLANE_TEST_SPARK_WITHOUT", "").split(",")))
WEAKEST = NAMESPACES in WITHOUT

OPEN = "did:"
UNSEEN = "ENOENT|PATH_NOT_FOUND|does not exist|No such file"
KEPT_OUT = "EACCES|EPERM|Permission denied|AccessDenied"
UNCHANGED = "EROFS|Read-only file system|" + KEPT_OUT


@dataclass(frozen=True)
class Probe:
    """`isolated` and `weakest` are what has to be in the outcome, as regular expressions."""

    name: str
    act: str
    arguments: tuple[Any, ...] = ()
    isolated: str = UNSEEN
    weakest: str = KEPT_OUT
    left_open: str = ""
    """For people: what it means that it succeeds in the weakest way."""

    @property
    def expected(self) -> str:
        return self.weakest if WEAKEST else self.isolated


def open_when_weakest(name: str, act: str, *arguments: Any, isolated: str = UNSEEN, why: str) -> Probe:
    return Probe(name, act, arguments, isolated, OPEN, why)


def harmless(name: str, act: str, *arguments: Any, outcome: str) -> Probe:
    """It succeeds everywhere, and nobody notices."""
    return Probe(name, act, arguments, outcome, outcome)


WHOLE_STORE = (
    "every task on Spark can read, replace and remove the files of every dataset in the object store"
)
WHOLE_NETWORK = (
    "the Spark server and its functions have this machine's network, the platform's ports included"
)

FROM_A_UDF = (
    Probe("reads the master key", "read", ("{key}",)),
    Probe("reads the tokens", "listing", ("{tokens}",)),
    Probe("reads the platform's home", "listing", ("{home}",), r"did: \['spark'\]"),
    Probe("reads a token", "read", ("{tokens}/user",)),
    Probe("reads the password file", "read", ("/etc/shadow",)),
    Probe("reads the server's log", "listing", ("{spark}/logs",)),
    Probe("reads the server's own folder", "listing", ("{server}",), r"did: \['conf'\]"),
    open_when_weakest("reads another dataset", "read", "{other}/part.parquet", why=WHOLE_STORE),
    open_when_weakest("lists the datasets", "listing", "{objects}", isolated=r"did: \['granted'\]", why=WHOLE_STORE),
    Probe("reads a worker's environment", "read", ("/proc/{worker}/environ",)),
    Probe("reads a worker's memory", "read", ("/proc/{worker}/mem",)),
    Probe("reads a victim's environment", "read", ("/proc/{victim}/environ",)),
    Probe("reads a victim's root", "listing", ("/proc/{victim}/root/",)),
    Probe("writes a victim's memory", "overwrite", ("/proc/{victim}/mem",)),
    Probe("reads the launcher's environment", "look_at_launcher", ("environ",), "ENOENT|EACCES", "EACCES|EPERM"),
    Probe("reads the launcher's memory", "look_at_launcher", ("mem",), "ENOENT|EACCES", "EACCES|EPERM"),
    Probe("sees the launcher's descriptors", "look_at_launcher", ("fd",), "ENOENT|EACCES", "EACCES|EPERM"),
    Probe("sees the launcher's root", "look_at_launcher", ("root",), "ENOENT|EACCES|ENOTDIR", "EACCES|EPERM"),
    Probe("changes the mode of a secret", "change_mode", ("{key}",), weakest="did: None"),
    Probe("changes the owner of a secret", "change_owner", ("{key}",), weakest="did: None"),
    Probe("changes the times of a secret", "change_times", ("{key}",), weakest="did: None"),
    Probe("changes an attribute of a secret", "change_attribute", ("{key}",), weakest="did: None"),
    Probe("changes a mode by a program", "chmod_program", ("{key}",), weakest="did: 'changed'"),
    Probe("changes the mode of a system file", "change_mode", ("/usr/bin/env",), UNCHANGED, "did: None"),
    Probe("changes the mode of the code", "change_mode", ("{code}",), UNCHANGED, "did: None"),
    Probe("changes the mode of a committed file", "change_mode", ("{granted}/part.parquet",), UNCHANGED, "did: None"),
    Probe("changes the owner of a committed file", "change_owner", ("{granted}/part.parquet",), UNCHANGED, "did: None"),
    Probe("changes the times of a committed file", "change_times", ("{granted}/part.parquet",), UNCHANGED, "did: None"),
    Probe("overwrites a committed file", "overwrite", ("{granted}/part.parquet",), UNCHANGED, "EACCES"),
    Probe("removes a committed file", "remove", ("{granted}/first",), UNCHANGED, OPEN, WHOLE_STORE),
    Probe("adds to a committed folder", "create", ("{granted}/forged",), UNCHANGED, OPEN, WHOLE_STORE),
    Probe("makes a committed file a link", "replace_by_link", ("{granted}/second", "/etc/passwd"), UNCHANGED, OPEN, WHOLE_STORE),
    open_when_weakest("writes to another dataset", "create", "{other}/forged", why=WHOLE_STORE),
    open_when_weakest("writes to the object store", "create", "{objects}/forged", isolated=UNCHANGED, why=WHOLE_STORE),
    Probe("writes to the code", "create", ("{code_folder}/forged.py",), UNCHANGED),
    Probe("overwrites the code", "overwrite", ("{code}",), UNCHANGED),
    Probe("overwrites the server's settings", "overwrite", ("{server}/conf/pools.xml",), UNCHANGED),
    Probe("makes the server's settings a link", "replace_by_link", ("{server}/conf/pools.xml", "{key}"), UNCHANGED + "|ENOENT"),
    Probe("plants a log", "create", ("{spark}/logs/server.log",)),
    Probe("plants a link in the server's folder", "replace_by_link", ("{server}/server.log", "{key}"), UNCHANGED + "|ENOENT"),
    Probe("plants a program beside Java", "create", ("{server}/java",), UNCHANGED + "|ENOENT"),
    Probe("writes to the interpreter", "create", (f"{sys.prefix}/forged",), UNCHANGED),
    Probe("writes to the system", "create", ("/usr/bin/forged",), UNCHANGED),
    Probe("writes to the root", "create", ("/forged",), UNCHANGED),
    Probe("kills the worker", "kill", ("{worker}",), "ESRCH", "EPERM"),
    Probe("kills a victim", "kill", ("{victim}",), "ESRCH", "EPERM"),
    Probe("kills the launcher", "kill_launcher", (), "did: 'sent'|EPERM", "EPERM"),
    harmless("signals strangers", "signal_strangers", outcome=r"did: \[\]"),
    Probe("traces the launcher", "trace_launcher", (), "EPERM", "EPERM"),
    harmless("has no capability and gets none", "identity", outcome=r"'CapInh': 0, 'CapPrm': 0, 'CapEff': 0, .*'CapAmb': 0, 'NoNewPrivs': 1, 'Seccomp': 2"),
    # The server's token is the tasks' own: their process has it too.
    harmless("finds no secret in its environment but the token of its own server", "unusual_environment", outcome=r"did: \['AWS_EC2_METADATA_DISABLED', 'SPARK_CONNECT_AUTHENTICATE_TOKEN'(, 'SPARK_JOB_ARTIFACT_UUID')?\]$"),
    Probe("makes a user namespace", "call", (272, 97, 0x10000000), "EPERM", "EPERM"),
    Probe("makes a mount namespace", "call", (272, 97, 0x00020000), "EPERM", "EPERM"),
    Probe("clones into a namespace", "call", (56, 220, 0x10000000 | 17), "EPERM", "EPERM"),
    Probe("uses clone3", "call", (435, 435, 0, 0), "ENOSYS", "ENOSYS"),
    Probe("enters a namespace", "call", (308, 268, 0, 0), "EPERM", "EPERM"),
    Probe("mounts", "call", (165, 40, 0, 0, 0, 0, 0), "EPERM", "EPERM"),
    Probe("unmounts", "call", (166, 39, 0, 0), "EPERM", "EPERM"),
    Probe("changes its root", "call", (161, 51, 0), "EPERM", "EPERM"),
    Probe("changes mounts", "call", (442, 442, -100, 0, 0, 0, 0), "EPERM", "EPERM"),
    Probe("opens a file by its handle", "call", (304, 265, 0, 0, 0), "EPERM", "EPERM"),
    Probe("uses io_uring", "call", (425, 425, 1, 0), "EPERM", "EPERM"),
    Probe("uses bpf", "call", (321, 280, 0, 0, 0), "EPERM", "EPERM"),
    Probe("uses performance counters", "call", (298, 241, 0, 0, -1, -1, 0), "EPERM", "EPERM"),
    Probe("uses kernel keys", "call", (250, 219, 0, -3, 0), "EPERM", "EPERM"),
    Probe("reads a process's memory", "call", (310, 270, 1, 0, 0, 0, 0, 0), "EPERM", "EPERM"),
    Probe("takes a descriptor", "call", (438, 438, 0, 0, 0), "EPERM", "EPERM"),
    Probe("makes memory without a file", "call", (319, 279, 0, 0), "EPERM", "EPERM"),
    open_when_weakest("connects to the internal API", "connect", "127.0.0.1", "{api}", isolated="ECONNREFUSED", why=WHOLE_NETWORK),
    Probe("connects to the link", "connect", ("169.254.169.254", 80), "ENETUNREACH", ".", WHOLE_NETWORK),
    Probe("connects to the internet", "connect", ("192.0.2.1", 80), "ENETUNREACH", ".", WHOLE_NETWORK),
    Probe("connects to the internet by IPv6", "connect", ("2001:db8::1", 80), "ENETUNREACH|EADDRNOTAVAIL", ".", WHOLE_NETWORK),
    Probe("connects to a unix socket", "connect_unix", ("{unix}",), "EACCES", "EACCES"),
    Probe("connects to an abstract socket", "connect_unix", ("@{abstract}",), "EACCES", "EACCES"),
    Probe("makes a packet socket", "make_socket", (17, 3, 0), "EACCES", "EACCES"),
    Probe("makes a virtual machine's socket", "make_socket", (40, 1, 0), "EACCES", "EACCES"),
    Probe("makes a raw socket", "make_socket", (2, 3, 1), "EACCES", "EACCES"),
    Probe("makes a socket of a rare protocol", "make_socket", (2, 5, 0), "EACCES", "EACCES"),
    harmless("is served by Spark without a credential", "ask_every_port_as_an_executor", outcome=r"did: \[\]"),
    Probe("asks not to be killed first", "write_proc", ("/proc/self/oom_score_adj", "-1000"), "EROFS|EACCES", "EACCES"),
    Probe("writes to the kernel's settings", "write_proc", ("/proc/sys/kernel/core_pattern", "|/x"), "EROFS|EACCES", "EACCES"),
    harmless("takes memory for itself", "hoard_memory", outcome=r"did: '([0-3]?\d{1,3}) MB'"),
    harmless("raises the limit of processes", "limit_of", "RLIMIT_NPROC", outcome=r"did: \d{3,5}$"),
    harmless("raises the limit of a file's size", "limit_of", "RLIMIT_FSIZE", outcome=r"did: \d{6,11}$"),
)  # fmt: skip

FROM_SQL = (
    Probe("reads a file as text", "select * from text.`{key}`", weakest=KEPT_OUT + "|" + UNSEEN),
    Probe("reads a file as csv", "select * from csv.`{key}`", weakest=KEPT_OUT + "|FAILED_TO_CREATE_PLAN"),
    Probe("reads a file as json", "select * from json.`{key}`", weakest=KEPT_OUT + "|FAILED_TO_CREATE_PLAN"),
    Probe("reads a file as bytes", "select * from binaryFile.`{key}`", weakest=KEPT_OUT + "|" + UNSEEN),
    Probe("reads the password file", "select * from text.`/etc/shadow`", weakest=KEPT_OUT + "|" + UNSEEN),
    open_when_weakest("reads another dataset", "select * from parquet.`{other}/part.parquet`", why=WHOLE_STORE),
    open_when_weakest("reads other datasets by a pattern", "select * from parquet.`{objects}/*/*/part.parquet`", isolated=r"did: \[\(1, 'granted'\)\]", why=WHOLE_STORE),
    harmless("finds no secret in the environment", "select reflect('java.lang.System', 'getenv', 'TRACEPLANE_WORKER_TOKEN')", outcome=r"did: \[\('null',\)\]"),
    harmless("finds no secret in the properties", "select java_method('java.lang.System', 'getProperty', 'traceplane.token')", outcome=r"did: \[\('null',\)\]"),
    Probe("changes the mode of a secret by reflection", "select reflect('org.apache.hadoop.fs.FileUtil', 'chmod', '{key}', '4777')", isolated=".", weakest="."),
    Probe("changes the mode of a system file by reflection", "select reflect('org.apache.hadoop.fs.FileUtil', 'chmod', '/usr/bin/env', '4777')", isolated=".", weakest="."),
    Probe("plants a link by reflection", "select reflect('org.apache.hadoop.fs.FileUtil', 'symLink', '{key}', '{granted}/link')", isolated=r"did: \[\('1',\)\]", weakest=OPEN, left_open=WHOLE_STORE),
    Probe("reads through a link of its own", "select * from text.`{granted}/link`", weakest=KEPT_OUT + "|" + UNSEEN),
    Probe("loads a library from elsewhere", "select reflect('java.lang.System', 'load', '{key}')", isolated="UnsatisfiedLinkError|UNKNOWN|InvocationTarget|Can't load|INTERNAL", weakest="."),
    Probe("writes to another dataset", "insert overwrite directory '{other}' using parquet select 1 as n", isolated=UNCHANGED + "|" + UNSEEN + "|Mkdirs failed|Unable to", weakest=OPEN, left_open=WHOLE_STORE),
    Probe("writes over committed files", "insert overwrite directory '{granted}/kept' using parquet select 1 as n", isolated=UNCHANGED + "|Mkdirs failed|Unable to", weakest=OPEN, left_open=WHOLE_STORE),
    Probe("writes to the platform's home", "insert overwrite directory '{home}/forged' using parquet select 1 as n", isolated=UNCHANGED + "|Mkdirs failed", weakest=KEPT_OUT + "|Mkdirs failed"),
    Probe("makes a table elsewhere", "create table forged using parquet location '{home}/table' as select 1 as n", isolated=UNCHANGED + "|Mkdirs failed", weakest=KEPT_OUT + "|Mkdirs failed"),
    Probe("makes a table of a secret", "create table stolen (line string) using text location '{key}'", isolated="did:|" + UNSEEN, weakest="."),
    Probe("reads a table of a secret", "select * from stolen", isolated=r"did: \[\]|" + UNSEEN + "|TABLE_OR_VIEW", weakest=KEPT_OUT + "|TABLE_OR_VIEW|" + UNSEEN),
    Probe("adds a secret as a file", "add file '{key}'", isolated=UNSEEN, weakest=KEPT_OUT + "|" + UNSEEN),
    harmless("adds a secret as a jar", "add jar '{key}'", outcome=r"did: \[\]"),
    Probe("adds a jar from the network", "create function f as 'x' using jar 'http://127.0.0.1:{api}/x.jar'", isolated="did:|refused|Exception", weakest="."),
    Probe("sets options of the driver's Java", "set spark.driver.extraJavaOptions=-javaagent:/tmp/x.jar", isolated="CANNOT_MODIFY", weakest="CANNOT_MODIFY"),
    Probe("sets options of executors' Java", "set spark.executor.extraJavaOptions=-javaagent:/tmp/x.jar", isolated="CANNOT_MODIFY", weakest="CANNOT_MODIFY"),
    Probe("sets the memory of Python", "set spark.executor.pyspark.memory=64g", isolated="CANNOT_MODIFY", weakest="CANNOT_MODIFY"),
    Probe("sets plugins", "set spark.plugins=hostile.Plugin", isolated="CANNOT_MODIFY", weakest="CANNOT_MODIFY"),
    Probe("sets extensions", "set spark.sql.extensions=hostile.Extension", isolated="CANNOT_MODIFY", weakest="CANNOT_MODIFY"),
    Probe("moves the warehouse", "set spark.sql.warehouse.dir={other}", isolated="CANNOT_MODIFY", weakest="CANNOT_MODIFY"),
    Probe("turns off the credential", "set spark.connect.authenticate.token=mine", isolated="CANNOT_MODIFY|did:", weakest="CANNOT_MODIFY|did:"),
)  # fmt: skip

FROM_CONNECT = (
    harmless("connects with the token", "with_the_token", outcome="did: 3"),
    harmless("connects without a token", "without_token", outcome="UNAUTHENTICATED"),
    harmless("connects with a wrong token", "with_wrong_token", outcome="UNAUTHENTICATED"),
    harmless("connects with a part of the token", "with_cut_token", outcome="UNAUTHENTICATED"),
    harmless("connects with the token in another header", "with_token_in_another_header", outcome="UNAUTHENTICATED"),
    harmless("connects with a token of another kind", "with_token_of_another_kind", outcome="UNAUTHENTICATED"),
    harmless("stores an artifact above its folder", "send_artifact", "files/../../../../escaped", outcome=r"did: 'stored'|INVALID|IllegalArgument|RpcError|Inactive|Multi"),
    harmless("stores an artifact at a path", "send_artifact", "/escaped", outcome=r"INVALID|IllegalArgument|RpcError|Inactive|Multi"),
    harmless("stores an artifact in the object store", "send_artifact", "files/{other}/escaped", outcome=r"."),
    harmless("sends a relation of a plugin", "send_extension", "relation", outcome="(?i)extension|plugin|handler|UNSUPPORTED|not found"),
    harmless("sends an expression of a plugin", "send_extension", "expression", outcome="(?i)extension|plugin|handler|UNSUPPORTED|not found"),
    harmless("sends a command of a plugin", "send_extension", "command", outcome="(?i)extension|plugin|handler|UNSUPPORTED|not found"),
    harmless("runs a command of another system", "run_external_command", outcome="(?i)exception|not support"),
    harmless("sets options of Java by the session", "set_conf", "spark.driver.extraJavaOptions", "-javaagent:/tmp/x.jar", outcome="CANNOT_MODIFY"),
    harmless("moves the warehouse by the session", "set_conf", "spark.sql.warehouse.dir", "{other}", outcome="CANNOT_MODIFY"),
)  # fmt: skip

LEFT_OPEN = {
    probe.name: probe.left_open for probe in (*FROM_A_UDF, *FROM_SQL, *FROM_CONNECT) if probe.left_open
}
"""What succeeds in the weakest way of confining, and what that means."""

SHARED = {
    "use_session_of_another": "a task can use the sessions and global views of other tasks of its server, by their names",
    "daemon_that_watches": "what a task left running in a server sees what later tasks of that server are shown",
}
"""What tasks can do to each other that share a server, however it is confined."""

SPOILED = {
    "keep_file_open": "operator.output_in_use",
    "exchange_by_link": "operator.result_invalid",
    "link_twice": None,
    "exchange_by_folder": "operator.result_invalid",
    "exchange_by_pipe": "operator.result_invalid",
    "set_id_file": None,
}
"""What a function does to its task's output, and what becomes of the task."""
