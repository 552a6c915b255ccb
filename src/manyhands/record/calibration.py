"""Times of steps and exchanges on one machine, measured by `manyhands calibrate`. Needs neither torch nor MPI."""

import math
import statistics
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, model_validator

from manyhands.errors import UserError, check
from manyhands.record.run import Others
from manyhands.record.texts import duration, percent

DECIDE_TIMES = ("python", "torch", "numpy", "mpi4py", "mpich")
"""Packages whose version affects the times."""
DAY_S = 86400.0
KEPT = 8
"""Earlier calibrations that a file keeps."""


class RowTimes(BaseModel):
    """Times of one worker's steps with `rows` rows each, in the order in which they were measured."""

    rows: int = Field(ge=1)
    compute_ms: list[float] = Field(min_length=1)
    """Forward and backward of each step."""
    serial_ms: list[float] = Field(min_length=1)
    """The optimiser's step and the loop around it, of the same steps."""
    block: int = Field(default=1, ge=1)
    """Number of consecutive steps in a block; between two blocks something else was measured."""
    disturbed_pct: float = 0.0
    """Percentage of the steps in which another program took the core, as far as the system tells."""


class TaskCosts(BaseModel):
    """Step times of one worker alone, with one thread in its matrix products."""

    task: str
    parameters: int
    weight_bytes: int
    """Bytes of all parameters."""
    samples: int
    batch_size: int
    """The task's own global batch."""
    piece_rows: int = Field(default=0, ge=0)
    """Rows of a micro-batch; 0 where a worker computes all its rows at once."""
    flops_per_row: float = Field(ge=0)
    """Floating-point operations of a forward and backward pass, in products of matrices and convolutions."""
    pass_operations: int = Field(ge=0)
    """Operations of a forward and backward pass over a micro-batch; each releases and re-acquires Python's lock."""
    update_operations: int = Field(ge=0)
    """Operations of the optimiser's step."""
    made: str
    points: list[RowTimes] = Field(min_length=1)
    """By increasing number of rows."""
    update_share: float = Field(default=1.0, ge=0, le=1)
    """Share of `serial_ms` that is the optimiser's step; the rest is the training loop, which every worker has."""
    touch_ms: list[float] = Field(min_length=1)
    """Times of one pass over all gradients with one thread, as in scaling or adding them."""

    @property
    def size(self) -> tuple[float, ...]:
        """What tells a task that was changed since: its weights, data, batch and operations."""
        network = (self.parameters, self.weight_bytes, self.flops_per_row, self.pass_operations)
        return (*network, self.samples, self.batch_size, self.piece_rows)


class CallTimes(BaseModel):
    """Repeated times of one call of a comm, with a fixed number of ranks and bytes."""

    call: str
    """The comm's name of the call, such as all-reduce; `send` is half a ping-pong, `stream` a one-way burst."""
    ranks: int = Field(ge=2)
    num_bytes: int = Field(ge=0)
    """Bytes of the tensor passed to the call."""
    us: list[float] = Field(min_length=1)
    """Microseconds of each call, from when the last rank entered it to when the last rank left."""


