"""Planted causes among the ranks: the explanation names them, and what they cost lands on them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import made_up_cells

from manyhands.measurement.measure import typical_of, usual_ms
from manyhands.record.run import Others, RankSteps
from manyhands.record.sweep import Cell, Finding, Measure
from manyhands.scaling.analysis.analyse import analyse

BATCH, STEPS, SERIAL_MS, COMM_MS = 64, 200, 0.1, 0.2
Times = npt.NDArray[np.float64]
Plant = Callable[[Times, int], Times]
"""Changes the computing times of all ranks (rows) and steps (columns) of a repeat."""


def _measure(
    cell: Cell,
    repeat: int,
    compute_ms: Times,
    *,
    gather_ms: float = 0.0,
    starved_ms: float = 0.0,
    others: Others | None = None,
) -> Measure:
    """Return the run in which ranks computed for these times, and waited for each other in each step."""
    ranks, batch = len(compute_ms), int(cell.batch_size)
    last = np.bincount(compute_ms.argmax(0), minlength=ranks) / STEPS
    workers = [
        RankSteps(
            rank=rank,
            host="here",
            rows=(rank + 1) * batch // ranks - rank * batch // ranks,
            compute_ms=times.mean(),
            median_ms=float(np.median(times)),
            sd_ms=times.std(),
            gather_ms=gather_ms,
            serial_ms=SERIAL_MS,
            starved_ms=starved_ms,
            last=last[rank] if ranks > 1 else 0.0,
        )
        for rank, times in enumerate(compute_ms)
    ]
    comm_ms = COMM_MS if ranks > 1 else 0.0
    return Measure(
        cell=cell.key,
        repeat=repeat,
        batch_size=batch,
        steps=STEPS,
        steps_per_epoch=100,
        step_ms=compute_ms.max(0).mean() + SERIAL_MS + comm_ms,
        compute_ms=compute_ms.mean(),
        serial_ms=SERIAL_MS,
        comm_ms=comm_ms,
        wait_ms=compute_ms.max(0).mean() - compute_ms.mean(),
        gather_ms=gather_ms,
        typical=typical_of(workers),
        slowest=max(workers, key=usual_ms),
        others=others,
    )


def _explained(
    workers: int, plant: Plant, *, batch: int = BATCH, sample_ms: float = 0.1, gather_ms: float = 0.0, **more: Any
) -> tuple[Finding, dict[str, float]]:
    """Return the finding of `workers` workers of whom only those have the planted cause, and its parts in ms."""
    random, measures = np.random.default_rng(0), []
    cells = made_up_cells("strong", (1, workers), ("mpi",), batch_sizes=(batch,))
    for repeat in range(5):
        for cell in cells:
            rows = np.diff([rank * int(cell.batch_size) // cell.size for rank in range(cell.size + 1)])
            usual_ms = sample_ms * rows[:, None] * (1 + 0.01 * random.standard_normal((cell.size, STEPS)))
            mine = plant(usual_ms, repeat) if cell.size > 1 else usual_ms
            beside = more if cell.size > 1 else {}
            measures.append(_measure(cell, repeat, mine + gather_ms, gather_ms=gather_ms, **beside))
    found = analyse("strong", cells, measures, workers)
    (finding,) = found.findings
    (row,) = [row for row in found.rows if row.cell.key == finding.row]
    assert row.step_ms
    assert row.efficiency
    assert sum(part.percent for part in finding.parts) == pytest.approx(100 * (1 - row.efficiency.value))
    return finding, {part.cause: part.percent / 100 * row.step_ms.value for part in finding.parts}


def _slow(rank: int, planted_ms: float) -> Plant:
    def plant(usual_ms: Times, repeat: int) -> Times:
        slow = usual_ms.copy()
        slow[rank] += planted_ms
        return slow

    return plant


def _long_steps(planted_ms: float, share: float) -> Plant:
    def plant(usual_ms: Times, repeat: int) -> Times:
        return usual_ms + planted_ms * (np.random.default_rng(repeat).random(usual_ms.shape) < share)

    return plant


@settings(max_examples=30)
@given(st.sampled_from([2, 3, 8, 64]), st.data(), st.floats(1.0, 50.0))
def test_a_slow_rank_is_named_and_costs_what_it_takes_longer(
    workers: int, data: st.DataObject, planted_ms: float
) -> None:
    rank = data.draw(st.integers(0, workers - 1))
    finding, lost_ms = _explained(workers, _slow(rank, planted_ms), batch=64 * workers)
    assert lost_ms["slow-rank"] == pytest.approx(planted_ms, rel=0.2)
    assert abs(lost_ms["memory"]) < 0.2 * planted_ms
    (sentence,) = [sentence for sentence in finding.sentences if "is slow:" in sentence]
    assert f"rank {rank} on here is slow: it computes" in sentence
    assert "the last in 100 % of the steps" in sentence
    assert {remedy.cause for remedy in finding.remedies if "Find out why" in remedy.sentence} == {"slow-rank"}
    assert any(f"rank {rank} on here" in remedy.sentence for remedy in finding.remedies)
    assert not any("more machines" in remedy.sentence for remedy in finding.remedies)


@settings(max_examples=20)
@given(st.sampled_from([2, 4, 8]), st.floats(20.0, 50.0), st.floats(0.02, 0.1))
def test_long_steps_of_any_rank_are_stragglers_and_nobody_is_named(
    workers: int, planted_ms: float, share: float
) -> None:
    finding, lost_ms = _explained(workers, _long_steps(planted_ms, share), batch=64 * workers)
    planted = [_long_steps(planted_ms, share)(np.zeros((workers, STEPS)), repeat).max(0).mean() for repeat in range(5)]
    assert lost_ms["straggler"] == pytest.approx(float(np.median(planted)), rel=0.2)
    assert lost_ms["slow-rank"] == 0
    assert not any("is slow:" in sentence for sentence in finding.sentences)


@pytest.mark.parametrize("workers", [2, 4])
def test_more_rows_are_no_slowness(workers: int) -> None:
    batch = workers + 1
    finding, lost_ms = _explained(workers, lambda usual_ms, repeat: usual_ms, batch=batch, sample_ms=4.0)
    assert lost_ms["uneven"] == pytest.approx(4.0 * (2 - batch / workers), rel=0.2)
    assert lost_ms["slow-rank"] == 0
    first = finding.remedies[0]
    assert (first.cause, first.command) == ("uneven", f"--batch-size {2 * workers}")
    assert first.gain_pct == pytest.approx(100 * (2 * workers / batch - 1), rel=0.05)


def test_all_ranks_slower_than_one_alone_share_a_machine() -> None:
    finding, lost_ms = _explained(4, lambda usual_ms, repeat: 1.5 * usual_ms, batch=256)
    assert lost_ms["memory"] == pytest.approx(0.5 * 64 * 0.1, rel=0.1)
    assert lost_ms["slow-rank"] == 0
    assert "sharing one machine" in finding.sentences[0]


def test_of_two_ranks_the_one_like_a_worker_alone_is_the_typical_one() -> None:
    def quick(usual_ms: Times, repeat: int) -> Times:
        return usual_ms * np.array([[0.5], [1.0]])

    finding, lost_ms = _explained(2, quick)
    assert lost_ms["slow-rank"] == 0
    assert lost_ms["memory"] == pytest.approx(0, abs=0.1)
    assert not any("is slow:" in sentence for sentence in finding.sentences)


@given(st.floats(1.0, 20.0))
def test_gathering_that_does_not_shrink_is_slow_data(gather_ms: float) -> None:
    finding, lost_ms = _explained(2, lambda usual_ms, repeat: usual_ms, gather_ms=gather_ms)
    assert lost_ms["data"] == pytest.approx(gather_ms / 2, rel=0.01)
    assert abs(lost_ms["memory"]) + abs(lost_ms["small-batch"]) < 0.1
    assert finding.remedies[0].cause == "data"


def test_time_without_a_core_is_lost_to_other_programs_and_they_are_to_be_ended() -> None:
    busy = Others(host="here", cores=0.7, of=2.0, wanted=2)
    finding, lost_ms = _explained(2, _long_steps(20.0, 0.1), others=busy, starved_ms=3.0)
    assert lost_ms["others"] > 0.8 * (lost_ms["others"] + lost_ms["straggler"])
    assert lost_ms["slow-rank"] == 0
    (remedy,) = finding.remedies
    assert remedy.cause == "others"
    assert "End the other programs, which use 0.7 of 2 cores on here" in remedy.sentence


def test_rarer_exchanges_promise_nothing_against_a_rank_that_is_always_late() -> None:
    finding, _ = _explained(2, _slow(1, 20.0), batch=128)
    assert finding.remedies[0].cause == "slow-rank"
    assert not any("local-sgd" in remedy.command for remedy in finding.remedies)


def test_every_predicted_gain_has_bounds_around_it() -> None:
    for plant in (_slow(1, 5.0), _long_steps(20.0, 0.1)):
        finding, _ = _explained(2, plant)
        assert finding.remedies
        for remedy in finding.remedies:
            assert remedy.gain_span
            low, high = remedy.gain_span
            assert low <= remedy.gain_pct <= high
