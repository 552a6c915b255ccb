"""How many threads a worker's products use: the fastest in a short trial, which leaves no trace."""

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands import RunRecord, tasks
from manyhands.config import RunConfig
from manyhands.launch.blas_threads import count as cores
from manyhands.launch.blas_threads import trial as thread_trial
from manyhands.launch.blas_threads.trial import (
    ENOUGH_S,
    SHARE,
    WORTH,
    _busy_programs,
    fastest,
    powers_of_two,
    with_chosen_threads,
)
from manyhands.machine import facts
from manyhands.machine.load import CoreMeter
from manyhands.record.run import Others, RunDir
from manyhands.request import resolve, resume_config
from manyhands.run import preflight

Train = Callable[..., RunRecord]


@pytest.fixture(autouse=True)
def nothing_chosen_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a data folder of its own, with no numbers that were chosen before."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


class Machine:
    """A clock that steps move, by how many threads are set."""

    def __init__(self, step_s: dict[int, float]) -> None:
        self.step_s, self.now_s, self.threads, self.steps = step_s, 0.0, 0, 0

    def step(self, i: int) -> None:
        self.now_s += self.step_s[self.threads]
        self.steps += 1

    def choose(self, steps: int = 1000) -> int:
        def set_threads(number: int) -> None:
            self.threads = number

        return fastest(self.step, list(self.step_s), steps, set_threads=set_threads, clock=lambda: self.now_s)


step_times = st.lists(st.floats(5e-4, 1e-2), min_size=2, max_size=4).map(
    lambda times: dict(zip((1, 2, 4, 8), times, strict=False))
)


@given(step_times)
def test_the_fewest_threads_that_are_about_as_fast_as_any(step_s: dict[int, float]) -> None:
    chosen = Machine(step_s).choose()
    least_s = min(step_s.values())
    assert step_s[chosen] <= WORTH * least_s * 1.000001
    assert all(seconds > WORTH * least_s * 0.999999 for number, seconds in step_s.items() if number < chosen)


@given(st.floats(1e-5, 100), st.integers(1, 100_000))
def test_a_trial_is_short_beside_the_run_or_at_all(step_s: float, steps: int) -> None:
    machine = Machine({1: step_s, 2: step_s})
    machine.choose(steps)
    first_s = 5 * step_s if step_s < 0.1 else 2 * step_s  # which tell how long a step takes
    round_s = 2 * 3 * step_s  # under way when the time is up
    assert machine.now_s <= first_s + max(ENOUGH_S, SHARE * steps * step_s) + round_s
    assert machine.steps <= 5 + 5 * 2 * 3


def test_a_tiny_step_is_not_worth_sharing_out_nor_a_trial() -> None:
    machine = Machine({1: 1e-4, 2: 1e-5})
    assert machine.choose() == 1
    assert machine.steps == 5


def test_a_step_too_long_to_try_uses_all_cores() -> None:
    machine = Machine({1: 10.0, 2: 20.0})
    assert machine.choose(steps=20) == 2
    assert machine.steps == 2


@pytest.mark.parametrize(("share", "numbers"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8])])
def test_powers_of_two_and_the_share(share: int, numbers: list[int]) -> None:
    assert powers_of_two(share) == numbers


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "cores", lambda: 4)


def chosen(task: str, **options: object) -> int:
    config = resolve(task, {"engine": "serial", **options})
    ready = preflight(config)
    return with_chosen_threads(config, ready.data, ready.replica, CoreMeter()).chosen_blas_threads


