"""What a sweep was asked for: checked, with the task's own settings filled in, and kept in `sweep.toml`."""

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from manyhands import launch, sync
from manyhands.config import as_toml, read_toml, sentence_of
from manyhands.errors import UserError, check
from manyhands.launch.environment import outer_world
from manyhands.machine import facts
from manyhands.measurement.budget import parse_duration
from manyhands.measurement.trial import try_steps
from manyhands.record import Kind
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.scaling.defaults import BELONG_TO_CELLS, BUDGET, SET_BY_SWEEP, THREADS
from manyhands.spec import cut_list
from manyhands.tasks import Task, load
from manyhands.tasks.load import check_not_importing, spec_of

Count = Annotated[int, Field(ge=1)]
AtLeast0 = Annotated[int, Field(ge=0)]


class SweepRequest(BaseModel):
    """One sweep, with nothing left open but steps and repeats, which a pilot may have to choose."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Kind
    task: str
    command: str
    """What to type to run it again."""
    started: str
    workers: tuple[Count, ...]
    engines: tuple[str, ...] = ("threads", "mpi")
    syncs: tuple[str, ...] = ("allreduce",)
    batch_sizes: tuple[Count | Literal["full"], ...]
    """Of one worker alone; in a weak sweep n workers get n times as much."""
    image_sizes: tuple[AtLeast0, ...] = (0,)
    threads: Count = THREADS
    """Worker threads in each process of engine hybrid."""
    budget: str = BUDGET
    """Time that it may take; empty where steps and repeats are given, which take as long as they take."""
    over_budget: bool = False
    """Whether to run every cell once even if that takes longer."""
    steps: AtLeast0 = 0
    """Steps of each run; 0 where epochs are given, or to be chosen."""
    epochs: AtLeast0 = 0
    """Epochs of each run, where given."""
    repeats: AtLeast0 = 0
    """Runs of each cell; 0 to be chosen."""
    replicate: int
    own_epochs: int
    """Epochs that the task itself would train."""
    step_s: float = 0.0
    """About what a step of one worker alone takes, of the largest images."""
    samples: int = 0
    """Training samples, those that are repeated included."""
    options: dict[str, Any]
    """What every run is given besides."""

    @property
    def needs_pilot(self) -> bool:
        """Whether steps or repeats are still to be chosen."""
        return self.repeats == 0 or (self.steps == 0 and self.epochs == 0)

    def to_toml(self) -> str:
        """Write it as TOML."""
        values = self.model_dump(mode="json")
        options = values.pop("options")
        return f"{as_toml(values)}\n[options]\n{as_toml(options)}"

    @staticmethod
    def from_toml(path: Path) -> "SweepRequest":
        """Read the request that `to_toml` wrote."""
        try:
            return SweepRequest.model_validate(read_toml(path))
        except ValidationError:
            raise UserError(f"'{path}' is damaged: it does not tell what a sweep was asked for") from None

    @field_validator("workers", "engines", "syncs", "batch_sizes", "image_sizes", mode="before")
    @classmethod
    def _cut(cls, value: Any) -> Any:
        """Cut a text at its commas."""
        if isinstance(value, str):
            return cut_list(value)
        return value if isinstance(value, list | tuple) else [value]

    @field_validator("workers", mode="after")
    @classmethod
    def _sort(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(set(value)))

    @field_validator("engines", "syncs", "batch_sizes", "image_sizes", mode="after")
    @classmethod
    def _once(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(value))


ASKED_FOR = (
    *("workers", "engines", "syncs", "batch_sizes", "image_sizes", "threads"),
    *("budget", "over_budget", "steps", "epochs", "repeats"),
)
"""What a user may say of a sweep; all else are settings of its runs."""


def check_may_start() -> None:
    """Refuse to start a sweep inside another run."""
    check_not_importing()
    check(outer_world() is None, "a sweep starts its own workers; run it without mpiexec, srun or torchrun")


def ask(kind: Kind, name: str, options: Mapping[str, Any]) -> SweepRequest:
    """Check a request and fill in what it leaves open; a bad one is found here, before anything is run."""
    own = load(name)
    given = {key: value for key, value in options.items() if value is not None}
    settings = {"blas_threads": 1, **{key: value for key, value in given.items() if key not in ASKED_FOR}}
    _check_settings(settings)
    base = resolve(name, {**settings, "engine": "serial"}, own)
    asked = _make(
        {
            "kind": kind,
            "task": base.task,
            "command": command_of(kind, name, given),
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "workers": powers_of_two(facts.cores()),
            "batch_sizes": [base.batch_size],
            "replicate": base.replicate,
            "own_epochs": base.epochs,
            "options": settings,
            **{key: value for key, value in given.items() if key in ASKED_FOR},
        }
    )
    _check_choices(asked, given)
    return asked.model_copy(update={**_try(asked, own), **({} if asked.needs_pilot else {"budget": ""})})


def spec_of_task(task: str | Task) -> str:
    """Return the text from which the processes that a sweep starts can load the task."""
    found = task if isinstance(task, str) else spec_of(task)
    if found is None:
        raise UserError(
            "a sweep starts new processes, which must import the task: give it a name at the top level of a file, "
            "or pass 'FILE.py:VARIABLE'"
        )
    return found


def powers_of_two(cores: int) -> list[int]:
    """Return 1, 2, 4, … up to the cores, and these; at least 1 and 2, so that there is something to compare."""
    most = max(2, cores)
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def command_of(kind: str, task: str, given: Mapping[str, Any]) -> str:
    """Write the command line of a request."""
    words = ["manyhands", "scale", kind, task]
    for name, value in given.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{dashed}" if value else f"--no-{dashed}")
        else:
            many = value if isinstance(value, list | tuple) else [value]
            words += [f"--{dashed}", ",".join(map(str, many))]
    return shlex.join(words)


def _make(values: Mapping[str, Any]) -> SweepRequest:
    try:
        return SweepRequest.model_validate(values)
    except ValidationError as error:
        words = {"batch_sizes": "must be whole numbers of at least 1, or 'full'"}
        raise UserError(sentence_of(error, words)) from None


def _check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse the settings of a run that a sweep sets itself."""
    for name in settings:
        if name in SET_BY_SWEEP:
            dashed = name.replace("_", "-")
            hint = f"use --{BELONG_TO_CELLS[name].replace('_', '-')}" if name in BELONG_TO_CELLS else "leave it out"
            raise UserError(f"a sweep sets {dashed} itself; {hint}")


