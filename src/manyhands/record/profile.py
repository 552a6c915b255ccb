"""The result of a profile: time by function, on every rank. Needs neither torch nor MPI."""

from typing import Any, Literal

from pydantic import BaseModel

from manyhands.record.run import Others


class FunctionRow(BaseModel):
    """One function of a rank's training loop."""

    name: str
    """Qualified name, such as `FusedReplica._forward`."""
    file: str
    """Relative to the import path, such as `torch/nn/functional.py`; the file of a user's task is absolute."""
    line: int
    share_pct: float
    """`self_s` as a percentage of the rank's whole run."""
    self_s: float
    """Seconds in the function without the Python functions it called; compiled functions count as its own time."""
    total_s: float
    """Seconds with all that it called; of recursive calls only the outermost counts."""
    calls: int

    @property
    def self_ms_per_call(self) -> float:
        """Mean milliseconds of a call, without the functions that it called."""
        return 1e3 * self.self_s / max(1, self.calls)

    @property
    def total_ms_per_call(self) -> float:
        """Mean milliseconds of a call, with the functions that it called."""
        return 1e3 * self.total_s / max(1, self.calls)


class LineRow(BaseModel):
    """One source line that called compiled functions, such as torch's operations."""

    function: str
    file: str
    line: int
    source: str
    """Text of the line; empty where its file cannot be read."""
    share_pct: float
    """Time of the compiled functions as a percentage of the rank's whole run."""
    self_s: float
    calls: int


class RankProfile(BaseModel):
    """The time of one rank: the whole run is loop, reading, evaluation and the rest."""

    rank: int
    role: Literal["worker", "server"]
    host: str
    steps: int
    """Steps of the run; on a server, its updates."""
    timed_steps: int
    """Steps that were timed call by call; calls and times are scaled from them to the whole run."""
    disturbed_steps: int
    """Timed steps left out because another program took the core meanwhile."""
    plain_step_ms: float
    """Time of a step that was not timed, in the least disturbed tenth of them."""
    extra_ms: float
    """What timing adds to a step, by the same measure; it is subtracted from all figures."""
    cost_pct: float
    """What timing some of the steps adds to the run's loop, in per cent."""
    loop_s: float
    read_s: float = 0.0
    eval_s: float = 0.0
    rest_s: float = 0.0
    """Set-up before the first step, pauses for checkpoints, and storing the results."""
    functions: list[FunctionRow]
    """Functions of the loop, the largest share first."""
    lines: list[LineRow]
    """Lines that called compiled functions, the largest share first."""

    @property
    def total_s(self) -> float:
        """Seconds of the rank's whole run."""
        return self.loop_s + self.read_s + self.eval_s + self.rest_s


class ProfileRecord(BaseModel):
    """The result of one profile; the run's record is in `record.json` beside it."""

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
    """Number of evaluations on the test data."""
    steps_per_evaluation: int
    """Steps between two evaluations in a whole training."""
    trace: str
    """File name of the timeline in the run's folder; empty without a timeline."""
    others: Others | None = None
    ranks: list[RankProfile]
    hardware: dict[str, Any]
    versions: dict[str, str]
