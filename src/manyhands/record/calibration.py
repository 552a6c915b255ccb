"""What a machine takes for steps and exchanges, as `manyhands calibrate` measured it. Needs neither torch nor MPI."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manyhands.errors import UserError, check
from manyhands.record.run import Others

DECIDE_TIMES = ("python", "torch", "numpy", "mpi4py", "mpich")
"""Packages whose other version may make other times."""


class RowTimes(BaseModel):
    """Steps of one worker with so many rows, in the order in which they were made."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    rows: int = Field(ge=1)
    compute_ms: list[float] = Field(min_length=1)
    """Forward and backward of each step."""
    serial_ms: list[float] = Field(min_length=1)
    """The optimiser's step and the loop around it, of the same steps."""
    block: int = Field(default=1, ge=1)
    """Steps that followed each other; between two such blocks other things were measured."""
    disturbed_pct: float = 0.0
    """Of the steps, those in which another program took the core, as far as the system tells."""


class TaskCosts(BaseModel):
    """What a step of a task takes one worker alone, with one thread in its matrix products."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    task: str
    parameters: int
    weight_bytes: int
    """Of all parameters, which is what is exchanged."""
    samples: int
    """Training samples."""
    batch_size: int
    """The task's own global batch."""
    piece_rows: int = Field(default=0, ge=0)
    """Rows that are computed at once, piece after piece; 0 for all of a worker's."""
    flops_per_row: float = Field(ge=0)
    """Floating-point operations of a forward and backward pass, in products of matrices and convolutions."""
    pass_operations: int = Field(ge=0)
    """Operations to gather a piece and pass over it; for each, Python gives its lock away and wants it back."""
    update_operations: int = Field(ge=0)
    """The same for the optimiser's step."""
    made: str
    """When it was measured."""
    points: list[RowTimes] = Field(min_length=1)
    """The fewest rows first."""
    update_share: float = Field(default=1.0, ge=0, le=1)
    """Of `serial_ms`, the optimiser's step; the rest is the loop, which every worker has, whoever makes that step."""
    touch_ms: list[float] = Field(min_length=1)
    """Going once through all gradients with one thread, as a strategy does that scales or adds, each time."""


class CallTimes(BaseModel):
    """One call of a comm, with one number of ranks and bytes, made again and again."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    call: str
    """As the comm names it, such as all-reduce; `send` is half of a ping-pong, `stream` a burst of messages one way."""
    ranks: int = Field(ge=2)
    num_bytes: int = Field(ge=0)
    """Of the tensor that was passed to the call."""
    us: list[float] = Field(min_length=1)
    """Microseconds from when the last rank began the call until the last was done, each time."""


class CommCosts(BaseModel):
    """What calls take between ranks of this host, or of several, and what α, β and γ fit them best."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    engine: str
    made: str
    ranks: int = Field(ge=2)
    """The most that were measured."""
    hosts: int = Field(default=1, ge=1)
    """The hosts that the most ranks were on: one that they shared, or one for each."""
    model: Literal["messages", "mpich", "mpich-hosts", "slices"]
    """Whose formulas were fitted: of ranks that send messages, by whichever algorithm is the cheapest or by those that
    MPICH takes, on one host or between hosts, or of threads that each work on a slice in shared memory."""
    latency_us: float = Field(ge=0)
    """α: of an empty message; with slices, of a barrier of two threads."""
    gigabyte_per_s: float = Field(gt=0)
    """1/β: of a large message; with slices, of a copy."""
    reduce_gigabyte_per_s: float = Field(gt=0)
    """1/γ: of adding one tensor to another."""
    overhead_us: float = Field(ge=0)
    """Of α, for how long a message keeps its ports from the next."""
    duplex: Literal["full", "half"]
    """Whether messages in both directions at once take no longer than one; whichever fits better."""
    error_pct: float
    """By how much the fit is off, in the median over the points, of threads those of two; predictions for this host
    begin at the points."""
    points: list[CallTimes] = Field(min_length=1)

    @property
    def apart(self) -> bool:
        """Whether every rank had a host of its own."""
        return self.hosts > 1