class CommCosts(BaseModel):
    """Times of calls between ranks on one host or on several, and the α, β and γ fitted to them."""

    engine: str
    made: str
    formula: str = ""
    """Link whose typical figures these are, where no call was measured: a machine with one GPU has no nccl to time."""
    ranks: int = Field(ge=1)
    """Largest number of ranks measured; 1 where the costs follow a formula."""
    hosts: int = Field(default=1, ge=1)
    """Hosts of the largest measurement: 1 if all ranks shared it, otherwise one per rank."""
    model: Literal["messages", "mpich", "mpich-hosts", "slices"]
    """The fitted formulas: `messages`, by the cheapest algorithm; `mpich` and `mpich-hosts`, by the algorithms that
    MPICH chooses on one host or between hosts; `slices`, by threads that each reduce a slice of shared memory."""
    latency_us: float = Field(ge=0)
    """α: time of an empty message; with slices, of a barrier of two threads."""
    gigabyte_per_s: float = Field(gt=0)
    """1/β: bandwidth of a large message; with slices, of a copy."""
    reduce_gigabyte_per_s: float = Field(gt=0)
    """1/γ: bandwidth of adding one tensor to another."""
    overhead_us: float = Field(ge=0)
    """The part of α in which a message keeps sender and receiver from their next message."""
    launch_us: float = Field(default=0.0, ge=0)
    """Time of a collective call besides its messages: to hand it to a GPU, and to wait for the GPU."""
    duplex: Literal["full", "half"]
    """Whether simultaneous messages in both directions take as long as one (full) or as two; the better fit."""
    error_pct: float
    """Median relative error of the fit over the points; of engine threads, over those of two threads. Predictions for
    this host start from the points themselves. Of a formula, a declared guess."""
    points: list[CallTimes]
    """Empty where the costs follow a formula."""

    @model_validator(mode="after")
    def _measured_or_by_formula(self) -> "CommCosts":
        if bool(self.points) == bool(self.formula):
            raise ValueError("costs are fitted to points or follow a formula")
        return self

    @property
    def apart(self) -> bool:
        """Whether every rank had a host to itself."""
        return self.hosts > 1


class Contention(BaseModel):
    """Steps of several workers that compute at the same time, on a shared host or on one host each."""

    engine: str
    task: str
    ranks: int = Field(ge=2)
    hosts: int = Field(default=1, ge=1)
    rows: int = Field(ge=1)
    """Rows of each worker."""
    compute_factor: float
    """Time of the forward and backward pass, relative to one worker alone."""
    times: RowTimes
    """Steps of all workers, each after an exchange."""
    silent: RowTimes
    """Steps of all workers without exchanges: the cost of sharing the host alone."""
    exchanges: list[CallTimes] = []
    """Calls with the task's gradients or weights between the steps, with caches as in a run; measured for one number
    of rows only."""


class CoreTimes(BaseModel):
    """Times of operations by the number of busy cores, measured with bare threads instead of workers."""

    compute_us: dict[int, list[float]] = Field(min_length=1)
    """A matrix product, which is limited by the core: several times per thread, in increasing order. Two virtual cores
    that share a physical one are slower; the more cores are busy, the likelier that is."""
    compute_flops: float = Field(gt=0)
    """Floating-point operations of the matrix product."""
    memory_us: dict[int, float] = Field(min_length=1)
    """A pass over more memory than any cache holds."""
    lock_us: dict[int, float] = Field(min_length=1)
    """An operation whose only cost is to re-acquire the interpreter's lock, over all threads together."""


class ClosingRun(BaseModel):
    """Real runs of one configuration at the end of a calibration, and the step time that it predicted for them."""

    engine: str
    task: str
    sync: str
    workers: int = Field(ge=1)
    servers: int = Field(default=0, ge=0)
    batch_size: int
    predicted_ms: float = Field(gt=0)
    """From the calibration's measurements alone, before any correction."""
    measured_ms: list[float] = Field(min_length=1)
    """Step time of each run."""

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """What two calibrations must have in common for their runs to be compared."""
        return self.engine, self.task, self.sync, self.workers, self.batch_size

    def log_ratios(self, measured_ms: list[float] | None = None) -> list[float]:
        """Return the logarithms of measured over predicted times; of runs of another calibration where given."""
        return [math.log(ms / self.predicted_ms) for ms in measured_ms or self.measured_ms]

    @property
    def error_pct(self) -> float:
        """Relative error of the prediction against the median of the runs; negative where it is too low."""
        return 100 * (self.predicted_ms / statistics.median(self.measured_ms) - 1)


class CopyTimes(BaseModel):
    """Repeated times of copies of some bytes between the host's memory and a GPU's, as a run makes them."""

    num_bytes: int = Field(ge=1)
    to_device_us: list[float] = Field(min_length=1)
    to_host_us: list[float] = Field(min_length=1)


