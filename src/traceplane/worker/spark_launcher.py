"""Gives up power, then becomes the Spark server: `python -I -m traceplane.worker.spark_launcher < launch.json`.

Landlock holds for the JVM, its threads and the Python workers that it starts for user functions.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import sys
from typing import NoReturn

from traceplane.linux import kernel, landlock
from traceplane.worker import private_root

_SYSTEM = ("/proc", "/sys/fs/cgroup", "/sys/devices/system", "/sys/kernel/mm", "/etc/passwd", "/etc/group")
_JAVA_SETTINGS = "/etc/java*"


def main() -> NoReturn:
    launch = json.load(sys.stdin)
    if sys.platform == "linux":
        _confine(launch)
    os.execve(launch["command"][0], launch["command"], launch["environment"])


def _confine(launch: dict[str, list[str]]) -> None:
    abi = landlock.supported_abi()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if abi < 1:
        if not launch["allow_weak"]:
            sys.exit("this kernel has no Landlock, so user code could make Spark read the platform's secrets")
        return
    rules = landlock.Ruleset(0 if abi < 1 else min(abi, 3), connect_allowed=True)
    rules.allow_read((*private_root.SYSTEM_FOLDERS, *private_root.interpreter_folders(), *_SYSTEM))
    rules.allow_read((*private_root.SYSTEM_FILES, *private_root.SYSTEM_TRUST, *private_root.DEVICES))
    rules.allow_read(glob.glob(_JAVA_SETTINGS))
    rules.allow_read((os.path.dirname(os.path.dirname(os.path.realpath(launch["command"][0]))),))
    rules.allow_read((os.path.dirname(os.path.dirname(launch["command"][0])), *launch["readable"]))
    rules.allow_write(("/dev/null", "/dev/shm", "/proc/self", *launch["writable"]))
    if os.geteuid() == 0:
        kernel.shrink_capability_bounds()
        kernel.drop_capabilities()
    rules.enforce()


if __name__ == "__main__":
    main()
