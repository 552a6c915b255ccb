"""What would help: the remedy of each known cause, with the gain that follows from the row's own numbers."""

import pytest
from made_up import NOTHING, finding_of, made_up_sweep

from manyhands.record.sweep import Remedy, SweepRecord

COMPUTE_MS = 64 * 0.05
"""What one worker alone computes for, in these sweeps."""


def _remedies(record: SweepRecord, part: str) -> dict[str, Remedy]:
    return {remedy.command: remedy for remedy in finding_of(record, part).remedies}


def test_communication_is_cut_hidden_or_spread_over_a_larger_batch() -> None:
    found = _remedies(made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "comm_ms": 0.4}), "mpi 2")
    step = COMPUTE_MS / 2 + 0.4
    assert {command: remedy.gain_pct for command, remedy in found.items()} == pytest.approx(
        {
            "--sync local-sgd:period=8": 100 * (step / (step - 7 / 8 * 0.4) - 1),
            "--sync overlap": 100 * (step / (step - 0.4) - 1),
            "--batch-size 128": 100 * (2 * step / (COMPUTE_MS + 0.4) - 1),
        }
    )
    assert {remedy.cause for remedy in found.values()} == {"comm"}
    assert "not the answer of one worker" in found["--sync local-sgd:period=8"].sentence
    assert "changes the mathematics" in found["--batch-size 128"].sentence
    assert all(f"{remedy.gain_pct:.1f} % more samples/s" in remedy.sentence for remedy in found.values())


def test_no_more_is_hidden_than_the_backward_pass_takes() -> None:
    found = _remedies(made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "comm_ms": 1.5}), "mpi 2")
    step, backward = COMPUTE_MS / 2 + 1.5, COMPUTE_MS / 2 * 2 / 3
    assert found["--sync overlap"].gain_pct == pytest.approx(100 * (step / (step - backward) - 1))


@pytest.mark.parametrize("engine", ["threads", "hybrid"])
def test_overlap_is_not_promised_where_nothing_goes_on_meanwhile(engine: str) -> None:
    record = made_up_sweep("strong", (1, 2), (engine,), **{**NOTHING, "comm_ms": 0.4})
    (finding,) = record.findings
    assert "--sync local-sgd:period=8" in {remedy.command for remedy in finding.remedies}
    assert "--sync overlap" not in {remedy.command for remedy in finding.remedies}


def test_waiting_is_made_rarer() -> None:
    found = _remedies(made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "wait_share": 0.2}), "mpi 2")
    remedy = found["--sync local-sgd:period=8"]
    assert remedy.cause == "wait"
    assert remedy.gain_pct == pytest.approx(100 * (1.2 / (1.2 - 7 / 8 * 0.2) - 1))


def test_waiting_for_uneven_shares_asks_for_a_batch_that_divides() -> None:
    found = _remedies(made_up_sweep("strong", (1, 3), ("mpi",), **{**NOTHING, "wait_share": 0.05}), "mpi 3")
    remedy = found["--batch-size 66"]
    assert remedy.cause == "wait"
    assert remedy.gain_pct == pytest.approx(100 * (66 / 64 - 1))


def test_serial_work_is_shared_out() -> None:
    found = _remedies(made_up_sweep("strong", (1, 4), ("mpi",), **{**NOTHING, "serial_ms": 0.4}), "mpi 4")
    step = COMPUTE_MS / 4 + 0.4
    assert found["--sync sharded"].cause == "serial"
    assert found["--sync sharded"].gain_pct == pytest.approx(100 * (step / (step - 0.3) - 1))
    assert "all-gather" in found["--sync sharded"].sentence
    assert found["--batch-size 128"].gain_pct == pytest.approx(100 * (2 * step / (COMPUTE_MS / 2 + 0.4) - 1))


