"""Runs that take no time: what a sweep does is tested without starting a process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyhands.record.sweep import Measure


@dataclass
class Call:
    """One run that was asked for."""

    cell: str
    repeat: int
    options: dict[str, Any]
    out: Path
    timeout_s: float


@dataclass
class FakeMeasure:
    """Stands in for `measure`: notes every call, and fails or is interrupted where told."""

    fails: Callable[[Call], str] = lambda call: ""
    interrupt_after: int | None = None
    step_ms: float | None = None
    """Time of a step, where it shall not be a share of one worker's."""
    warns: Callable[[Call], str] = lambda call: ""
    """What a run's record warns of."""
    leaves: bool = False
    """Whether every run leaves a folder, as real ones do."""
    takes_s: Callable[[Call], float] = lambda call: 0.0
    """Seconds that a run takes on the clock; one that takes longer than it may is ended."""
    now_s: float = 0.0
    """What the clock shows, where a test sets it in place of the real one."""
    calls: list[Call] = field(default_factory=list)

    def __call__(
        self, task: str, options: Mapping[str, Any], out: Path, *, timeout_s: float, cell: str = "", repeat: int = 0
    ) -> Measure:
        name = f"run-{len(self.calls)}"
        if self.leaves:
            (out / name).mkdir(parents=True, exist_ok=True)
        if self.interrupt_after == len(self.calls):
            raise KeyboardInterrupt
        call = Call(cell, repeat, dict(options), out, timeout_s)
        self.calls.append(call)
        self.now_s += min(self.takes_s(call), timeout_s)
        if self.takes_s(call) > timeout_s:
            return Measure(cell=cell, repeat=repeat, failed=f"took longer than {timeout_s:.0f} s and was ended")
        if reason := self.fails(call):
            return Measure(cell=cell, repeat=repeat, failed=reason)
        step_ms = 10 / options["workers"] + 0.01 * repeat if self.step_ms is None else self.step_ms
        return Measure(
            cell=cell,
            repeat=repeat,
            run=f"{out.name}/{name}",
            batch_size=options["batch_size"],
            steps=options["steps"],
            steps_per_epoch=10,
            step_ms=step_ms,
            compute_ms=0.8 * step_ms,
            serial_ms=0.1 * step_ms,
            comm_ms=0.1 * step_ms,
            total_s=1.0,
            warnings=[warning] if (warning := self.warns(call)) else [],
        )

    def now(self) -> float:
        """Return what the clock shows."""
        return self.now_s

    @property
    def measured(self) -> list[Call]:
        """The calls of the repeats."""
        return [call for call in self.calls if call.repeat >= 0]
