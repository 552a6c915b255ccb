"""Facts about this machine and its software, for records and `doctor`."""

import importlib.metadata
import os
import platform
import socket
from functools import cache
from typing import Any

import psutil
import torch


def core_ids() -> set[int]:
    """Return the cores this process may use."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(core_ids())


@cache
def cpu_name() -> str:
    """Return the processor's name as the system tells it."""
    try:
        with open("/proc/cpuinfo") as f:
            return next(line.partition(":")[2].strip() for line in f if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def hardware() -> dict[str, Any]:
    """Describe the machine."""
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
    """Return the installed version, or an empty text."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Return the versions of what decides a result."""
    packages = ("manyhands", "torch", "numpy", "mpi4py", "mpich", "ray")
    found = {name: version(name) for name in packages}
    return {"python": platform.python_version(), **{name: v for name, v in found.items() if v}}