def test_only_what_the_user_left_open_is_chosen(
    four_cores: None, tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[list[int]] = []
    monkeypatch.setattr(thread_trial, "fastest", lambda step, numbers, steps: tried.append(numbers) or numbers[0])
    assert chosen(tiny("mlp")) == 1
    assert chosen(tiny("mlp"), engine="threads", workers=2) == 1
    assert tried == [[1, 2, 4], [1, 2]]
    assert chosen(tiny("mlp"), blas_threads=3) == 0
    assert chosen(tiny("mlp"), exact=True) == 0
    assert chosen(tiny("mlp"), engine="threads", workers=4) == 0, "a core each is no choice"
    assert chosen(tiny("mlp"), engine="mpi", workers=2, mpiexec="true -hosts a,b") == 0, "nobody knows the cores"
    monkeypatch.setenv("HYDRA_HOST_FILE", "hosts")
    assert chosen(tiny("mlp"), engine="mpi", workers=2) == 0
    assert len(tried) == 2


@pytest.mark.parametrize("name", ["mlp", "batchnorm", "dropout"])
def test_a_trial_leaves_no_trace(four_cores: None, tiny: Callable[[str], str], name: str) -> None:
    task = tasks.load(tiny(name))
    config = resolve(tiny(name), {"engine": "serial"}, task)
    ready = preflight(config, task)
    before = [t.clone() for t in ready.replica.module.state_dict().values()]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    threads = torch.get_num_threads()
    found = with_chosen_threads(config, ready.data, ready.replica, CoreMeter())
    assert found.chosen_blas_threads in (1, 2, 4)
    assert all(torch.equal(a, b) for a, b in zip(before, ready.replica.module.state_dict().values(), strict=True))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])  # type: ignore[index, union-attr]
    assert torch.get_num_threads() == threads
    assert found.model_copy(update={"chosen_blas_threads": 0}) == config


def test_a_model_that_fails_in_a_trial_is_left_to_its_ranks(
    four_cores: None, tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(step: object, numbers: list[int], steps: int) -> int:
        raise RuntimeError("no more")

    monkeypatch.setattr(thread_trial, "fastest", fail)
    assert chosen(tiny("mlp")) == 4


def test_what_was_chosen_is_used_told_and_kept_by_a_run_that_is_resumed(
    train: Train, tiny: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, four_cores: None
) -> None:
    monkeypatch.setattr(thread_trial, "fastest", lambda step, numbers, steps: 2)
    first = train(engine="serial", epochs=2, checkpoint_every=5)
    assert (first.blas_threads, first.config.blas_threads, first.config.chosen_blas_threads) == (2, 0, 2)
    monkeypatch.setattr(thread_trial, "fastest", lambda step, numbers, steps: 1)
    again = train(resume=first.id, epochs=3)
    assert (again.blas_threads, again.config.chosen_blas_threads) == (2, 2)
    assert train(resume=first.id, epochs=4, blas_threads=3).blas_threads == 3
    other = resume_config(RunDir(tmp_path / first.id), tiny("mlp"), {"engine": "threads", "workers": 2, "epochs": 9})
    assert other.chosen_blas_threads == 0, "which was for one worker with all cores"


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        ({"engine": "serial"}, 1),
        ({"engine": "sim", "workers": 9}, None),
        ({"engine": "hybrid", "workers": 2, "threads": 3}, 6),
        ({"engine": "ray", "workers": 2, "ray_address": "auto"}, None),
    ],
)
def test_where_the_ranks_are_is_known_or_not(settings: dict[str, object], ranks: int | None) -> None:
    assert cores.ranks_here(RunConfig(task="mlp", **settings)) == ranks  # type: ignore[arg-type]