class Calibration(BaseModel):
    """All measurements of one machine."""

    machine: str
    """Host, processor and cores; of GPUs, host, GPUs and processor."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Whether a worker computes on a core or on a GPU. On GPUs, `contention` has the steps of a worker that waits for
    its GPU in each step, as ranks do that exchange; `silent` has those of a worker that does not."""
    made: str
    """Time of the newest measurement."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, TaskCosts] = {}
    """By the task's name; for a user's task, by its file's absolute path."""
    comms: dict[str, CommCosts] = {}
    """By the engine's name."""
    contention: list[Contention] = []
    cores: CoreTimes
    others: Others | None = None
    """Use of the cores by other programs in the most disturbed launch of the newest measurement."""
    closing: list[ClosingRun] = []
    """Real runs, which tell how far off predictions from these measurements are."""
    earlier: list["Calibration"] = []
    """What newer measurements of the same tasks and engines replaced, newest first."""
    copies: list[CopyTimes] = []
    """Copies to and from a GPU, by increasing size; none on CPUs."""

    def crowd(self, engine: str, task: str) -> list[Contention]:
        """Return the measurements of several workers at the same time, for one engine and task."""
        return [row for row in self.contention if (row.engine, row.task) == (engine, task)]

    def engines(self, task: str) -> list[str]:
        """Return the engines for which both calls and workers of the task were measured."""
        return [engine for engine in self.comms if self.crowd(engine, task)]

    def joined(self, newer: "Calibration") -> "Calibration":
        """Return this calibration updated with a newer one, whose measurements replace those of the same kind.

        What they replace is kept as an earlier calibration, for how much the machine changes. Of an engine whose ranks
        moved from one host to several, or back, nothing old is kept.
        """
        again = {(row.engine, row.task) for row in newer.contention}
        apart = {engine: costs.apart for engine, costs in newer.comms.items()}
        kept = [
            row
            for row in self.contention
            if (row.engine, row.task) not in again and apart.get(row.engine, row.hosts > 1) == (row.hosts > 1)
        ]
        moved = any(apart.get(engine, costs.apart) != costs.apart for engine, costs in self.comms.items())
        earlier = [part for part in (self._measured_again(newer), *self.earlier) if part and part._is_like(newer)]
        return newer.model_copy(
            update={
                "tasks": {**self.tasks, **newer.tasks},
                "comms": {**self.comms, **newer.comms},
                "contention": [*kept, *newer.contention],
                "closing": [*(run for run in self.closing if not newer.has_measured(run)), *newer.closing],
                "earlier": [] if moved else earlier[:KEPT],
            }
        )

    def _is_like(self, newer: "Calibration") -> bool:
        """Tell whether the tasks that both have measured are still the same networks on the same data."""
        return all(costs.size == newer.tasks[name].size for name, costs in self.tasks.items() if name in newer.tasks)

    def has_measured(self, run: ClosingRun) -> bool:
        """Tell whether this calibration has measured the task and the engine of a run."""
        return run.task in self.tasks and run.engine in {"serial", *self.comms}

    def _measured_again(self, newer: "Calibration") -> "Calibration | None":
        """Return the part of this calibration whose tasks and engines a newer one has measured again, if any."""
        tasks = {name: costs for name, costs in self.tasks.items() if name in newer.tasks}
        comms = {engine: costs for engine, costs in self.comms.items() if engine in newer.comms}
        if not tasks or not comms:
            return None
        both = [row for row in self.contention if row.task in tasks and row.engine in comms]
        closing = [run for run in self.closing if newer.has_measured(run)]
        parts = {"tasks": tasks, "comms": comms, "contention": both, "closing": closing, "earlier": []}
        return self.model_copy(update=parts)

    def circumstances(self, now: datetime | None = None) -> str:
        """Say how old the calibration is, under which load it was made, and how far off it was about its own runs."""
        age_s = ((now or datetime.now()) - datetime.fromisoformat(self.made)).total_seconds()
        load = f"while {self.others}" if self.others else "under a load that is not known"
        errors = [abs(run.error_pct) for run in self.closing]
        runs = f"; its own runs were {percent(max(errors))} off at most before it was corrected" if errors else ""
        age = f"{age_s / DAY_S:.0f} days" if age_s >= 2 * DAY_S else duration(max(0.0, age_s))
        return f"made {age} ago {load}{runs}"


