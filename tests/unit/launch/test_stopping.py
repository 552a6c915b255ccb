"""How a run is asked to stop: by which signals, how long it is waited for, and what is said meanwhile."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands import launch
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.errors import RankFailed, Stopped
from manyhands.launch import in_process as local
from manyhands.launch import threads
from manyhands.launch.signals import waiting
from manyhands.launch.signals.interrupt import stop_on_signal
from manyhands.launch.signals.stops import STOPS
from manyhands.launch.signals.waiting import FIRST_S, LEAST_S, MANY, StopMonitor
from manyhands.record.run import Pulse, RunDir
from manyhands.run import ignore
from manyhands.training.job import Job
from manyhands.training.watch import Observer, Watch


@contextmanager
def answered_by(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", STOPS)
def test_every_such_signal_asks_once_and_ctrl_c_after_it_ends(number: signal.Signals) -> None:
    handlers = [signal.getsignal(stop) for stop in STOPS]
    with stop_on_signal(say=False) as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        for again in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            os.kill(os.getpid(), again)  # batch systems and terminals repeat themselves
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert [signal.getsignal(stop) for stop in STOPS] == handlers


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_what_nohup_or_a_shell_had_ignored_stays_so(number: signal.Signals) -> None:
    with answered_by(number, signal.SIG_IGN), stop_on_signal(say=False) as stop:
        os.kill(os.getpid(), number)
        assert not stop.wait(0.05)


def test_a_users_own_answer_to_a_signal_stays_in_place() -> None:
    came: list[int] = []
    with answered_by(signal.SIGUSR1, lambda number, frame: came.append(number)), stop_on_signal(say=False) as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not stop.wait(0.05)
    assert came == [signal.SIGUSR1]


def test_a_stop_is_answered_though_the_terminal_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", buffering=1) as dead:
        monkeypatch.setattr(sys, "stderr", dead)
        with stop_on_signal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.wait(10)
        monkeypatch.undo()
        with pytest.raises(BrokenPipeError):
            dead.close()


# How long is waited


class Clock:
    """A clock that is set by hand, and ranks whose steps are."""

    def __init__(self, ranks: int, folder: Path) -> None:
        self.now, self.steps, self.stop = 0.0, [-1] * ranks, threading.Event()
        self.monitor = StopMonitor(lambda: self.steps, folder, self.stop, clock=lambda: self.now)

    def go(self, seconds: float, *, stop: bool) -> bool:
        """Look every second, once a stop is wanted or before; return whether it was given up."""
        if stop:
            self.stop.set()
        for _ in range(round(seconds)):
            self.now += 1.0
            if self.monitor.look():
                return True
        return False


@given(step_s=st.integers(2, 400), into=st.integers(0, 400))
def test_a_step_may_take_as_long_as_those_before_it(
    tmp_path_factory: pytest.TempPathFactory, step_s: int, into: int
) -> None:
    clock = Clock(2, tmp_path_factory.getbasetemp())
    for step in range(3):
        clock.steps = [step, step]
        clock.go(step_s, stop=False)
    clock.steps = [3, 3]
    clock.go(min(into, step_s), stop=False)
    limit = max(LEAST_S, MANY * step_s)
    assert not clock.go(limit - 2, stop=True)
    assert clock.go(4 + MANY, stop=True), "but not for ever"


def test_nobody_is_given_up_who_gets_further(tmp_path: Path) -> None:
    clock = Clock(3, tmp_path)
    for step in range(20):
        clock.steps = [step, step + 1, step]
        assert not clock.go(LEAST_S - 10, stop=True)


def test_a_first_step_may_take_long(tmp_path: Path) -> None:
    clock = Clock(1, tmp_path)
    clock.steps = [0]
    assert not clock.go(FIRST_S - 2, stop=True)
    assert clock.go(5, stop=True)


@pytest.mark.parametrize(
    ("steps", "whom"),
    [
        ([7, 7, 7], "ranks 0, 1 and 2 to end step 7"),
        ([8, 7, 8], "rank 1 to end step 7"),
        ([0, -1, 3], "rank 1 to begin"),
        ([4] * 20, "20 ranks to end step 4"),
    ],
)
def test_it_is_said_every_ten_seconds_who_is_waited_for_and_at_last_what_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: list[int], whom: str
) -> None:
    clock = Clock(len(steps), tmp_path)
    clock.steps = steps
    clock.go(30, stop=False)
    assert capsys.readouterr().err == "", "nobody has asked"
    clock.go(35, stop=True)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0].startswith(f"manyhands: waiting for {whom}, 39 s now")
    for kept in ("there is no checkpoint", f"the last checkpoint is '{tmp_path / 'step-000000012.safetensors'}'"):
        with pytest.raises(KeyboardInterrupt):
            clock.monitor.give_up()
        assert capsys.readouterr().err == f"manyhands: waited 35 s for {whom}, in vain; {kept}\n"
        (tmp_path / "step-000000012.safetensors").touch()


# Threads


def _launch(worker: launch.base.Worker, out: Path, size: int, observe: Observer = ignore) -> list[dict[str, Any]]:
    config = make_config({"task": "mlp", "engine": "threads", "workers": size})
    return launch.make("threads").launch(worker, Job(config, RunDir(out)), observe)


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What a stuck thread waits for; it is let go at the end."""
    event = threading.Event()
    yield event
    event.set()
    for thread in threading.enumerate():
        if thread.name.startswith("manyhands rank"):
            thread.join(10)
    assert not local.a_rank_is_left()


