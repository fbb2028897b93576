"""The Python packages that a job needs besides its own modules: as people write them, and as a lock.

A requirement names a package of an index and versions of it (`polars>=1,<2`). Addresses, paths and options of an
installer are not accepted: whoever deploys must not decide where a worker fetches from.

A lock names every package, also those that others need, in one version, with the hashes of the files that may be
installed. It is text, one package per line after the oldest Python that it is for, and is stored under its hash:

    python>=3.11
    tinylib==2.0 --hash=sha256:3568…
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_REQUIREMENTS = 200
MAX_REQUIREMENT_CHARS = 300
MAX_FILE_CHARS = MAX_LOCK_CHARS = 2 << 20
FORM = "write a package and its versions, such as polars>=1,<2"

SHARED = (
    "aiohappyeyeballs",
    "aiohttp",
    "aiosignal",
    "attrs",
    "frozenlist",
    "googleapis-common-protos",
    "grpcio",
    "grpcio-status",
    "idna",
    "msgspec",
    "multidict",
    "numpy",
    "pandas",
    "propcache",
    "protobuf",
    "py4j",
    "pyarrow",
    "pyspark",
    "python-dateutil",
    "pytz",
    "six",
    "typing-extensions",
    "tzdata",
    "yarl",
    "zstandard",
)
"""Packages that the platform has loaded before an operator's code runs, in a sandbox or in Spark's Python processes. A
process has one version of a package, so jobs use the platform's."""

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VERSION = r"[A-Za-z0-9][A-Za-z0-9._!+-]*"
_CLAUSE = rf"(?:===?|~=|!=|<=|>=|<|>) *{_VERSION}(?:\.\*)?"
_MARKER = r"[A-Za-z0-9_ .,'\"<>=!~()+*-]+"
_REQUIREMENT = re.compile(
    rf"({_NAME})(?: *\[ *{_NAME}(?: *, *{_NAME})* *\])? *(?:{_CLAUSE}(?: *, *{_CLAUSE})*)? *(?:; *({_MARKER}))?"
)
_HASH = r"--hash=sha256:[0-9a-f]{64}"
_PINNED = re.compile(rf"({_NAME})==({_VERSION})(?: *; *({_MARKER}?))?((?: +{_HASH})+)")
_PYTHON = re.compile(r"python>=(\d{1,2})\.(\d{1,3})")


@dataclass(frozen=True, slots=True)
class LockedPackage:
    name: str
    version: str
    marker: str
    """Where it is needed, such as `sys_platform == 'linux'`; empty: everywhere."""
    hashes: tuple[str, ...]

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")

    @property
    def line(self) -> str:
        return " ".join([self.pin, *(f"--hash=sha256:{value}" for value in self.hashes)])


@dataclass(frozen=True, slots=True)
class Lock:
    python: tuple[int, int]
    """The oldest Python that it is for."""
    packages: tuple[LockedPackage, ...]


def is_requirement(text: str) -> bool:
    match = _REQUIREMENT.fullmatch(text) if len(text) <= MAX_REQUIREMENT_CHARS else None
    return match is not None and "--" not in (match[2] or "")


def package_of(requirement: str) -> str:
    """The package that a requirement names."""
    match = re.match(_NAME, requirement)
    assert match is not None
    return normalized(match[0])


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def key_of(requirements: Iterable[str]) -> str:
    """A hash of requirements as they are written, whatever their order."""
    return hashlib.sha256("\n".join(sorted(requirements)).encode()).hexdigest()


def read_file(text: str) -> list[str] | list[LockedPackage]:
    """The requirements in a file: as they are written or, if each has its hashes, as packages of a lock.

    Raises ValueError, which names the line.
    """
    found: list[str] = []
    locked: list[LockedPackage] = []
    for number, line in _logical_lines(text):
        if (package := _pinned(line)) is not None:
            locked.append(package)
        elif is_requirement(line):
            found.append(line)
        else:
            # Not quoted: the path may lead to another file than the author of the DAG file may see.
            raise ValueError(f"line {number} is not a requirement; {FORM}")
        if found and locked:
            raise ValueError(f"line {number}: either all requirements have hashes or none has")
    return locked or found


def _logical_lines(text: str) -> Iterable[tuple[int, str]]:
    """Lines without comments, and with those that continue them; each with the number of its first one."""
    pending, begins = "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begins = begins if pending else number
        pending += re.sub(r"(^|\s)#.*", "", line)
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
            continue
        if pending.strip():
            yield begins, pending.strip()
        pending = ""


def _pinned(line: str) -> LockedPackage | None:
    match = _PINNED.fullmatch(line)
    if match is None or "--" in (match[3] or ""):
        return None
    hashes = tuple(sorted(word.partition(":")[2] for word in match[4].split()))
    return LockedPackage(normalized(match[1]), match[2], (match[3] or "").strip(), hashes)


def encode_lock(python: tuple[int, int], packages: Sequence[LockedPackage]) -> str:
    lines = sorted(package.line for package in packages)
    return "\n".join([f"python>={python[0]}.{python[1]}", *lines]) + "\n"


def decode_lock(content: str) -> Lock:
    """Raises ValueError if it is not something that `encode_lock` produces."""
    if len(content) > MAX_LOCK_CHARS:
        raise ValueError(f"a lock has at most {MAX_LOCK_CHARS} characters")
    first, *lines = content.split("\n")
    python = _PYTHON.fullmatch(first)
    packages = [_pinned(line) for line in lines[:-1]]
    if python is None or not lines or lines[-1] or None in packages:
        raise ValueError("a lock has the oldest Python, then a package with its hashes on each line")
    return Lock((int(python[1]), int(python[2])), tuple(package for package in packages if package))


def hash_of(lock: str) -> str:
    return hashlib.sha256(lock.encode()).hexdigest()
