"""Engine ray: refuses early, reserves no more than there is, hands out the work, names who fails, cleans up."""

import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray_workers
from hypothesis import assume, given
from hypothesis import strategies as st

from manyhands import launch
from manyhands.comm.torch_ import PeerLost
from manyhands.config import RunConfig, make_config
from manyhands.errors import ManyhandsError, RankFailed, UserError
from manyhands.launch import ray_
from manyhands.launch.base import Observer, Worker
from manyhands.launch.mailbox import LiveFolder, LiveWatch, Tail, failure_values
from manyhands.launch.on_ray import cluster as ray_cluster
from manyhands.launch.on_ray import guard as ray_guard
from manyhands.launch.on_ray.actor import FAILURE
from manyhands.launch.signals.waiting import StopMonitor
from manyhands.machine import facts
from manyhands.record.run import Pulse, RunDir, open_run
from manyhands.run import ignore
from manyhands.training.job import Job

pytest.importorskip("ray")

RANKS = 2


def config(**settings: object) -> RunConfig:
    return make_config({"task": "mlp", "engine": "ray", "workers": RANKS, **settings})


# What is decided before anything starts


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"threads": 2}, "--threads belongs to engine hybrid"),
        ({"task": "<task>"}, "must import the task"),
        ({"ray_address": "ray://somewhere:10001"}, "--ray-address takes HOST:PORT"),
        ({"ray_address": "somewhere"}, "--ray-address takes HOST:PORT"),
        ({"ray_address": "127.0.0.1:99999"}, "no Ray answers at '127.0.0.1:99999'"),
    ],
)
def test_bad_requests_are_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        launch.make("ray").check(config(**settings))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'manyhands\[ray\]'"):
        launch.make("ray").check(config())


def cluster_of(cpus: int, gpus: int, free_gpus: int) -> SimpleNamespace:
    """Return a Ray that only says what it has."""
    free = {"CPU": cpus, "GPU": free_gpus} if free_gpus else {"CPU": cpus}
    return SimpleNamespace(available_resources=lambda: free, cluster_resources=lambda: {"CPU": cpus, "GPU": gpus})


@given(
    size=st.integers(1, 40), cpus=st.integers(0, 40), gpus=st.integers(0, 9), device=st.sampled_from(["cuda", "auto"])
)
def test_ranks_reserve_no_more_than_there_is(size: int, cpus: int, gpus: int, device: str) -> None:
    ray = cluster_of(cpus, gpus or 1, gpus)
    assume(gpus or device == "auto")
    shares = ray_._shares(ray, config(device=device, workers=size), size)
    assert shares["num_cpus"] * size <= cpus
    assert ("num_gpus" in shares) == (gpus > 0), "whether this machine has one does not matter"
    if gpus:
        on_one_gpu = int(1 / shares["num_gpus"] + 1e-9)
        assert on_one_gpu * gpus >= size, "every rank finds a place"
    assert "num_gpus" not in ray_._shares(ray, config(workers=size), size), "none for --device cpu"


@pytest.mark.parametrize(("gpus", "says"), [(0, "the Ray cluster has no GPU"), (4, "all 4 GPUs .* are in use")])
def test_a_gpu_that_the_cluster_does_not_have_is_refused(gpus: int, says: str) -> None:
    with pytest.raises(UserError, match=f"--device cuda, but {says}; use --device cpu or auto"):
        ray_._shares(cluster_of(2, gpus, 0), config(device="cuda"), RANKS)


class RayGone(Exception):
    """What a Ray raises that is not there any more."""


GONE = SimpleNamespace(RayError=RayGone)


LOST, OWN = PeerLost("broke"), UserError("mine")


@pytest.mark.parametrize(("returned", "says"), [([LOST, LOST], "broke"), ([LOST, OWN], "mine"), ([OWN, LOST], "mine")])
def test_the_failure_of_a_rank_that_only_lost_another_is_raised_last(
    tmp_path: Path, returned: list[ManyhandsError], says: str
) -> None:
    folder = LiveFolder(RunDir(tmp_path))
    folder.open()
    answers = {rank: json.dumps({FAILURE: failure_values(error)}) for rank, error in enumerate(returned)}
    actor = SimpleNamespace(run=SimpleNamespace(remote=lambda text: json.loads(text)["rank"]))
    ranks = ray_._RayRanks.__new__(ray_._RayRanks)
    ranks._folder, ranks._actors, ranks._returned_failures = folder, [actor, actor], []
    ranks._pulses, ranks._outputs = Tail(folder.pulses), []
    ranks._ray = SimpleNamespace(wait=lambda refs, **_: (refs[:1], refs[1:]), get=answers.get, exceptions=GONE)
    ranks._place = lambda: "127.0.0.1:1"  # type: ignore[method-assign]
    with pytest.raises(ManyhandsError, match=f"^{says}$"):
        ranks.work(ignore, stop := threading.Event(), StopMonitor(lambda: [0, 0], tmp_path, stop))


