"""Look up a sweep's runs, the baseline and the probe of a cell, and the number of its ranks."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from manyhands import sync
from manyhands.record.sweep import Cell, Kind, Measure
from manyhands.sync import Sync


@dataclass(frozen=True)
class Measured:
    """The cells of a sweep and their runs."""

    kind: Kind
    cells: list[Cell]
    measures: list[Measure]
    cores: int
    """Cores of the machine that ran it."""

    @cached_property
    def _good(self) -> dict[str, dict[int, Measure]]:
        runs: dict[str, dict[int, Measure]] = {}
        for run in sorted(self.measures, key=lambda run: run.repeat):
            if not run.failed and run.step_ms > 0:
                runs.setdefault(run.cell, {})[run.repeat] = run
        return runs

    def good(self, cell: Cell | None) -> dict[int, Measure]:
        """Return the successful runs of a cell, by repeat; none for no cell."""
        return self._good.get(cell.key, {}) if cell else {}

    def failures(self, cell: Cell) -> list[str]:
        """Return the reason of each failed run of a cell."""
        return [m.failed for m in self.measures if m.cell == cell.key and m.failed]

    def baseline(self, cell: Cell) -> Cell | None:
        """Return the cell of one worker alone that `cell` is compared with."""
        parts = cell.size if self.kind == "weak" else 1
        if cell.batch_size == "full":
            return self._alone(cell, role="baseline", replicate=cell.replicate / parts)
        return self._alone(cell, role="baseline", batch_size=cell.batch_size / parts)

    def probe(self, cell: Cell) -> Cell | None:
        """Return the cell of one worker alone with this cell's batch per worker; only a strong sweep has some."""
        runs = self.good(cell).values()
        if self.kind == "weak" or not runs:
            return None
        return self._alone(cell, role="probe", batch_size=math.ceil(next(iter(runs)).batch_size / cell.size))

    def _alone(self, cell: Cell, **work: object) -> Cell | None:
        one = {"engine": "serial", "workers": 1, "threads": 1, "sync": "allreduce"}
        wanted = cell.model_copy(update=one | work)
        return next((other for other in self.cells if other == wanted), None)

    def ranks(self, cell: Cell) -> int:
        """Return the number of ranks of a cell: its workers, and the servers of its strategy."""
        return cell.size + strategy_of(cell.sync).num_servers()


@cache
def strategy_of(text: str) -> Sync:
    """Return the strategy with the spec string `text`, to look up its facts, not to run it."""
    return sync.make(text)
