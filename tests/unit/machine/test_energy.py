"""Joules from a made-up powercap folder."""

import ctypes
from pathlib import Path

import pytest

from manyhands.machine import energy
from manyhands.machine.energy import EnergyCounter, EnergyMeter, used_since


@pytest.fixture
def powercap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages of 2,000 and 3,000 µJ, with what must not be counted beside them."""
    monkeypatch.setattr(energy, "NVML", "no-such-library.so")
    for folder, name, used in (
        ("intel-rapl:0", "package-0", 2000),
        ("intel-rapl:1", "package-1", 3000),
        ("intel-rapl:0:0", "core", 1500),
        ("intel-rapl:2", "psys", 9000),
        ("intel-rapl-mmio:0", "package-0", 2000),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(f"{name}\n")
        (tmp_path / folder / "energy_uj").write_text(f"{used}\n")
        (tmp_path / folder / "max_energy_range_uj").write_text("10000\n")
    return tmp_path


def use(powercap: Path, folder: str, used: int) -> None:
    (powercap / folder / "energy_uj").write_text(f"{used}\n")


def test_packages_are_summed_and_what_is_inside_them_is_not_counted_twice(powercap: Path) -> None:
    meter = EnergyMeter(powercap)
    use(powercap, "intel-rapl:0", 2700)
    use(powercap, "intel-rapl:1", 3200)
    use(powercap, "intel-rapl:0:0", 2100)
    use(powercap, "intel-rapl:2", 9900)
    assert meter.joules() == pytest.approx(900e-6)


def test_a_counter_that_wraps_is_put_right(powercap: Path) -> None:
    meter = EnergyMeter(powercap)
    use(powercap, "intel-rapl:0", 500)
    assert meter.joules() == pytest.approx(8500e-6)
    assert used_since(EnergyCounter(9990, 10000), EnergyCounter(20, 10000)) == 30


def test_nothing_is_told_where_nothing_can_be_read(powercap: Path, tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path / "missing").joules() is None
    for folder in powercap.glob("intel-rapl*"):
        (folder / "energy_uj").unlink()
    assert EnergyMeter(powercap).joules() is None


def test_a_counter_that_comes_or_goes_is_left_out(powercap: Path) -> None:
    meter = EnergyMeter(powercap)
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    use(powercap, "intel-rapl:0", 2600)
    assert meter.joules() == pytest.approx(600e-6)


class Nvml:
    """A driver of two GPUs, of which the second does not count its energy."""

    def __init__(self) -> None:
        self.used_mj, self.open = 7000, 0

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count) -> int:  # type: ignore[no-untyped-def]
        count._obj.value = 2
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, i: ctypes.c_uint, device) -> int:  # type: ignore[no-untyped-def]
        device._obj.value = i.value + 1
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, device, used) -> int:  # type: ignore[no-untyped-def]
        if device.value == 2:
            return 3
        used._obj.value = self.used_mj
        return 0


def test_gpus_add_to_it(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    meter = EnergyMeter(powercap)
    nvml.used_mj += 2500
    use(powercap, "intel-rapl:0", 2600)
    assert meter.joules() == pytest.approx(2.5 + 600e-6)
    assert nvml.open == 0, "the driver was let go"
