"""Predictions beside a sweep: for rows that cannot be measured, apart from those that were, with their calibration."""

from pathlib import Path

import made_up_machine
import pytest
from made_up import made_up_sweep

from manyhands.record.sweep import Kind, Predictions, Row, SweepRecord
from manyhands.report.sweep_figures import sweep_figures
from manyhands.report.tables.predicted import prediction_notes, predictions_table
from manyhands.report.tables.sweeps import ON_PAGE, numbers_table, scaling_tables
from manyhands.simulation import for_sweeps
from manyhands.simulation.for_sweeps import predict_rows
from manyhands.simulation.simulate import simulate

OPTIONS = {"blas_threads": 1}


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give this machine a made-up calibration."""
    path = tmp_path / "calibration.json"
    path.write_text(made_up_machine.calibration().model_dump_json())
    monkeypatch.setattr(for_sweeps, "calibration_path", lambda: path)
    monkeypatch.setattr("manyhands.simulation.simulate.calibration_path", lambda device: path)
    return path


def _crowded(record: SweepRecord) -> list[Row]:
    return [row for row in record.rows if row.oversubscribed or not row.repeats]


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_rows_with_more_ranks_than_cores_are_predicted_as_simulate_does(kind: Kind, calibrated: Path) -> None:
    record = made_up_sweep(kind, (1, 2, 4, 8), ("mpi",), ("allreduce", "parameter-server"), cores=2)
    missing = _crowded(record)
    predictions = predict_rows(kind, "mlp", missing, OPTIONS, 60)
    assert {row.cell for row in predictions.rows} == {row.cell for row in missing}
    assert len(predictions.rows) == len(missing)
    batch = {"batch_per_worker" if kind == "weak" else "batch_size": 64}
    simulated = simulate("mlp", workers=[4], syncs="parameter-server", **batch).rows[0]
    (row,) = [row for row in predictions.rows if (row.cell.size, row.cell.sync) == (4, "parameter-server")]
    assert (row.step_ms.value, row.step_ms.low) == (simulated.step_ms.value, simulated.step_ms.low)
    assert row.speed_up.value == simulated.speed_up.value
    assert row.efficiency.value == pytest.approx(simulated.speed_up.value / 5), "four workers and a server"
    assert row.samples_per_s.low <= row.samples_per_s.value <= row.samples_per_s.high
    assert row.speed_up.coverage_pct == 90
    assert row.why == "more ranks than cores"


def test_without_a_calibration_a_line_says_which_command_gives_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(for_sweeps, "calibration_path", lambda: tmp_path / "none.json")
    missing = _crowded(made_up_sweep(engines=("mpi",), cores=4))
    predictions = predict_rows("strong", "mlp", missing, OPTIONS, 60)
    assert predictions.rows == []
    assert predictions.notes == [
        "1 row cannot be measured here with a core for each rank; run 'manyhands calibrate mlp', then this command "
        "again, to have them predicted"
    ]


@pytest.mark.parametrize(
    ("sweep", "options", "why"),
    [
        ({"engines": ("ray",)}, OPTIONS, "engine ray cannot be calibrated"),
        ({"engines": ("mpi",), "image_sizes": (28,)}, OPTIONS, "own images"),
        ({"engines": ("mpi",)}, {"blas_threads": 2}, "--blas-threads"),
        ({"engines": ("mpi",)}, {"blas_threads": 1, "micro_batch": 8}, "--micro-batch"),
        ({"engines": ("torch",)}, OPTIONS, "run 'manyhands calibrate mlp"),
    ],
)
def test_what_the_calibration_does_not_know_is_not_predicted(
    calibrated: Path, sweep: dict[str, tuple[object, ...]], options: dict[str, int], why: str
) -> None:
    record = made_up_sweep(cores=4, **sweep)  # type: ignore[arg-type]
    predictions = predict_rows("strong", "mlp", _crowded(record), options, 60)
    assert predictions.rows == []
    assert why in " ".join(predictions.notes)


def test_predictions_take_no_more_than_their_time(calibrated: Path) -> None:
    missing = _crowded(made_up_sweep(engines=("mpi",), cores=4))
    predictions = predict_rows("strong", "mlp", missing, OPTIONS, 0)
    assert predictions.rows == []
    assert predictions.notes == ["there was no time to predict all rows that cannot be measured here"]


def test_predictions_stay_apart_from_what_was_measured(calibrated: Path) -> None:
    record = made_up_sweep(engines=("mpi",), cores=4, failing={"mpi 4": "killed"})
    predictions = predict_rows("strong", "mlp", _crowded(record), OPTIONS, 60)
    with_them = record.model_copy(update={"predictions": predictions})
    assert [row.cell.size for row in predictions.rows] == [4, 8]
    assert [row.why for row in predictions.rows] == ["5 of 5 runs failed: killed", "more ranks than cores"]
    assert [row[0] for row in predictions_table(with_them).rows] == ["mpi ×4", "mpi ×8"]
    assert "not measured" in predictions_table(with_them).caption
    assert " days ago under a load that is not known" in prediction_notes(with_them)[0]
    assert numbers_table(with_them) == numbers_table(record)
    assert [t.rows for t in scaling_tables(with_them, ON_PAGE)] == [t.rows for t in scaling_tables(record, ON_PAGE)]
    for figure in sweep_figures(with_them)["scaling"]:
        items = figure.views[-1].items
        (series,) = [item for item in items if getattr(item, "name", "") == "mpi, predicted"]
        assert (series.dash, series.hollow, list(series.x)) == ("dash", True, [4, 8])  # type: ignore[union-attr]
        assert "predicted, not measured" in figure.about
    for figure in sweep_figures(record)["scaling"]:
        assert not any("predicted" in getattr(item, "name", "") for item in figure.views[-1].items)
    assert SweepRecord.model_validate_json(with_them.model_dump_json()) == with_them
    assert SweepRecord.model_validate(record.model_dump(exclude={"predictions"})).predictions == Predictions()