def _check_choices(asked: SweepRequest, given: Mapping[str, Any]) -> None:
    for name in ("workers", "engines", "syncs", "batch_sizes", "image_sizes"):
        check(len(getattr(asked, name)) > 0, f"{name.replace('_', '-')} must name at least one")
    parse_duration(asked.budget)
    check(not (asked.steps and asked.epochs), "give --steps or --epochs, not both")
    check(
        asked.needs_pilot or "budget" not in given,
        "a budget chooses steps and repeats, which are both given already; leave --budget out",
    )
    for engine in asked.engines:
        launch.make(engine)
    check("sim" not in asked.engines, "engine sim cannot be measured: its workers are virtual and take no time")
    for spec in asked.syncs:
        sync.make(spec)
    check(max(asked.workers) > 1, f"a sweep compares several workers with one; got --workers {asked.workers[0]}")
    check(asked.engines != ("serial",), "engine serial is what every sweep compares with; name another one too")


def _try(asked: SweepRequest, task: Task) -> dict[str, Any]:
    """Try steps with each image size, as one worker alone would make them; tell how long they take, and the samples."""
    alone = {**asked.options, "engine": "serial", "batch_size": asked.batch_sizes[0]}
    step_s = [0.0]
    for size in asked.image_sizes:
        config = resolve(asked.task, {**alone, "image_size": size}, task)
        ready = preflight(config, task)
        step_s += [try_steps(config, ready, fewest=1).least_s] if asked.needs_pilot else []
    return {"samples": len(ready.data.train), "step_s": max(step_s)}