def machine_name(hardware: dict[str, Any], device: str = "cpu") -> str:
    """Name a machine by its host, processor and cores; its GPUs by host, GPUs and processor, which launches kernels."""
    if device == "cpu":
        return f"{hardware['host']}, {hardware['cpu']}, {hardware['cores']} cores"
    gpus = " and ".join(f"{num} × {name}" for name, num in Counter(hardware.get("gpus", [])).items())
    return f"{hardware['host']}, {gpus or 'no GPU'}, {hardware['cpu']}"


def calibrate_command(task: str, device: str = "cpu", path: Path | None = None) -> str:
    """Return the command that calibrates `task` on `device`, into the file `path` if the user chose one."""
    words = ["manyhands calibrate", task, *(["--device", device] if device != "cpu" else [])]
    return " ".join([*words, *(["--calibration", str(path)] if path else [])])


def check_device(calibration: Calibration, task: str, device: str, where: str = "this") -> None:
    """Refuse a calibration of another kind of device than `device`; `where` says which calibration it is."""
    kinds = {"cpu": "CPUs", "cuda": "GPUs"}
    check(
        calibration.device == device,
        f"{where} is a calibration of {kinds[calibration.device]}, and --device is {device}; "
        f"run '{calibrate_command(task, device)}', or give --calibration FILE of one that was made elsewhere"
        + (", or --device cuda" if device == "cpu" else ""),
    )


def read_calibration(
    path: Path, task: str, engine: str = "", *, named: bool = False, device: str = "cpu"
) -> Calibration:
    """Return a machine's calibration; where it lacks `task` or `engine`, raise an error that names the command to run.

    `named` says that the user chose the file, so that the command must name it too.
    """
    calibration = open_calibration(path)
    typed = calibrate_command(task, device, path if named else None)
    if calibration is None:
        whose, where = "this machine is", "which takes a minute and a half"
        if device != "cpu":
            whose, where = "GPUs of this machine are", "or give --calibration FILE of one that was made elsewhere"
        raise UserError(f"{whose} not calibrated: there is no '{path}'; run '{typed}', {where}")
    check_device(calibration, task, device, f"'{path}'")
    known = task in calibration.tasks
    check(known, f"task '{task}' is not calibrated in '{path}'; run '{typed}', which takes a minute and a half")
    check(
        not engine or engine in calibration.engines(task),
        f"engine {engine} is not calibrated with task '{task}' in '{path}'; run '{typed} --engines {engine}'",
    )
    return calibration


def open_calibration(path: Path) -> Calibration | None:
    """Return the calibration in a file, or None where there is no file; a damaged one is a user error."""
    try:
        return Calibration.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise UserError(
            f"'{path}' is damaged, or no calibration of this version; remove it and calibrate again"
        ) from None
    except OSError as error:
        raise UserError(f"the calibration '{path}' cannot be read: {error.strerror}") from None


def differences(calibration: Calibration, hardware: dict[str, Any], versions: dict[str, str]) -> list[str]:
    """Return a sentence for each difference of this machine and its software from the calibrated one."""
    sentences = []
    here = machine_name(hardware, calibration.device)
    if here != calibration.machine:
        sentences.append(f"the calibration is of another machine: it is of {calibration.machine}, this is {here}")
    before = calibration.versions
    changed = [
        f"{name} {before.get(name) or 'none'} then, {versions.get(name) or 'none'} now"
        for name in DECIDE_TIMES
        if before.get(name) != versions.get(name)
    ]
    if changed:
        sentences.append(f"the calibration was made with other versions: {'; '.join(changed)}")
    return sentences