def test_a_ray_that_is_lost_at_the_end_fails_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = LiveFolder(RunDir(tmp_path))
    folder.open()

    def gone(*_: object, **__: object) -> None:
        raise RayGone("the head is gone")

    ranks = ray_._RayRanks.__new__(ray_._RayRanks)
    ranks._folder, ranks._actors, ranks._pending = folder, [0, 1], {"a": 0, "b": 1}
    ranks._pulses, ranks._outputs, ranks._crashes = Tail(folder.pulses), [], {}
    ranks._ray = SimpleNamespace(wait=lambda refs, **_: (refs, []), get=gone, kill=gone, exceptions=GONE)
    LiveWatch(folder, 1).at(5)
    folder.result(0).write_text('{"rank": 0}')
    with pytest.raises(RankFailed, match=r"rank 1 on .* failed at step 5"):
        ranks._new_results()
    folder.result(1).write_text('{"rank": 1}')
    ranks._pending = {"a": 0, "b": 1}
    assert ranks._new_results() == {0: {"rank": 0}, 1: {"rank": 1}}
    ranks.kill()
    ray_cluster._leave(SimpleNamespace(shutdown=gone))
    assert capsys.readouterr().err == "manyhands: note: Ray could not be left in order: the head is gone\n" * 2


@given(st.lists(st.text("ab\n", max_size=6), max_size=8))
def test_a_tail_gives_every_whole_line_once(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    path = tmp_path_factory.mktemp("tail") / "file"
    tail = Tail(path)
    lines = tail.lines()
    for part in parts:
        with open(path, "a") as f:
            f.write(part)
        lines += tail.lines()
    assert lines == "".join(parts).split("\n")[:-1]


@pytest.mark.parametrize(
    ("told", "crash", "cause"),
    [
        ("Worker exit detail: Worker unexpectedly exits with a connection error code 2.", "", "signal 9"),
        ("Worker exit detail: connection error code 2", "SIGSEGV", "killed by SIGSEGV"),
        ("Worker exit detail: Task was killed\n due to low memory.", "", "^Task was killed due to low memory.$"),
        ("nothing more", "", "its process is gone"),
    ],
)
def test_the_cause_of_a_death(told: str, crash: str, cause: str) -> None:
    assert re.search(cause, ray_._cause(told, crash))


def test_variables_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    before = dict(os.environ)
    with ray_cluster._environment({"OMP_NUM_THREADS": "1", "MANYHANDS_TEST_A": "2"}):
        os.environ["MANYHANDS_TEST_B"] = "set meanwhile"
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert dict(os.environ) == before


def test_ray_does_not_take_sigterm_while_it_starts() -> None:
    ray, before = ray_cluster.load(), signal.getsignal(signal.SIGTERM)
    try:
        with ray_cluster._keeping_sigterm(ray):
            ray._private.utils.set_sigterm_handler(lambda number, frame: None)
            assert signal.getsignal(signal.SIGTERM) is before
        ray._private.utils.set_sigterm_handler(lambda number, frame: None)
        assert signal.getsignal(signal.SIGTERM) is not before, "and a user's own Ray is left alone"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_guard_ends_who_uses_the_folder_and_removes_it(tmp_path: Path) -> None:
    (tmp_path / "session").mkdir()
    with open(tmp_path / "session" / "log", "w") as log:
        user = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=log)
    guard = [sys.executable, "-I", "-S", ray_guard.__file__, str(tmp_path)]
    subprocess.run(guard, stdin=subprocess.DEVNULL, check=True, timeout=60)
    assert user.wait(timeout=60) == -signal.SIGKILL
    assert not tmp_path.exists()
    tmp_path.mkdir()


# What a Ray does that is started once for the tests below