def test_an_equal_run_takes_the_number_that_was_chosen_before(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(facts, "cores", lambda: 2)
    numbers = iter((2, 1))
    monkeypatch.setattr(thread_trial, "fastest", lambda step, choices, steps: next(numbers))
    assert [train().config.chosen_blas_threads for _ in range(2)] == [2, 2], "timed once"
    assert train(batch_size=7).config.chosen_blas_threads == 1, "another batch is another question"
    (kept,) = (tmp_path / "data").rglob("*.json")
    kept.write_text("{ damaged")
    monkeypatch.setattr(thread_trial, "fastest", lambda step, choices, steps: 2)
    assert train().config.chosen_blas_threads == 2


OTHERS = Others(host="here", cores=1.5, of=2, wanted=2)


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let other programs use the cores, or no longer."""

    def set_busy(busy: bool) -> None:
        monkeypatch.setattr(thread_trial, "_busy_programs", lambda meter: OTHERS if busy else None)
        monkeypatch.setattr(thread_trial, "KEPT_S", 3600.0 if busy else 0.0)

    return set_busy


def test_what_was_chosen_beside_busy_programs_is_said_and_chosen_anew_without_them(
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    busy: Callable[[bool], None],
    four_cores: None,
) -> None:
    numbers = iter((1, 2))
    monkeypatch.setattr(thread_trial, "fastest", lambda step, choices, steps: next(numbers))
    busy(True)
    first = train(checkpoint_every=5, epochs=2)
    said = "manyhands: other programs used 1.5 of 2 cores when the number of BLAS threads, 1, was chosen; in an hour"
    assert said in capsys.readouterr().err
    monkeypatch.setattr(thread_trial, "_busy_programs", lambda meter: None)
    again = train(epochs=2)
    assert (
        "manyhands: other programs were busy when the number of BLAS threads, 1, was chosen" in capsys.readouterr().err
    )
    assert again.config.chosen_blas_threads == 1, "equal runs have equal bits for as long"
    assert again.weights_sha256 == first.weights_sha256
    busy(False)
    assert [train(epochs=2).config.chosen_blas_threads for _ in range(2)] == [2, 2]
    busy(True)
    assert train(epochs=2).config.chosen_blas_threads == 2, "for good"
    assert train(resume=first.id, epochs=3).config.chosen_blas_threads == 1, "a resumed run keeps its own"
    assert "BLAS" not in capsys.readouterr().err


def test_no_more_threads_are_tried_than_other_programs_leave_cores(
    tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, busy: Callable[[bool], None], four_cores: None
) -> None:
    tried: list[list[int]] = []
    monkeypatch.setattr(thread_trial, "fastest", lambda step, numbers, steps: tried.append(numbers) or numbers[-1])
    for used in (0.5, 1.5, 3.9):
        others = Others(host="here", cores=used, of=4, wanted=4)
        monkeypatch.setattr(thread_trial, "_busy_programs", lambda meter, others=others: others)
        chosen(tiny("mlp"), batch_size=int(10 * used))
    chosen(tiny("mlp"), engine="threads", workers=2)
    assert tried == [[1, 2, 3], [1, 2], [1], [1]]


def test_the_bits_of_an_exact_run_depend_on_no_choice(
    train: Train, monkeypatch: pytest.MonkeyPatch, busy: Callable[[bool], None], four_cores: None
) -> None:
    hashes = set()
    for number, others in ((1, True), (2, False)):
        busy(others)
        monkeypatch.setattr(thread_trial, "fastest", lambda step, choices, steps, number=number: number)
        assert train().config.chosen_blas_threads == number
        exact = train(exact=True)
        assert (exact.config.chosen_blas_threads, exact.blas_threads) == (0, 1)
        hashes.add(exact.weights_sha256)
    assert len(hashes) == 1


def test_two_runs_that_choose_at_once_take_the_same_number(
    tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, four_cores: None
) -> None:
    def choose(number: int, meanwhile: Callable[[], object]) -> None:
        def fastest(step: object, choices: list[int], steps: int) -> int:
            meanwhile()
            return number

        monkeypatch.setattr(thread_trial, "fastest", fastest)

    def other_run() -> None:
        choose(2, lambda: None)
        assert chosen(tiny("mlp")) == 2

    choose(1, other_run)
    assert chosen(tiny("mlp")) == 2


def test_programs_that_compute_are_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            time.sleep(0.5)
            found = _busy_programs(CoreMeter())
        finally:
            busy.kill()
    assert found is not None
    assert found.cores > 0.1