@pytest.mark.parametrize("bad", [0, 1])
def test_a_thread_that_fails_is_told_of_though_another_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: threading.Event, bad: int
) -> None:
    monkeypatch.setattr(local, "FAILURE_GRACE_S", 0.2)

    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        watch.at(4)
        if comm.rank == bad:
            raise ZeroDivisionError("mine")
        stuck.wait(100)
        return {}

    with pytest.raises(RankFailed, match="ZeroDivisionError") as caught:
        _launch(worker, tmp_path, 2)
    assert (caught.value.rank, caught.value.step) == (bad, 4)
    assert local.a_rank_is_left(), "then a command must not wait for Python's own end"


def test_parts_of_a_ranks_work_end_though_one_is_stuck(monkeypatch: pytest.MonkeyPatch, stuck: threading.Event) -> None:
    monkeypatch.setattr(local, "FAILURE_GRACE_S", 0.2)

    def work(part: int) -> bool:
        if part == 1:
            raise ZeroDivisionError("mine")
        return stuck.wait(100)

    with pytest.raises(ZeroDivisionError, match="mine"):
        local.in_threads(work, 3)
    assert local.in_threads(lambda part: part * part, 4) == [0, 1, 4, 9]


def test_a_second_ctrl_c_ends_though_all_are_stuck(tmp_path: Path, stuck: threading.Event) -> None:
    inside = threading.Barrier(2)

    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        inside.wait(10)
        if comm.rank == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            while not watch.stop_asked():
                pass
            os.kill(os.getpid(), signal.SIGINT)
        stuck.wait(100)
        return {}

    with pytest.raises(KeyboardInterrupt):
        _launch(worker, tmp_path, 2)


def test_threads_that_do_not_get_any_further_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LOOK_S", "LEAST_S", "FIRST_S"):
        monkeypatch.setattr(waiting, name, 0.05)
    monkeypatch.setattr(local, "LOOK_S", 0.05)
    monkeypatch.setattr(threads, "stop_on_signal", _asked)

    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        watch.at(9 - comm.rank)
        stuck.wait(100)
        return {}

    with pytest.raises(KeyboardInterrupt):
        _launch(worker, tmp_path, 2)
    assert "for rank 1 to end step 8, in vain; there is no checkpoint" in capsys.readouterr().err


def test_who_observes_is_called_by_who_trains(tmp_path: Path) -> None:
    seen: list[tuple[int, threading.Thread]] = []
    pulse = Pulse.model_construct(step=3)

    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        if comm.rank == 0:
            watch.pulse(pulse)
        return {}

    _launch(worker, tmp_path, 3, lambda pulse: seen.append((pulse.step, threading.current_thread())))
    assert seen == [(3, threading.current_thread())]


def test_what_an_observer_raises_ends_the_run(tmp_path: Path) -> None:
    def worker(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
        if comm.rank == 0:
            watch.pulse(Pulse.model_construct(step=3))
        while True:
            comm.barrier()

    def observe(pulse: Pulse) -> None:
        raise LookupError("seen enough")

    with pytest.raises(LookupError, match="seen enough"):
        _launch(worker, tmp_path, 2, observe)


@contextmanager
def _asked() -> Iterator[threading.Event]:
    event = threading.Event()
    event.set()
    yield event


def test_workers_that_do_not_meet_obey_a_stop(
    train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"engine": "threads", "workers": 2, "epochs": 1}
    first = train(**settings, sync="async-server")
    replay = f"async-server:replay={RunDir.find(tmp_path, first.id).path}"
    monkeypatch.setattr(threads, "stop_on_signal", _asked)
    with pytest.raises(Stopped, match="meet at the end of an epoch only: nothing is kept"):
        train(**settings, sync=replay)