def test_small_batches_are_made_larger() -> None:
    found = _remedies(made_up_sweep("strong", (1, 4), ("mpi",), **{**NOTHING, "start_ms": 0.4}), "mpi 4")
    assert found["--batch-size 128"].cause == "small-batch"
    step = COMPUTE_MS / 4 + 0.4
    assert found["--batch-size 128"].gain_pct == pytest.approx(100 * (2 * step / (COMPUTE_MS / 2 + 0.4) - 1))


def test_crowded_workers_are_as_many_as_cores_by_amdahls_law_where_it_was_fitted() -> None:
    crowded = {**NOTHING, "cores": 3, "comm_ms": 0.2, "sharing": 0.5}
    record = made_up_sweep("strong", (1, 2, 8), ("mpi",), **crowded)
    remedy = _remedies(record, "mpi 8")["--workers 3"]
    assert remedy.cause == "oversubscription"
    (row,) = [row for row in record.rows if row.cell.size == 8]
    (fit,) = record.fits
    serial = fit.parameters["serial"].value
    assert row.speed_up
    assert remedy.gain_pct == pytest.approx(100 * (1 / (serial + (1 - serial) / 3) / row.speed_up.value - 1))


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_crowded_workers_are_as_many_as_cores_by_the_rows_own_costs_where_nothing_was_fitted(kind: str) -> None:
    crowded = {**NOTHING, "cores": 2, "comm_ms": 0.1, "sharing": 0.2}
    record = made_up_sweep(kind, (1, 8), ("threads",), **crowded)  # type: ignore[arg-type]
    remedy = _remedies(record, "threads 8")["--workers 2"]
    alone = COMPUTE_MS if kind == "weak" else COMPUTE_MS / 8
    step = alone * 2.4 * 4 + 0.3
    after, work = (COMPUTE_MS + 0.3, 2 / 8) if kind == "weak" else (COMPUTE_MS / 2 + 0.3, 1)
    assert remedy.gain_pct == pytest.approx(100 * (work * step / after - 1))


def test_fewer_workers_are_better_where_they_were_measured_to_be_faster() -> None:
    record = made_up_sweep("strong", (1, 2, 4), ("mpi",), **{**NOTHING, "comm_ms": 2.0, "noise": 0.005})
    remedy = _remedies(record, "mpi 4")["--engine serial --workers 1"]
    assert remedy.cause == "comm"
    assert "measured here" in remedy.sentence
    assert remedy.gain_pct == pytest.approx(100 * ((COMPUTE_MS / 4 + 4) / COMPUTE_MS - 1), rel=0.05)


def test_threads_that_slow_each_other_may_be_processes() -> None:
    found = _remedies(made_up_sweep("strong", (1, 2), ("threads",), **{**NOTHING, "sharing": 0.25}), "threads 2")
    assert found["--engine mpi"].cause == "memory"
    assert found["--engine mpi"].gain_pct == pytest.approx(25)
    assert "at most" in found["--engine mpi"].sentence


def test_processes_that_slow_each_other_want_more_machines() -> None:
    found = _remedies(made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "sharing": 0.25}), "mpi 2")
    (remedy,) = found.values()
    assert (remedy.cause, remedy.gain_pct) == ("memory", pytest.approx(25))
    assert "more machines" in remedy.sentence


def test_nothing_is_promised_beyond_what_workers_or_cores_could_do() -> None:
    for kind in ("strong", "weak"):
        for cores in (1, 2, 3, 8):
            record = made_up_sweep(kind, (1, 2, 4), ("threads", "mpi"), cores=cores, comm_ms=2.0, wait_share=0.5)
            rows = {row.cell.key: row for row in record.rows}
            for finding in record.findings:
                row = rows[finding.row]
                assert row.speed_up
                for remedy in finding.remedies:
                    able = row.cell.size if "more machines" in remedy.sentence else min(row.cell.size, cores)
                    if "measured here" not in remedy.sentence:
                        assert row.speed_up.value * (1 + remedy.gain_pct / 100) <= able + 1e-9


