"""What came out of a profile: which functions took the time, on every rank. Needs neither torch nor MPI."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from manyhands.record.run import Others


class FunctionRow(BaseModel):
    """One function of a rank's training loop."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    """Such as `FusedReplica._forward`."""
    file: str
    """Relative to where Python found it, such as `torch/nn/functional.py`; a task's own file by its whole path."""
    line: int
    share_pct: float
    """Of the rank's whole run, what the function spent itself."""
    self_s: float
    """Without the functions in Python that it called; the compiled ones, such as matrix products, are its own."""
    total_s: float
    """With all that it called; of calls to itself only the outermost counts."""
    calls: int

    @property
    def self_ms_per_call(self) -> float:
        """Milliseconds of a call, without the functions that it called."""
        return 1e3 * self.self_s / max(1, self.calls)

    @property
    def total_ms_per_call(self) -> float:
        """Milliseconds of a call."""
        return 1e3 * self.total_s / max(1, self.calls)


class LineRow(BaseModel):
    """One line that called compiled functions, such as torch's operations."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    function: str
    file: str
    line: int
    source: str
    """The line itself; empty where its file cannot be read."""
    share_pct: float
    """Of the rank's whole run, what the compiled functions took."""
    self_s: float
    calls: int


class RankProfile(BaseModel):
    """Where one rank's time went: the whole run is loop, reading, evaluation and the rest."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    rank: int
    role: Literal["worker", "server"]
    host: str
    steps: int
    """Steps of the run; on a server, updates that it made."""
    timed_steps: int
    """Of these, how many were timed call by call; calls and times are scaled from them to the run."""
    disturbed_steps: int
    """Timed steps that were left out, since another program took the core meanwhile."""
    plain_step_ms: float
    """How long the others were, in the least disturbed tenth of them."""
    extra_ms: float
    """What timing adds to a step, likewise; it is taken off all figures."""
    cost_pct: float
    """What that adds to the loop of the run, of which only some steps are timed."""
    loop_s: float
    read_s: float = 0.0
    eval_s: float = 0.0
    rest_s: float = 0.0
    """Set-up before the first step, pauses for checkpoints, and storing the results."""
    functions: list[FunctionRow]
    """Those of the loop, the one with the greatest share first."""
    lines: list[LineRow]
    """Likewise the lines that called compiled functions."""

    @property
    def total_s(self) -> float:
        """The rank's whole run."""
        return self.loop_s + self.read_s + self.eval_s + self.rest_s


class ProfileRecord(BaseModel):
    """One profile's result; the run's own record is in `record.json` beside it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    status: Literal["complete", "interrupted"]
    task: str
    engine: str
    sync: str
    workers: int
    threads: int
    batch_size: int
    device: str
    parameters: int
    steps: int
    evaluations: int
    """How often the run tested its weights."""
    steps_per_evaluation: int
    """After how many steps a whole training would do so."""
    trace: str
    """The timeline's file in the run's folder; empty where none was asked for."""
    others: Others | None = None
    """What other programs used of the cores meanwhile; None where the system does not tell."""
    ranks: list[RankProfile]
    hardware: dict[str, Any]
    versions: dict[str, str]
