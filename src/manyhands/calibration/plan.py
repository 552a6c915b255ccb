"""Which launches a calibration makes, and how long each may take within the budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from manyhands.errors import check
from manyhands.measurement.budget import ROOMY, Clock, plain_duration
from manyhands.record.texts import duration

START_S = {"serial": 0.0, "threads": 0.5}
"""Seconds to start an engine's ranks, where they are no processes of their own."""
LEAST_S = 0.5
"""Shortest time to measure for on a visit, for each unit of a stage's weight."""
LEAST_STEPS = 12
"""Steps with each number of rows that even the shortest visit makes: to try, to warm up, to measure."""
MOST_STARTS = 0.25
"""Share of the budget that starting ranks may take for each stage to be visited twice."""
ALONE, CROWD, CALLS = 2.0, 2.5, 1.5
"""Weights by which time is shared out: steps of one worker, steps of several at once, calls between them."""


@dataclass(frozen=True)
class Stage:
    """One launch of a calibration."""

    label: str
    engine: str
    ranks: int
    task: str
    steps_weight: float
    calls_weight: float = 0.0

    @property
    def weight(self) -> float:
        """Weight by which the launch gets its share of the time."""
        return self.steps_weight + self.calls_weight


def stages_of(names: Sequence[str], engines: Sequence[str], sharing: Sequence[int]) -> list[Stage]:
    """List the launches: each task alone, then with each engine and number of ranks, where calls are timed once."""
    stages = [Stage(f"{Path(name).name}, one worker", "serial", 1, name, ALONE) for name in names]
    for engine in engines:
        for ranks in sharing:
            for i, name in enumerate(names):
                label = f"{Path(name).name}, {engine} ×{ranks}"
                stages.append(Stage(label, engine, ranks, name, CROWD, CALLS if i == 0 else 0.0))
    return stages


@final
@dataclass
class LaunchBudget:
    """Shares the time that is left out to the launches that are left."""

    clock: Clock
    start_s: float
    """Seconds to start a process that imports torch and reads the data."""
    steps_s: Mapping[str, float]
    """By task, the seconds of one step with each number of rows, summed."""
    seen_s: dict[str, float] = field(default_factory=dict)
    """By engine, the seconds to start its ranks in the last launch."""

    def visits(self, stages: Sequence[Stage]) -> list[Stage]:
        """Return the launches in their order: all stages, and all of them again if that costs little."""
        twice = 2 * sum(map(self._start_s, stages)) <= MOST_STARTS * self.clock.budget_s
        first = [replace(stage, calls_weight=(1 + twice) * stage.calls_weight) for stage in stages]
        return [*first, *(replace(stage, calls_weight=0.0) for stage in stages if twice)]

    def least_s(self, stage: Stage) -> float:
        """Return the shortest time that a launch takes."""
        return self._start_s(stage) + max(LEAST_S * stage.weight, LEAST_STEPS * self.steps_s[stage.task])

    def second_s(self, rest: Sequence[Stage]) -> float:
        """Return the seconds for each unit of weight in the launches that are left."""
        left_s = self.clock.left_s - sum(map(self._start_s, rest))
        return max(LEAST_S, left_s / sum(stage.weight for stage in rest))

    def note(self, stage: Stage, took_s: float, second_s: float) -> None:
        """Learn from the duration of a launch how long it takes to start its engine's ranks."""
        self.seen_s[stage.engine] = max(0.0, took_s - second_s * stage.weight)

    def check_budget(self, stages: Sequence[Stage]) -> None:
        """Refuse a budget in which not everything can be measured once."""
        takes_s, left_s = sum(map(self.least_s, stages)), self.clock.left_s
        enough = plain_duration(ROOMY * (self.clock.elapsed_s + takes_s + self.clock.reserve_s))
        check(
            takes_s <= left_s,
            f"the least that a calibration measures, in {len(stages)} launches, takes about {duration(takes_s)}, and "
            f"{duration(max(0.0, left_s))} of the budget are left for it; "
            f"give --budget {enough}, fewer tasks or engines, or --over-budget to take the time it needs",
        )

    def _start_s(self, stage: Stage) -> float:
        return self.seen_s.get(stage.engine, START_S.get(stage.engine, self.start_s))