def test_ranks_that_share_cores_are_not_told_to_exchange_less() -> None:
    record = made_up_sweep("strong", (1, 2, 8), ("mpi", "threads"), cores=2, comm_ms=2.0, wait_share=0.5)
    crowded = {row.cell.key for row in record.rows if row.oversubscribed}
    findings = [finding for finding in record.findings if finding.row in crowded]
    assert len(findings) == 2
    for finding in findings:
        assert finding.remedies
        assert not [remedy for remedy in finding.remedies if remedy.cause in ("comm", "wait")]
        assert not [remedy for remedy in finding.remedies if "--sync" in remedy.command]


def test_what_the_sweep_measured_counts_instead_of_a_prediction() -> None:
    syncs = ("allreduce", "local-sgd:period=4", "overlap")
    record = made_up_sweep("strong", (1, 2), ("mpi",), syncs, **{**NOTHING, "comm_ms": 0.8, "noise": 0.005})
    found = _remedies(record, "mpi 2 allreduce")
    rates = {row.cell.sync: row.samples_per_s.value for row in record.rows if row.cell.size == 2 and row.samples_per_s}
    remedy = found["--sync local-sgd:period=4"]
    assert "measured here" in remedy.sentence
    measured = 100 * (rates["local-sgd:period=4"] / rates["allreduce"] - 1)
    assert remedy.gain_pct == pytest.approx(measured, rel=0.05)
    assert not {"--sync overlap", "--sync local-sgd:period=8"} & set(found), "measured to bring nothing, or measured"


def test_what_was_measured_faster_only_in_some_repeats_is_not_offered() -> None:
    perhaps = 0
    for seed in range(8):
        sweep = made_up_sweep(
            "strong", (1, 2), ("mpi",), ("allreduce", "overlap"), **{**NOTHING, "noise": 0.05}, seed=seed
        )
        steps = {
            sync: [m.step_ms for m in sweep.measures if f"mpi 2 {sync}" in m.cell] for sync in ("allreduce", "overlap")
        }
        ratios = sorted(before / after for before, after in zip(steps["allreduce"], steps["overlap"], strict=True))
        perhaps += ratios[2] > 1.01 and ratios[0] < 1
        assert ("--sync overlap" in _remedies(sweep, "mpi 2 allreduce")) is (ratios[2] > 1.01 and ratios[0] > 1)
    assert perhaps


def test_a_measured_larger_batch_counts_too() -> None:
    costs = {**NOTHING, "comm_ms": 0.8}
    found = _remedies(made_up_sweep("strong", (1, 2), ("mpi",), batch_sizes=(64, 128), **costs), "batch 64")
    step = COMPUTE_MS / 2 + 0.8
    assert "measured here" in found["--batch-size 128"].sentence
    assert found["--batch-size 128"].gain_pct == pytest.approx(100 * (2 * step / (COMPUTE_MS + 0.8) - 1))


@pytest.mark.parametrize(
    ("sync", "absent"),
    [
        ("overlap", "--sync overlap"),
        ("sharded", "--sync sharded"),
        ("local-sgd:period=2", "--sync local-sgd:period=8"),
        ("parameter-server", "--sync sharded"),
    ],
)
def test_what_is_in_use_or_does_not_apply_is_not_offered(sync: str, absent: str) -> None:
    costs = {**NOTHING, "comm_ms": 0.8, "serial_ms": 0.8}
    record = made_up_sweep("strong", (1, 2), ("mpi",), (sync,), **costs)
    found = _remedies(record, "mpi 2")
    assert found
    assert absent not in found


def test_at_most_three_remedies_the_best_first_and_none_below_one_percent() -> None:
    for finding in made_up_sweep().findings:
        gains = [remedy.gain_pct for remedy in finding.remedies]
        assert 1 <= len(gains) <= 3
        assert gains == sorted(gains, reverse=True)
        assert gains[-1] >= 1
    assert finding_of(made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "comm_ms": 0.01}), "mpi 2").remedies == []
