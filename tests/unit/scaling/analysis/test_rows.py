"""The rows of a table: medians of what was measured, the right baseline, and rows of runs that failed."""

import numpy as np
import pytest
from made_up import finding_of, made_up_cells, made_up_measures, made_up_sweep

from manyhands.record.sweep import Cell, Kind, Measure, Row
from manyhands.report.tables.sweeps import notes
from manyhands.scaling.analysis.measured import Measured
from manyhands.scaling.analysis.rows import rows


def _row(found: list[Row], part: str) -> Row:
    (row,) = [row for row in found if part in row.cell.key]
    return row


def _measure(cell: Cell, repeat: int, step_ms: float, batch_size: int = 0) -> Measure:
    batch = batch_size or int(cell.batch_size)
    return Measure(
        cell=cell.key, repeat=repeat, batch_size=batch, steps_per_epoch=10, step_ms=step_ms, compute_ms=step_ms
    )


def test_every_cell_but_probes_has_a_row_in_the_order_of_the_sweep() -> None:
    cells = made_up_cells("strong", (1, 2, 4), ("threads", "mpi"))
    found = rows(Measured("strong", cells, made_up_measures(cells), 8))
    assert [row.cell for row in found] == [cell for cell in cells if cell.role != "probe"]
    assert any(cell.role == "probe" for cell in cells)


def test_columns_are_medians_over_the_repeats() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    measures = made_up_measures(cells, noise=0.1)
    row = _row(rows(Measured("strong", cells, measures, 8)), "mpi 2")
    runs = [m for m in measures if m.cell == row.cell.key]
    assert row.repeats == 5
    assert row.step_ms
    assert row.step_ms.value == np.median([m.step_ms for m in runs])
    assert row.comm_ms == np.median([m.comm_ms for m in runs])
    assert row.samples_per_s
    assert row.samples_per_s.value == pytest.approx(np.median([m.batch_size / m.step_ms * 1e3 for m in runs]))
    assert row.epoch_s == pytest.approx(row.step_ms.value * runs[0].steps_per_epoch / 1e3)
    assert row.energy_j == np.median([m.energy_j for m in runs])


def test_strong_figures_compare_the_same_batch_repeat_by_repeat() -> None:
    alone = Cell(role="baseline", engine="serial", workers=1, batch_size=64)
    other = Cell(role="baseline", engine="serial", workers=1, batch_size=128)
    many = Cell(engine="mpi", workers=4, batch_size=64)
    spells = (1.0, 5.0, 2.0)
    measures = [_measure(alone, i, 8 * slow) for i, slow in enumerate(spells)]
    measures += [_measure(many, i, 2.5 * slow) for i, slow in enumerate(spells)]
    measures += [_measure(other, i, 99) for i in range(3)]
    row = _row(rows(Measured("strong", [other, alone, many], measures, 4)), "mpi")
    for figure in (row.speed_up, row.efficiency, row.karp_flatt):
        assert figure
        assert figure.low == pytest.approx(figure.high)
    assert row.speed_up
    assert row.speed_up.value == pytest.approx(3.2)
    assert row.efficiency
    assert row.efficiency.value == pytest.approx(0.8)
    assert row.improvement_pct == pytest.approx((8 - 2.5) / 8 * 100)
    assert row.karp_flatt
    assert row.karp_flatt.value == pytest.approx((1 / 3.2 - 1 / 4) / (1 - 1 / 4))


@pytest.mark.parametrize(
    ("kind", "workers", "step_ms", "share"),
    [
        ("strong", 4, 2.5, (1 / 3.2 - 1 / 4) / (1 - 1 / 4)),
        ("strong", 4, 24.0, None),
        ("strong", 4, 1.9, None),
        ("weak", 4, 2.5, None),
        ("strong", 1, 8.0, None),
    ],
)
def test_karp_flatt_is_a_share_of_a_strong_sweep_or_nothing(
    kind: Kind, workers: int, step_ms: float, share: float | None
) -> None:
    alone = Cell(role="baseline", engine="serial", workers=1, batch_size=64)
    many = Cell(engine="mpi", workers=workers, batch_size=64 * (workers if kind == "weak" else 1))
    row = _row(rows(Measured(kind, [alone, many], [_measure(alone, 0, 8), _measure(many, 0, step_ms)], 4)), "mpi")
    if share is None:
        assert row.karp_flatt is None
    else:
        assert row.karp_flatt
        assert row.karp_flatt.value == pytest.approx(share)
        assert 0 <= row.karp_flatt.low <= row.karp_flatt.high <= 1


