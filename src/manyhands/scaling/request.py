"""The request for a sweep: checked, with the task's own settings filled in, and kept in `sweep.toml`."""

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from manyhands import launch, sync
from manyhands.config import as_toml, read_toml, sentence_of
from manyhands.errors import UserError, check
from manyhands.machine import facts
from manyhands.measurement.budget import parse_duration
from manyhands.measurement.trial import try_steps
from manyhands.record.sweep import Kind
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.scaling.defaults import BELONG_TO_CELLS, BUDGET, SET_BY_SWEEP, THREADS
from manyhands.spec import cut_list
from manyhands.tasks import Task, load
from manyhands.tasks.load import spec_of

Count = Annotated[int, Field(ge=1)]
AtLeast0 = Annotated[int, Field(ge=0)]
LISTS = ("workers", "engines", "syncs", "batch_sizes", "image_sizes")


class SweepRequest(BaseModel):
    """All settings of a sweep; only steps and repeats may be left to a pilot."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Kind
    task: str
    command: str
    """The command line that runs it again."""
    started: str
    workers: tuple[Count, ...]
    engines: tuple[str, ...] = ("threads", "mpi")
    syncs: tuple[str, ...] = ("allreduce",)
    batch_sizes: tuple[Count | Literal["full"], ...]
    """Batch sizes of one worker alone; in a weak sweep n workers get n times as much."""
    image_sizes: tuple[AtLeast0, ...] = (0,)
    threads: Count = THREADS
    """Worker threads in each process of engine hybrid."""
    budget: str = BUDGET
    """Time limit; empty where steps and repeats are given."""
    over_budget: bool = False
    """Whether to run every cell once even if that exceeds the budget."""
    steps: AtLeast0 = 0
    """Steps of each run; 0 where epochs are given, or a pilot shall choose."""
    epochs: AtLeast0 = 0
    """Epochs of each run; 0 where not given."""
    repeats: AtLeast0 = 0
    """Runs of each cell; 0 where a pilot shall choose."""
    replicate: int
    own_epochs: int
    """The task's own number of epochs."""
    step_s: float = 0.0
    """Estimated time of a step of one worker alone, of the largest images."""
    samples: int = 0
    """Training samples, replicated ones included."""
    options: dict[str, Any]
    """Further options of every run."""

    @property
    def needs_pilot(self) -> bool:
        """Whether steps or repeats are still to be chosen."""
        return self.repeats == 0 or (self.steps == 0 and self.epochs == 0)

    def to_toml(self) -> str:
        """Return the request as TOML."""
        values = self.model_dump(mode="json")
        options = values.pop("options")
        return f"{as_toml(values)}\n[options]\n{as_toml(options)}"

    @staticmethod
    def from_toml(path: Path) -> "SweepRequest":
        """Read the request that `to_toml` wrote."""
        try:
            return SweepRequest.model_validate(read_toml(path))
        except ValidationError:
            raise UserError(f"'{path}' is damaged: it is no request for a sweep") from None

    @field_validator(*LISTS, mode="before")
    @classmethod
    def _split_at_commas(cls, value: Any) -> Any:
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


OPTIONS_OF_SWEEP = (*LISTS, "threads", "budget", "over_budget", "steps", "epochs", "repeats")
"""A user's options of the sweep; all others are settings of its runs."""


def ask(kind: Kind, name: str, options: Mapping[str, Any]) -> SweepRequest:
    """Return the request for a sweep of the task `name`, with defaults filled in; raise UserError for a bad one."""
    task = load(name)
    given = {key: value for key, value in options.items() if value is not None}
    settings = {"blas_threads": 1, **{key: value for key, value in given.items() if key not in OPTIONS_OF_SWEEP}}
    for option in (name for name in settings if name in SET_BY_SWEEP):
        hint = f"use --{BELONG_TO_CELLS[option].replace('_', '-')}" if option in BELONG_TO_CELLS else "leave it out"
        raise UserError(f"a sweep sets {option.replace('_', '-')} itself; {hint}")
    base = resolve(name, {**settings, "engine": "serial"}, task)
    values = {
        "kind": kind,
        "task": base.task,
        "command": command_of(kind, name, given),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "workers": powers_of_two(facts.cores()),
        "batch_sizes": [base.batch_size],
        "replicate": base.replicate,
        "own_epochs": base.epochs,
        "options": settings,
        **{key: value for key, value in given.items() if key in OPTIONS_OF_SWEEP},
    }
    try:
        request = SweepRequest.model_validate(values)
    except ValidationError as error:
        words = {"batch_sizes": "must be whole numbers of at least 1, or 'full'"}
        raise UserError(sentence_of(error, words)) from None
    _check_choices(request, given)
    return request.model_copy(update={**_try(request, task), **({} if request.needs_pilot else {"budget": ""})})


def spec_of_task(task: str | Task) -> str:
    """Return the text from which other processes can load the task; raise UserError where there is none."""
    text = task if isinstance(task, str) else spec_of(task)
    if text is None:
        raise UserError(
            "a sweep starts new processes, which must import the task: give it a name at the top level of a file, "
            "or pass 'FILE.py:VARIABLE'"
        )
    return text


def powers_of_two(cores: int) -> list[int]:
    """Return 1, 2, 4, … up to the number of cores, and that number; at least 1 and 2."""
    most = max(2, cores)
    return [*(2**i for i in range(most.bit_length()) if 2**i < most), most]


def command_of(kind: str, task: str, given: Mapping[str, Any]) -> str:
    """Return the command line of a request."""
    words = ["manyhands", "scale", kind, task]
    for name, value in given.items():
        dashed = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{dashed}" if value else f"--no-{dashed}")
        else:
            many = value if isinstance(value, list | tuple) else [value]
            words += [f"--{dashed}", ",".join(map(str, many))]
    return shlex.join(words)


def _check_choices(request: SweepRequest, given: Mapping[str, Any]) -> None:
    for name in LISTS:
        check(len(getattr(request, name)) > 0, f"{name.replace('_', '-')} must name at least one")
    parse_duration(request.budget)
    check(not (request.steps and request.epochs), "give --steps or --epochs, not both")
    check(
        request.needs_pilot or "budget" not in given,
        "a budget chooses steps and repeats, which are both given already; leave --budget out",
    )
    for engine in request.engines:
        launch.make(engine)
    check("sim" not in request.engines, "engine sim cannot be measured: its workers are virtual and take no time")
    for spec in request.syncs:
        sync.make(spec)
    check(max(request.workers) > 1, f"a sweep compares several workers with one; got --workers {request.workers[0]}")
    check(request.engines != ("serial",), "engine serial is what every sweep compares with; name another one too")


def _try(request: SweepRequest, task: Task) -> dict[str, Any]:
    """Return `step_s` and `samples`, from trial steps of one worker alone with each image size."""
    alone = {**request.options, "engine": "serial", "batch_size": request.batch_sizes[0]}
    step_s = [0.0]
    for size in request.image_sizes:
        config = resolve(request.task, {**alone, "image_size": size}, task)
        ready = preflight(config, task)
        step_s += [try_steps(config, ready, fewest=1).least_s] if request.needs_pilot else []
    return {"samples": len(ready.data.train), "step_s": max(step_s)}
