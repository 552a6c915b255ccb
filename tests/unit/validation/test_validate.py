"""Predictions are written down, then held against runs; here the runs are made up."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_machine import calibration, constant, network

from manyhands.errors import UserError
from manyhands.record.simulation import LEDGER, ValidationRecord, read_validations
from manyhands.record.store import append_lines
from manyhands.record.sweep import Measure
from manyhands.simulation import simulate as simulation
from manyhands.validation import validate as module

Validate = Callable[..., ValidationRecord]


@pytest.fixture
def validate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Validate:
    """Validate a made-up machine, whose runs take as long as `step_ms` says."""
    monkeypatch.setattr(simulation, "TaskNetwork", lambda name, made, kept: network(name))
    path = tmp_path / "calibration.json"
    path.write_text(calibration(constant).model_dump_json())

    def run(step_ms: Callable[[int], float], **options: Any) -> ValidationRecord:
        def measure(task: str, given: Any, out: Path, *, timeout_s: float, cell: str, repeat: int) -> Measure:
            assert list(out.parent.glob("prediction-*.json")), "nothing is run before all is predicted"
            took = step_ms(repeat)
            return Measure(cell=cell, repeat=repeat, step_ms=took, failed="" if took else "it would not")

        monkeypatch.setattr(module, "measure", measure)
        known = {"engines": "threads", "calibration": path, "out": tmp_path / "validations", **options}
        return module.validate("mlp", known.pop("workers", [1]), **known)

    return run


def test_errors_are_those_of_the_median_run_and_noise_that_of_all(validate: Validate, tmp_path: Path) -> None:
    found = validate(lambda repeat: (8.0, 9.0, 10.0, 11.0, 12.0)[repeat])
    (row,) = found.rows
    assert row.median_ms == 10.0
    assert row.error_pct == pytest.approx(100 * (row.predicted_ms.value / 10 - 1))
    assert row.noise_pct == pytest.approx(10), "half the distance of the quartiles, 9 and 11"
    assert row.held == sum(row.predicted_ms.low <= ms <= row.predicted_ms.high for ms in row.measured_ms)
    assert read_validations(tmp_path / "validations" / LEDGER) == found.rows


@pytest.mark.parametrize("engines", [["threads", "mpi"], ["mpi"]])
def test_the_engines_are_those_that_were_calibrated(validate: Validate, tmp_path: Path, engines: list[str]) -> None:
    known = calibration(constant)
    path = tmp_path / "some.json"
    path.write_text(known.model_copy(update={"comms": {each: known.comms[each] for each in engines}}).model_dump_json())
    found = validate(lambda repeat: 10.0, engines="", calibration=path)
    assert [row.engine for row in found.rows] == engines


def test_a_single_run_tells_no_noise(validate: Validate, tmp_path: Path) -> None:
    (row,) = validate(lambda repeat: 10.0 if repeat == 0 else 0.0).rows
    assert (row.measured_ms, row.noise_pct) == ([10.0], None)
    older = row.model_dump_json().replace('"noise_pct":null', '"noise_pct":0.0')
    (tmp_path / LEDGER).write_text(f"{older}\n")
    assert read_validations(tmp_path / LEDGER) == [row]


def test_a_prediction_that_comes_true_has_no_error_and_holds(validate: Validate) -> None:
    (before,) = validate(lambda repeat: 1.0).rows
    found = validate(lambda repeat: before.predicted_ms.value)
    assert found.median_error_pct == pytest.approx(0.0)
    assert (found.held, found.of) == (5, 5), "runs, not medians"


def test_a_line_that_was_cut_off_is_replaced_and_no_other(validate: Validate, tmp_path: Path) -> None:
    ledger = tmp_path / "validations" / LEDGER
    (first,) = validate(lambda repeat: 10.0).rows
    whole = ledger.read_bytes()
    for left in (b"", b"{", whole[:-1]):
        ledger.write_bytes(whole + left)
        (again,) = validate(lambda repeat: 11.0).rows
        assert read_validations(ledger) == [first, again]
    ledger.write_bytes(b"{")
    (alone,) = validate(lambda repeat: 12.0).rows
    assert read_validations(ledger) == [alone]


def test_what_cannot_be_kept_is_said_before_anything_is_predicted(
    validate: Validate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(module, "simulate", lambda *given, **options: pytest.fail("something was predicted"))
    with pytest.raises(UserError, match="cannot write to --out"):
        validate(lambda repeat: 10.0, out=tmp_path / "file" / "in it")


def test_a_prediction_that_is_stopped_leaves_no_folder(
    validate: Validate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "simulate", stop)
    with pytest.raises(KeyboardInterrupt):
        validate(lambda repeat: 10.0)
    assert not list((tmp_path / "validations").iterdir())


def test_an_engine_that_cannot_be_predicted_leaves_no_prediction_of_the_others(
    validate: Validate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate, engines = module.simulate, []

    def first_only(*given: Any, **options: Any) -> Any:
        engines.append(options["engine"])
        if len(engines) > 1:
            raise UserError("not calibrated")
        return simulate(*given, **options)

    monkeypatch.setattr(module, "simulate", first_only)
    with pytest.raises(UserError, match="not calibrated"):
        validate(lambda repeat: 10.0, engines="threads,mpi")
    assert engines == ["threads", "mpi"]
    assert not list((tmp_path / "validations").iterdir())


def test_a_calibration_between_hosts_is_not_held_against_ranks_of_one(validate: Validate, tmp_path: Path) -> None:
    known = calibration(constant)
    apart = {"mpi": known.comms["mpi"].model_copy(update={"hosts": 2, "model": "mpich-hosts"})}
    path = tmp_path / "hosts.json"
    path.write_text(known.model_copy(update={"comms": apart}).model_dump_json())
    with pytest.raises(UserError, match="of links between hosts, but mpiexec started all ranks on this one"):
        validate(lambda repeat: 10.0, engines="", workers=[2], calibration=path)
    assert validate(lambda repeat: 10.0, engines="", workers=[1], calibration=path).rows
    assert len(read_validations(tmp_path / "validations" / LEDGER)) == 1


def test_validations_that_end_together_all_come_into_the_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / LEDGER
    rows = [SimpleNamespace(model_dump_json=lambda i=i: f'{{"row": {i}, "text": "{"x" * 5000}"}}') for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: append_lines(ledger, [row]), rows))
    assert {json.loads(line)["row"] for line in ledger.read_text().splitlines()} == set(range(40))


def test_the_ledger_grows(validate: Validate, tmp_path: Path) -> None:
    for _ in range(2):
        validate(lambda repeat: 10.0, workers=[1, 2])
    assert len(read_validations(tmp_path / "validations" / LEDGER)) == 4


def test_runs_that_fail_are_told_and_never_counted(validate: Validate) -> None:
    (row,) = validate(lambda repeat: 10.0 if repeat else 0.0).rows
    assert (row.measured_ms, row.failed) == ([10.0] * 4, ["it would not"])
    none = validate(lambda repeat: 0.0)
    assert (none.rows, none.failed, none.median_error_pct) == ([], {"threads 1 allreduce": "it would not"}, None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"repeats": 4}, "repeats must be at least 5"),
        ({"workers": [0]}, "workers must be from 1 to"),
        ({"engines": ","}, "engines must name at least one"),
        ({"engines": "thread"}, "did you mean 'threads'"),
        ({"syncs": "alreduce"}, "did you mean 'allreduce'"),
    ],
)
def test_bad_requests(validate: Validate, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        validate(lambda repeat: 1.0, **options)
