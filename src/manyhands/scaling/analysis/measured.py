"""A sweep's runs, to look up: which baseline and which probe a cell is held against, and on how many ranks it ran."""

import math
from dataclasses import dataclass
from functools import cache, cached_property

from manyhands import sync
from manyhands.record.sweep import Cell, Kind, Measure
from manyhands.sync import Sync


@dataclass(frozen=True)
class Measured:
    """The cells of a sweep and the runs of each."""

    kind: Kind
    cells: list[Cell]
    measures: list[Measure]
    cores: int
    """Cores of the machine that ran it."""

    @cached_property
    def _good(self) -> dict[str, dict[int, Measure]]:
        found: dict[str, dict[int, Measure]] = {}
        for measure in sorted(self.measures, key=lambda m: m.repeat):
            if not measure.failed and measure.step_ms > 0:
                found.setdefault(measure.cell, {})[measure.repeat] = measure
        return found

    def good(self, cell: Cell | None) -> dict[int, Measure]:
        """Return the runs of a cell that went well, by repeat; none for no cell."""
        return self._good.get(cell.key, {}) if cell else {}

    def failures(self, cell: Cell) -> list[str]:
        """Return why runs of a cell failed, one reason for each."""
        return [m.failed for m in self.measures if m.cell == cell.key and m.failed]

    def baseline(self, cell: Cell) -> Cell | None:
        """Return the cell of one worker alone that this one is measured against."""
        if cell.role == "baseline":
            return cell
        full = cell.batch_size == "full"
        parts = cell.size if self.kind == "weak" else 1
        batch_size = cell.batch_size if cell.batch_size == "full" else cell.batch_size / parts
        replicate = cell.replicate / parts
        for other in self.cells:
            alike = other.role == "baseline" and other.image_size == cell.image_size
            if alike and other.batch_size == batch_size and (not full or other.replicate == replicate):
                return other
        return None

    def probe(self, cell: Cell) -> Cell | None:
        """Return the cell of one worker alone with this cell's batch per worker; only a strong sweep has some."""
        runs = self.good(cell).values()
        if self.kind == "weak" or not runs:
            return None
        share = math.ceil(next(iter(runs)).batch_size / cell.size)
        for other in self.cells:
            alike = other.role == "probe" and other.image_size == cell.image_size
            if alike and other.batch_size == share:
                return other
        return None

    def ranks(self, cell: Cell) -> int:
        """Return how many ranks a cell runs on: workers, and the servers of its strategy."""
        return cell.size + strategy_of(cell.sync).num_servers()


@cache
def strategy_of(text: str) -> Sync:
    """Return the strategy with the spec string `text`, to look up its facts, not to run it."""
    return sync.make(text)
