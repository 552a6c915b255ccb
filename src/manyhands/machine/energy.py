"""Joules that the machine uses, where it tells: processors through Linux's powercap, NVIDIA's GPUs by NVML."""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, final

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"


class Counter(NamedTuple):
    """A counter's value; one that wraps does so after `range_uj`."""

    used_uj: int
    range_uj: int


@final
class EnergyMeter:
    """Reads the counters when it is made, and tells what was used since."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._powercap = powercap
        self._before = _read(powercap)

    def joules(self) -> float | None:
        """Return what processors and GPUs have used together; None where nothing tells."""
        now = _read(self._powercap)
        used = [used_since(self._before[name], now[name]) for name in now if name in self._before]
        return sum(used) / 1e6 if used else None


def used_since(before: Counter, now: Counter) -> int:
    """Return the microjoules between two readings; a counter that wrapped once is put right."""
    used = now.used_uj - before.used_uj
    return used + now.range_uj if used < 0 else used


def _read(powercap: Path) -> dict[str, Counter]:
    return {**dict(_packages(powercap)), **dict(_gpus())}


def _packages(powercap: Path) -> Iterator[tuple[str, Counter]]:
    """Yield the processors' packages; the domains inside them (`intel-rapl:0:0`) are counted there already."""
    for folder in sorted(powercap.glob("intel-rapl:*")):
        with contextlib.suppress(OSError, ValueError):  # since 2020 root alone may read them, unless allowed
            if folder.name.count(":") == 1 and (folder / "name").read_text(encoding="utf-8").startswith("package"):
                counters = ("energy_uj", "max_energy_range_uj")
                used, most = (int((folder / name).read_text(encoding="utf-8")) for name in counters)
                yield folder.name, Counter(used, most)


def _gpus() -> Iterator[tuple[str, Counter]]:
    """Yield NVIDIA's GPUs that count their energy (Volta and later); they count up from the driver's start."""
    try:
        nvml = ctypes.CDLL(NVML)
    except OSError:
        return
    if nvml.nvmlInit_v2() != 0:
        return
    try:
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for i in range(count.value):
            device, used_mj = ctypes.c_void_p(), ctypes.c_ulonglong()
            found = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(i), ctypes.byref(device)) == 0
            if found and nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(used_mj)) == 0:
                yield f"gpu {i}", Counter(used_mj.value * 1000, 0)
    finally:
        nvml.nvmlShutdown()
