"""Where lost time went: the parts sum up to 100 − efficiency, and a known cause is found and nothing else."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import CAUSED_BY, NOTHING, finding_of, made_up_cells, made_up_measures, made_up_sweep

from manyhands.record.sweep import Cell, Finding, Kind, Measure
from manyhands.scaling.analysis.analyse import analyse


@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize("cause", CAUSED_BY)
def test_a_known_cause_is_found_and_nothing_else(cause: str, kind: Kind) -> None:
    record = made_up_sweep(kind, (1, 4), ("mpi",), **{**NOTHING, **CAUSED_BY[cause]})
    finding = finding_of(record, "mpi 4")
    (row,) = [row for row in record.rows if row.cell.key == finding.row]
    assert row.efficiency
    lost = 100 * (1 - row.efficiency.value)
    # In a weak sweep the same serial work and the same batch per worker cost nothing extra.
    expected = 0.0 if kind == "weak" and cause in ("serial", "small-batch") else lost
    assert (lost > 5) == (expected > 0)
    assert {part.cause: part.percent for part in finding.parts} == pytest.approx(
        {other: expected if other == cause else 0.0 for other in (*CAUSED_BY, "unattributed")}, abs=1e-9
    )


def test_parts_are_shares_of_the_step() -> None:
    record = made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "comm_ms": 0.4})
    (comm,) = [part for part in finding_of(record, "mpi 2").parts if part.cause == "comm"]
    assert comm.percent == pytest.approx(100 * 0.4 / (64 * 0.05 / 2 + 0.4))


def test_serial_work_is_lost_as_far_as_it_is_not_shared() -> None:
    record = made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "serial_ms": 0.4})
    (serial,) = [part for part in finding_of(record, "mpi 2").parts if part.cause == "serial"]
    assert serial.percent == pytest.approx(100 * 0.2 / (64 * 0.05 / 2 + 0.4))


def test_beyond_the_cores_what_is_more_than_taking_turns_is_memory() -> None:
    record = made_up_sweep("strong", (1, 4), ("mpi",), **{**NOTHING, "cores": 2, "sharing": 0.2})
    parts = {part.cause: part.percent for part in finding_of(record, "mpi 4").parts}
    alone, beside = 0.8, 0.8 * 1.6 * 2
    assert parts["oversubscription"] == pytest.approx(100 * alone / beside)
    assert parts["memory"] == pytest.approx(100 * (beside - 2 * alone) / beside)


def test_servers_take_part_in_crowding_the_cores() -> None:
    record = made_up_sweep("strong", (1, 2), ("mpi",), ("parameter-server",), **{**NOTHING, "sharing": 0.2, "cores": 2})
    parts = {part.cause: part.percent for part in finding_of(record, "mpi 2").parts}
    assert parts["oversubscription"] == pytest.approx(100 * 0.2 / 1.2 * 2 / 3)  # of the time of 3 ranks
    assert parts["servers"] == pytest.approx(100 / 3)
    assert parts["memory"] == pytest.approx(0, abs=1e-9)


def test_without_a_probe_small_batches_are_not_told_from_sharing_the_machine() -> None:
    record = made_up_sweep("strong", (1, 4), ("mpi",), failing={"probe": "killed"}, **{**NOTHING, "start_ms": 0.3})
    parts = {part.cause: part.percent for part in finding_of(record, "mpi 4").parts}
    assert not {"small-batch", "memory"} & parts.keys()
    assert parts["unclear"] > 5
    assert sum(parts.values()) == pytest.approx(parts["unclear"])


def test_one_good_run_of_the_probe_is_enough() -> None:
    failing = {f"probe serial 1 allreduce batch 16 repeat {i}": "killed" for i in (0, 1, 3, 4)}
    record = made_up_sweep("strong", (1, 4), ("mpi",), failing=failing, **{**NOTHING, "start_ms": 0.3})
    parts = {part.cause: part.percent for part in finding_of(record, "mpi 4").parts}
    assert "unclear" not in parts
    assert parts["small-batch"] > 5


def test_an_uneven_batch_is_scaled_from_the_probe_of_the_larger_share() -> None:
    record = made_up_sweep("strong", (1, 3), ("mpi",), **NOTHING)
    assert any(cell.role == "probe" and cell.batch_size == math.ceil(64 / 3) for cell in record.cells)
    assert [part.percent for part in finding_of(record, "mpi 3").parts] == pytest.approx([0.0] * 7, abs=1e-9)


def test_a_slow_spell_of_the_machine_is_no_loss() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    costs = {**NOTHING, "comm_ms": 0.2}
    measures = [
        m.model_copy(update={name: getattr(m, name) * (1 + m.repeat) for name in ("step_ms", "compute_ms", "comm_ms")})
        for m in made_up_measures(cells, **costs)
    ]
    (slow,) = analyse("strong", cells, measures, 8).findings
    (even,) = analyse("strong", cells, made_up_measures(cells, **costs), 8).findings
    assert [p.percent for p in slow.parts] == pytest.approx([p.percent for p in even.parts], abs=1e-9)


MILLISECONDS = st.just(0.0) | st.floats(1e-3, 1e3)


@st.composite
def sweeps(draw: st.DrawFn) -> tuple[Kind, list[Cell], list[Measure], int]:
    """Draw sweeps with any times at all, some runs failed, batches that divide unevenly."""
    kind: Kind = draw(st.sampled_from(["strong", "weak"]))
    cells = made_up_cells(
        kind,
        draw(st.sampled_from([(1, 2), (1, 3), (1, 2, 4)])),
        draw(st.sampled_from([("mpi",), ("threads", "hybrid"), ("threads", "mpi")])),
        draw(st.sampled_from([("allreduce",), ("allreduce", "sharded"), ("async-server", "local-sgd:period=2")])),
        batch_sizes=draw(st.sampled_from([(64,), (5, 10)])),
    )
    measures = []
    for repeat, cell in product(range(draw(st.integers(1, 4))), cells):
        if draw(st.integers(0, 9)) == 0:
            measures.append(Measure(cell=cell.key, repeat=repeat, failed="killed"))
            continue
        compute, serial, comm, wait = (
            draw(st.floats(1e-3, 1e3)),
            draw(MILLISECONDS),
            draw(MILLISECONDS),
            draw(MILLISECONDS),
        )
        times = {"compute_ms": compute, "serial_ms": serial, "comm_ms": comm, "wait_ms": wait}
        at = {"batch_size": cell.batch_size, "steps_per_epoch": draw(st.integers(1, 9))}
        measures.append(Measure(cell=cell.key, repeat=repeat, **at, **times, step_ms=sum(times.values())))
    return kind, cells, measures, draw(st.integers(1, 8))


@settings(max_examples=40)
@given(sweeps())
def test_the_parts_sum_up_to_what_the_efficiency_lacks(sweep: tuple[Kind, list[Cell], list[Measure], int]) -> None:
    found = analyse(*sweep)
    rows = {row.cell.key: row for row in found.rows}
    assert [finding.row for finding in found.findings] == [key for key, row in rows.items() if row.cell.size > 1]
    for finding in found.findings:
        assert finding.headline
        assert Finding.model_validate_json(finding.model_dump_json()) == finding
        efficiency = rows[finding.row].efficiency
        if efficiency is None:
            assert finding.parts == finding.remedies == []
            continue
        size = max(abs(part.percent) for part in finding.parts)
        total = sum(part.percent for part in finding.parts)
        assert total == pytest.approx(100 * (1 - efficiency.value), abs=1e-9 * (1 + size))
        assert len(finding.remedies) <= 3
        assert all(remedy.gain_pct >= 1 for remedy in finding.remedies)