@pytest.mark.parametrize("full", [False, True])
def test_weak_figures_compare_the_same_batch_per_worker(full: bool) -> None:
    alone = Cell(role="baseline", engine="serial", workers=1, batch_size="full" if full else 64)
    many = Cell(engine="hybrid", workers=2, threads=2, batch_size="full" if full else 256, replicate=4 if full else 1)
    measures = [_measure(alone, 0, 8, 64), _measure(many, 0, 10, 256)]
    row = _row(rows(Measured("weak", [alone, many], measures, 4)), "hybrid")
    assert row.speed_up
    assert row.speed_up.value == pytest.approx(3.2)
    assert row.efficiency
    assert row.efficiency.value == pytest.approx(0.8)
    assert row.improvement_pct == pytest.approx(100 * (1 - (10 / 256) / (8 / 64)))


def test_the_baseline_is_once_as_fast_as_itself() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    row = _row(rows(Measured("strong", cells, made_up_measures(cells), 8)), "baseline")
    assert row.speed_up
    assert (row.speed_up.low, row.speed_up.high) == (1, 1)
    assert row.karp_flatt is None


def test_a_cell_that_failed_is_a_row_with_its_reason_and_no_figures() -> None:
    cells = made_up_cells("strong", (1, 2, 4), ("mpi",))
    failing = {"mpi 4": "rank 3 was killed"}
    row = _row(rows(Measured("strong", cells, made_up_measures(cells, failing=failing), 8)), "mpi 4")
    assert row.failed == "5 of 5 runs failed: rank 3 was killed"
    assert (row.repeats, row.step_ms, row.speed_up, row.efficiency, row.karp_flatt) == (0, None, None, None, None)


def test_a_cell_that_failed_in_part_says_so_and_keeps_the_figures_of_the_rest() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    failing = {"cell mpi 2 allreduce batch 64 repeat 3": "out of memory"}
    row = _row(rows(Measured("strong", cells, made_up_measures(cells, failing=failing), 8)), "mpi 2")
    assert row.failed == "1 of 5 runs failed: out of memory"
    assert row.repeats == 4
    assert row.speed_up


def test_a_cell_that_was_never_run_says_so() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    row = _row(rows(Measured("strong", cells, [], 8)), "mpi 2")
    assert row.failed == "not measured"


def test_without_its_baseline_a_row_has_times_but_no_speed_up() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    row = _row(rows(Measured("strong", cells, made_up_measures(cells, failing={"baseline": "killed"}), 8)), "mpi 2")
    assert row.step_ms
    assert row.samples_per_s
    assert (row.speed_up, row.efficiency, row.improvement_pct, row.karp_flatt) == (None, None, None, None)


@pytest.mark.parametrize(
    ("sync", "cores", "crowded"),
    [
        ("allreduce", 4, False),
        ("allreduce", 3, True),
        ("parameter-server", 4, True),
        ("parameter-server:servers=2", 6, False),
        ("parameter-server:servers=2", 5, True),
    ],
)
def test_a_row_is_oversubscribed_when_its_ranks_outnumber_the_cores_servers_included(
    sync: str, cores: int, crowded: bool
) -> None:
    cells = made_up_cells("strong", (1, 4), ("mpi",), (sync,))
    assert _row(rows(Measured("strong", cells, [], cores)), "mpi 4").oversubscribed is crowded


@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize(("sync", "ranks"), [("allreduce", 4), ("parameter-server", 5), ("async-server:servers=2", 6)])
def test_efficiency_counts_the_cores_of_servers_and_the_losses_sum_up_to_the_rest(
    kind: Kind, sync: str, ranks: int
) -> None:
    record = made_up_sweep(kind, (1, 4), ("mpi",), (sync,))
    row, finding = _row(record.rows, "mpi 4"), finding_of(record, "mpi 4")
    assert row.ranks == ranks
    assert row.speed_up
    assert row.efficiency
    assert row.efficiency.value == pytest.approx(row.speed_up.value / ranks)
    assert sum(part.percent for part in finding.parts) == pytest.approx(100 * (1 - row.efficiency.value))
    servers = {part.cause: part.percent for part in finding.parts}.get("servers", 0.0)
    assert servers == pytest.approx(100 * (ranks - 4) / ranks)
    noted = "efficiency counts the cores of servers, too: speed-up / (workers + servers)"
    assert (noted in notes(record)) == (ranks > 4)


def test_speed_ups_against_the_baseline_of_another_repeat_are_counted_and_said() -> None:
    failing = {f"baseline serial 1 allreduce batch 64 repeat {i}": "killed" for i in (1, 3)}
    record = made_up_sweep("strong", (1, 2), ("mpi",), failing=failing)
    row = _row(record.rows, "mpi 2")
    assert (row.unpaired, row.repeats) == (2, 5)
    assert row.speed_up
    assert row.speed_up.coverage_pct == 75, "three pairs are all that is independent"
    says = "2 of 5 speed-ups are against the baseline of another repeat, since the baseline of the same repeat failed"
    assert f"mpi ×2: {says}" in notes(record)
    assert f"{says}." in finding_of(record, "mpi 2").sentences
    assert not any("another repeat" in note for note in notes(made_up_sweep("strong", (1, 2), ("mpi",))))
