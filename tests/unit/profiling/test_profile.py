"""Every rank has its table, which sums up to its run; the run itself is as it would be without."""

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import manyhands
from manyhands import Task
from manyhands.config import RunConfig
from manyhands.errors import RankFailed, UserError
from manyhands.measurement.trial import Trial
from manyhands.profiling.profile import COST, NOTE_S, pace_of, profile
from manyhands.record.profile import ProfileRecord, RankProfile
from manyhands.record.run import RunRecord

FAULTY = Path(__file__).parents[2] / "faults" / "faulty.py"

Profile = Callable[..., ProfileRecord]


@pytest.fixture(autouse=True)
def short_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the time: how long a step takes does not matter here."""
    monkeypatch.setattr("manyhands.measurement.trial.ENOUGH_S", 0.0)


@pytest.fixture
def take(tmp_path: Path, tiny: Callable[[str], str]) -> Profile:
    """Profile a tiny task."""
    return lambda task="mlp", **options: profile(tiny(task), out=tmp_path, **options)


def _calls(of: RankProfile) -> dict[str, int]:
    return {row.name: row.calls for row in of.functions}


def _check(record: ProfileRecord, ranks: int, steps: int) -> None:
    """Check what holds of every profile of workers."""
    assert [p.rank for p in record.ranks] == list(range(ranks))
    for of in record.ranks:
        assert of.steps == steps
        assert 0 < of.timed_steps + of.disturbed_steps < steps / 2
        assert sum(row.self_s for row in of.functions) == pytest.approx(of.loop_s)
        shares = sum(row.share_pct for row in of.functions) / 100 * of.total_s
        assert shares + of.read_s + of.eval_s + of.rest_s == pytest.approx(of.total_s)
        assert all(row.self_s <= row.total_s for row in of.functions)
        assert of.functions == sorted(of.functions, key=lambda row: -row.self_s)
        calls = _calls(of)
        assert calls["FusedReplica.forward_backward"] == calls["Update.apply"] == calls["AllReduce.step"] == steps
        assert calls["activate_"] == 3 * steps, "one for each layer"
        assert {"evaluate", "Journal.evaluate", "summarise", "Lens.at"}.isdisjoint(calls)
        products = [row for row in of.lines if "torch.addmm(" in row.source]
        assert [row.calls for row in products] == [3 * steps]
        assert products[0].file == "manyhands/replica/fused.py"


def test_one_worker(tmp_path: Path, take: Profile) -> None:
    threads = set(threading.enumerate())  # one of a test before may be ending
    record = take(steps=60)
    _check(record, 1, 60)
    assert record.ranks[0].functions[0].file.startswith(("manyhands/", "torch/"))
    folder = tmp_path / record.id
    assert ProfileRecord.model_validate_json((folder / "profile.json").read_text()) == record
    assert RunRecord.model_validate_json((folder / "record.json").read_text()).steps == 60
    events = json.loads((folder / record.trace).read_text())["traceEvents"]
    assert {event["args"]["step"] for event in events if event["ph"] == "X"} == set(range(5, 25))
    assert sys.getprofile() is None
    assert set(threading.enumerate()) <= threads


def test_threads(take: Profile) -> None:
    record = take(engine="threads", workers=2, steps=60)
    _check(record, 2, 60)
    assert all("ThreadComm.all_reduce_" in _calls(of) for of in record.ranks)


def test_processes(take: Profile) -> None:
    record = take(engine="mpi", workers=2, steps=60)
    _check(record, 2, 60)
    assert [_calls(of)["MPIComm.all_reduce_"] for of in record.ranks] == [60, 60]


def test_servers_have_a_table_of_their_own(take: Profile) -> None:
    record = take(engine="threads", workers=2, sync="parameter-server", steps=60)
    assert [of.role for of in record.ranks] == ["worker", "worker", "server"]
    server = record.ranks[2]
    assert server.steps == 60
    assert server.total_s == server.loop_s == pytest.approx(sum(row.self_s for row in server.functions))
    assert _calls(server)["Update.apply"] == 60
    assert "FusedReplica.forward_backward" not in _calls(server)


def test_a_task_without_a_file_is_profiled_too(tmp_path: Path) -> None:
    data = "synthetic:samples=40,features=6,classes=2"
    record = profile(Task(model=lambda data: nn.Linear(6, 2), data=data, batch_size=8), out=tmp_path, steps=30)
    assert _calls(record.ranks[0])["FlatReplica.forward_backward"] == 30


@pytest.mark.parametrize("options", [{}, {"engine": "threads", "workers": 2}])
def test_a_run_that_fails_fails_as_it_would_without(
    tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("manyhands.measurement.trial.FEWEST", 50)  # the trial fails already, and leaves it to a rank
    failures = []
    for run in (manyhands.train, profile):
        with pytest.raises(RankFailed) as caught:
            run(f"{FAULTY}:raises", out=tmp_path, steps=100, **options)
        failures.append((caught.value.step, "the model has had enough" in caught.value.cause))
        assert sys.getprofile() is None
    assert failures[0] == failures[1] == (39, True)


def test_a_config_may_be_refused(take: Profile) -> None:
    seen: list[RunConfig] = []

    def refuse(config: RunConfig) -> None:
        seen.append(config)
        raise UserError("not this one")

    with pytest.raises(UserError, match="not this one"):
        take(accept=refuse, seed=4)
    assert seen[0].seed == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"steps": 11}, "a profile of 11 steps is too short: 5 warm up, and at least 7 must follow; give --steps 12"),
        ({"steps": 30, "trace": 20}, "30 steps is too short: 5 warm up, 20 are traced, and .*; give --steps 32"),
        ({"steps": -1}, "steps must be at least 0, got -1"),
    ],
)
def test_a_run_that_is_too_short_is_refused(tmp_path: Path, take: Profile, options: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        take(**options)
    assert list(tmp_path.iterdir()) == []


def test_the_shortest_run_is_timed(take: Profile) -> None:
    of = take(steps=12).ranks[0]
    assert of.timed_steps + of.disturbed_steps == 2


@pytest.mark.parametrize("steps", [100, 1000, 20_000])
@pytest.mark.parametrize("notes", [10, 400, 5000])
@pytest.mark.parametrize("step_s", [1e-4, 1e-3, 0.1])
def test_a_pace_is_prime_and_costs_what_it_may_or_times_ten_steps(steps: int, notes: int, step_s: float) -> None:
    pace = pace_of(RunConfig(task="mlp", trace=20), steps, Trial(step_s, step_s, notes))
    assert pace.first == 25
    assert pace.stride >= 3
    assert all(pace.stride % d for d in range(2, pace.stride))
    timed = sum(pace.times(step) for step in range(steps))
    cost = timed * notes * NOTE_S / (steps * step_s)
    assert cost <= 1.1 * COST or timed <= 11
