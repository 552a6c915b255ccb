"""Calibrations of GPUs of which one knows what must come out."""

from made_up_machine import BATCH, NUMEL, SAMPLES

from manyhands.calibration.gpu.calibrate import ALONE
from manyhands.calibration.gpu.calls import formula_costs
from manyhands.record.calibration import Calibration, Contention, CopyTimes, CoreTimes, RowTimes, TaskCosts

MADE = "2025-01-01 00:00:00"
ROWS = (1, 8, *(2**k for k in range(5, 14)), SAMPLES)
SERIAL_MS = 0.01
LAUNCH_US = 30.0


def gpu_step_ms(rows: float, knee: float = 512, floor_ms: float = 0.1) -> float:
    """Return what a step takes: what the host needs to hand it over, or what the GPU needs from `knee` rows on."""
    return floor_ms * max(1.0, rows / knee)


def gpu_calibration(
    *,
    knee: float = 512,
    floor_ms: float = 0.1,
    wait: float = 1.2,
    noise: float = 0.01,
    link: str = "nvlink",
    gpus: int = 1,
) -> Calibration:
    """Make the calibration of GPUs whose steps take `wait` times as long where the host waits in each of them."""
    factors = [1 - noise, 1.0, 1 + noise, 1.0] * 5

    def times(rows: int, factor: float) -> RowTimes:
        whole = [factor * share * gpu_step_ms(rows, knee, floor_ms) for share in factors]
        return RowTimes(rows=rows, compute_ms=[ms - SERIAL_MS for ms in whole], serial_ms=[SERIAL_MS] * 20, block=4)

    costs = TaskCosts(
        task="mlp",
        parameters=NUMEL,
        weight_bytes=4 * NUMEL,
        samples=SAMPLES,
        batch_size=BATCH,
        flops_per_row=1e6,
        pass_operations=20,
        update_operations=1,
        made=MADE,
        points=[times(rows, 1.0) for rows in ROWS],
        touch_ms=[0.005],
    )
    crowd = [
        Contention(
            engine="torch",
            task="mlp",
            ranks=2,
            rows=rows,
            compute_factor=wait,
            times=times(rows, wait),
            silent=times(rows, 1.0),
        )
        for rows in ROWS
    ]
    return Calibration(
        machine="made up, 1 × A made-up GPU, none",
        device="cuda",
        made=MADE,
        hardware={"host": "made up", "cpu": "none", "cores": 2, "gpus": ["A made-up GPU"] * gpus},
        versions={"torch": "2"},
        tasks={"mlp": costs},
        comms={"torch": formula_costs(link, 2000.0, LAUNCH_US, MADE)},
        contention=crowd,
        cores=CoreTimes(**ALONE),
        copies=[CopyTimes(num_bytes=8, to_device_us=[9.0], to_host_us=[12.0])],
    )