Launch = Callable[..., list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def leaves_nothing_running() -> None:
    """Leave this to `shared_ray`: Ray keeps idle processes from one test to the next."""


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[None]:
    """Start Ray as the launcher does; at the end, nothing of it may be left: process, variable or folder."""
    children, variables = set(psutil.Process().children(recursive=True)), set(os.environ)
    with ray_cluster.cluster(config(), RANKS) as ray:
        folder = Path(ray._private.worker._global_node.temp_dir)
        assert folder.is_dir()
        yield
    assert not set(psutil.Process().children(recursive=True)) - children
    assert set(os.environ) == variables
    assert not folder.exists()


@pytest.fixture
def launched(shared_ray: None, tmp_path: Path) -> Launch:
    """Launch a worker on two ranks of the shared Ray."""

    def start(worker: Worker, observe: Observer = ignore, **extra: object) -> list[dict[str, Any]]:
        run = RunDir(tmp_path / "run")
        open_run(run, config())
        try:
            return launch.make("ray").launch(worker, Job(config(), run, extra=extra), observe)
        finally:
            assert not run.live.exists()

    return start


def test_ranks_do_the_work(launched: Launch, capfd: pytest.CaptureFixture[str]) -> None:
    pulses: list[Pulse] = []
    told = launched(ray_workers.tell, pulses.append)
    assert [t["rank"] for t in told] == list(range(RANKS))
    assert {t["size"] for t in told} == {RANKS}
    assert {t["sum"] for t in told} == {sum(range(RANKS + 1))}
    assert len({t["pid"] for t in told} | {os.getpid()}) == RANKS + 1, "each in a process of its own"
    assert {t["cwd"] for t in told} == {os.getcwd()}
    assert all(str(Path(__file__).parent) in t["path"] for t in told)
    assert {t["threads"] for t in told} == {max(1, facts.cores() // RANKS)}
    assert [p.step for p in pulses] == [1]
    stdout, stderr = capfd.readouterr()
    assert stdout == "", "stdout is for results"
    assert sorted(stderr.split("\n")) == ["", *(f"rank {rank} prints" for rank in range(RANKS))]
    for rank in told:
        with suppress(psutil.NoSuchProcess):
            psutil.Process(rank["pid"]).wait(timeout=30)  # raises if the rank stays


def test_a_rank_that_raises_is_named(launched: Launch) -> None:
    with pytest.raises(RankFailed) as caught:
        launched(ray_workers.raise_in_the_middle)
    error = caught.value
    assert (error.rank, error.step, error.host) == (1, 3, socket.gethostname())
    assert "ZeroDivisionError('mine')" in error.cause
    assert "in raise_in_the_middle" in error.cause, "the traceback is the rank's"


def test_a_rank_that_cannot_write_why_it_failed_tells_it_all_the_same(launched: Launch) -> None:
    with pytest.raises(RankFailed, match=r"rank 1 on .*ZeroDivisionError\('mine'\)"):
        launched(ray_workers.fail_without_a_folder)


@pytest.mark.parametrize(("by", "cause"), [("SIGKILL", "signal 9"), ("SIGSEGV", "killed by SIGSEGV")])
def test_a_rank_that_is_killed_is_named(launched: Launch, by: str, cause: str) -> None:
    with pytest.raises(RankFailed, match=cause) as caught:
        launched(ray_workers.die, signal=by)
    error = caught.value
    assert (error.rank, error.step, error.host) == (1, 2, socket.gethostname())


def test_a_stop_reaches_the_ranks(launched: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    asked.set()
    monkeypatch.setattr(ray_, "stop_on_signal", lambda: _given(asked))
    assert launched(ray_workers.wait_for_stop) == [{"stopped": True}] * RANKS


class _given:
    """A context that is this value."""

    def __init__(self, value: threading.Event) -> None:
        self._value = value

    def __enter__(self) -> threading.Event:
        return self._value

    def __exit__(self, *_: object) -> None:
        pass


def test_a_shared_ray_listens_on_loopback_alone(shared_ray: None) -> None:
    places = set()
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(psutil.Error):  # idle processes come and go
            listening = [c for c in process.net_connections(kind="tcp") if c.status == psutil.CONN_LISTEN]
            places |= {connection.laddr.ip for connection in listening}
    assert places
    assert places <= {"127.0.0.1", "::ffff:127.0.0.1"}
