"""Facts about this machine and its software, for records and `doctor`."""

import importlib.metadata
import os
import platform
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from manyhands._version import __version__


def core_ids() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores() -> int:
    """Return the number of cores this process may use: those it is bound to, or those its container has."""
    limit = cpu_limit()
    return min(len(core_ids()), max(1, int(limit.cores))) if limit else len(core_ids())


@dataclass(frozen=True)
class CpuLimit:
    """Processor time that the control group of a container may use."""

    cores: float
    """Seconds per second."""
    used_s: Callable[[], float]
    """Returns the processor time that all its processes have used up to now."""


@cache
def cpu_limit() -> CpuLimit | None:
    """Return the limit of this process's container; None where it may use all cores it sees."""
    groups = Path("/sys/fs/cgroup")
    new, quota, period = groups / "cpu.max", groups / "cpu/cpu.cfs_quota_us", groups / "cpu/cpu.cfs_period_us"
    try:
        if new.is_file():
            most, per = new.read_text().split()
            allowed = float(most) / float(per) if most != "max" else 0.0
        else:
            allowed = float(quota.read_text()) / float(period.read_text())
        limit = CpuLimit(allowed, _used_v2 if new.is_file() else _used_v1)
        limit.used_s()
    except (OSError, ValueError, StopIteration, ZeroDivisionError):
        return None
    return limit if 0 < allowed < len(core_ids()) else None


def _used_v2() -> float:
    lines = Path("/sys/fs/cgroup/cpu.stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("usage_usec")) * 1e-6


def _used_v1() -> float:
    return int(Path("/sys/fs/cgroup/cpuacct/cpuacct.usage").read_text()) * 1e-9


def command_age_s() -> float:
    """Return the seconds since this process was started for the command in `sys.argv`; 0 if it was not."""
    given = sys.argv[1:]
    if not given or sys.orig_argv[-len(given) :] != given:
        return 0.0
    import psutil  # slow to import

    return max(0.0, time.time() - float(psutil.Process().create_time()))


@cache
def cpu_name() -> str:
    """Return the processor's name from /proc/cpuinfo, or from Python's `platform`."""
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.partition(":")[2].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def available_bytes() -> int:
    """Return the memory that this process may still take, bounded by a container's limit."""
    import psutil  # slow to import

    available = int(psutil.virtual_memory().available)
    try:
        with open("/sys/fs/cgroup/memory.max") as f:
            return min(available, int(f.read()))
    except (OSError, ValueError):  # no such limit
        return available


def hardware() -> dict[str, Any]:
    """Return the host's name, processor, cores, memory, GPUs and operating system, for records."""
    import psutil  # both are slow to import, and other functions of this module need neither
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpus": gpus,
        "system": f"{platform.system()} {platform.release()}",
    }


@cache
def version(package: str) -> str:
    """Return the installed version of a package; empty where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Return the versions of Python, manyhands and the installed packages that may change a result."""
    installed = {name: version(name) for name in ("torch", "numpy", "mpi4py", "mpich", "ray") if version(name)}
    return {"python": platform.python_version(), "manyhands": __version__, **installed}