class Contention(BaseModel):
    """Steps of several workers that compute at the same time, on the host that they share or on one each."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    engine: str
    task: str
    ranks: int = Field(ge=2)
    hosts: int = Field(default=1, ge=1)
    rows: int = Field(ge=1)
    """Of each worker."""
    compute_factor: float
    """How many times as long the forward and backward pass takes as alone."""
    times: RowTimes
    """The steps of all these workers, each of which follows an exchange."""
    silent: RowTimes
    """Steps that they make at the same time, each for itself: what sharing the host costs, and nothing else."""
    exchanges: list[CallTimes] = []
    """Calls with the task's gradients or weights in the middle of such steps, where caches are as in a run; of one
    number of rows only."""


class CoreTimes(BaseModel):
    """What an operation takes by the number of cores that are busy with it: of bare threads, not of workers."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    compute_us: dict[int, list[float]] = Field(min_length=1)
    """A product of matrices, which keeps a core busy: of every thread, several times, the quickest first. Two virtual
    cores may be one real one for a while, which makes them slow; the more are busy, the likelier that is."""
    compute_flops: float = Field(gt=0)
    """Of that product."""
    memory_us: dict[int, float] = Field(min_length=1)
    """Going through more memory than any cache holds."""
    lock_us: dict[int, float] = Field(min_length=1)
    """An operation that takes no time but to get the interpreter's lock back, over all threads together."""


class Calibration(BaseModel):
    """All that was measured on one machine."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    machine: str
    """Host, processor and cores."""
    made: str
    """When the newest part was measured."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    tasks: dict[str, TaskCosts] = {}
    """By the task's name; that of an own task is its file's whole path."""
    comms: dict[str, CommCosts] = {}
    """By the engine's name."""
    contention: list[Contention] = []
    cores: CoreTimes
    others: Others | None = None
    """What other programs used of the cores while the newest part was measured, in the worst of its launches."""

    def crowd(self, engine: str, task: str) -> list[Contention]:
        """Return what was measured of several of a task's workers at the same time."""
        return [each for each in self.contention if (each.engine, each.task) == (engine, task)]

    def engines(self, task: str) -> list[str]:
        """Return the engines whose calls were measured, and with which workers of a task were."""
        return [engine for engine in self.comms if self.crowd(engine, task)]

    def joined(self, newer: "Calibration") -> "Calibration":
        """Return this one with what a newer one has measured, which replaces what it measured again.

        Of an engine whose ranks were on one host before and are on several now, or the other way round, nothing stays.
        """
        again = {(each.engine, each.task) for each in newer.contention}
        apart = {engine: costs.apart for engine, costs in newer.comms.items()}
        kept = [
            each
            for each in self.contention
            if (each.engine, each.task) not in again and apart.get(each.engine, each.hosts > 1) == (each.hosts > 1)
        ]
        return newer.model_copy(
            update={
                "tasks": {**self.tasks, **newer.tasks},
                "comms": {**self.comms, **newer.comms},
                "contention": [*kept, *newer.contention],
            }
        )


def machine_name(hardware: dict[str, Any]) -> str:
    """Name a machine by its host, processor and cores."""
    return f"{hardware['host']}, {hardware['cpu']}, {hardware['cores']} cores"


def read_calibration(path: Path, task: str, engine: str = "", *, named: bool = False) -> Calibration:
    """Read a machine's calibration, which must have this task and engine; if not, say what to type.

    `named` tells that the user named the file, and must do so again.
    """
    found = open_calibration(path)
    typed = f"manyhands calibrate {task}{f' --calibration {path}' if named else ''}"
    if found is None:
        raise UserError(f"this machine is not calibrated: there is no '{path}'; run '{typed}', which takes a minute")
    check(task in found.tasks, f"task '{task}' is not calibrated in '{path}'; run '{typed}', which takes a minute")
    if engine:
        measured = engine in found.comms and bool(found.crowd(engine, task))
        again = f"{typed} --engines {engine}"
        check(measured, f"engine {engine} is not calibrated with task '{task}' in '{path}'; run '{again}'")
    return found


def open_calibration(path: Path) -> Calibration | None:
    """Read a calibration, or return None where there is no file; a damaged one is an error in one sentence."""
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
    """Say in a sentence each how this machine and its software differ from what was calibrated."""
    said = []
    here = machine_name(hardware)
    if here != calibration.machine:
        said.append(f"the calibration is of another machine: it is of {calibration.machine}, this is {here}")
    before = calibration.versions
    changed = [
        f"{name} {before.get(name) or 'none'} then, {versions.get(name) or 'none'} now"
        for name in DECIDE_TIMES
        if before.get(name) != versions.get(name)
    ]
    if changed:
        said.append(f"the calibration was made with other versions: {'; '.join(changed)}")
    return said
