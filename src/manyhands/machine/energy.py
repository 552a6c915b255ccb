"""Energy that the machine uses, in joules: of processors by Linux's powercap, of NVIDIA's GPUs by NVML."""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, final

POWERCAP = Path("/sys/class/powercap")
NVML = "libnvidia-ml.so.1"


class EnergyCounter(NamedTuple):
    """Reading of an energy counter; one that wraps does so after `range_uj`."""

    used_uj: int
    range_uj: int


@final
class EnergyMeter:
    """Measures the energy used since it was made."""

    def __init__(self, powercap: Path = POWERCAP) -> None:
        self._powercap = powercap
        self._before = _read(powercap)

    def joules(self) -> float | None:
        """Return the energy of processors and GPUs together; None where there is no counter."""
        now = _read(self._powercap)
        used = [used_since(self._before[name], now[name]) for name in now if name in self._before]
        return sum(used) / 1e6 if used else None


def used_since(before: EnergyCounter, now: EnergyCounter) -> int:
    """Return the microjoules between two readings, of a counter that may have wrapped once."""
    used = now.used_uj - before.used_uj
    return used + now.range_uj if used < 0 else used


def _read(powercap: Path) -> dict[str, EnergyCounter]:
    return {**dict(_packages(powercap)), **dict(_gpus())}


def _packages(powercap: Path) -> Iterator[tuple[str, EnergyCounter]]:
    """Yield the processors' packages; the domains inside them (`intel-rapl:0:0`) are part of their counters."""
    for folder in sorted(powercap.glob("intel-rapl:*")):
        with contextlib.suppress(OSError, ValueError):  # since 2020 root alone may read them, unless allowed
            if folder.name.count(":") == 1 and (folder / "name").read_text(encoding="utf-8").startswith("package"):
                counters = ("energy_uj", "max_energy_range_uj")
                used, most = (int((folder / name).read_text(encoding="utf-8")) for name in counters)
                yield folder.name, EnergyCounter(used, most)


def _gpus() -> Iterator[tuple[str, EnergyCounter]]:
    """Yield NVIDIA's GPUs that count their energy (Volta and later) since the driver's start."""
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
            exists = nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(i), ctypes.byref(device)) == 0
            if exists and nvml.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(used_mj)) == 0:
                yield f"gpu {i}", EnergyCounter(used_mj.value * 1000, 0)
    finally:
        nvml.nvmlShutdown()
