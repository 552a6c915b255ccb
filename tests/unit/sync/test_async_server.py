"""Servers apply gradients in the order in which they come; the order is kept, and taking it again gives the weights."""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from driving import drive, make_replica, pulling, weights_of
from safetensors.torch import load_file

from manyhands.cli.main import main
from manyhands.comm import Comm
from manyhands.comm.threads import ThreadComm, ThreadGroup
from manyhands.errors import UserError
from manyhands.record.run import RunDir, RunRecord
from manyhands.replica import Replica
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.sync.async_server import AsyncServer
from manyhands.training.checkpoint import checkpoints

Orders = dict[str, list[int]]
ORDERS: Orders = {
    "in turns": [0, 1, 2] * 4,
    "one after the other": [0] * 4 + [1] * 4 + [2] * 4,
    "backwards": [2, 1, 0] * 4,
    "a late one": [1, 2] * 4 + [0] * 4,
}
"""Some ways in which four pushes of each of three workers may come."""


def _events(out: Path, record: RunRecord, server: int) -> list[dict[str, int]]:
    lines = RunDir.find(out, record.id).events(server).read_text().splitlines()
    return [json.loads(line) for line in lines]


def _forge(folder: Path, order: list[int], servers: int) -> Path:
    """Write the events of a run whose gradients came in this order."""
    events = [{"worker": w, "staleness": 0} for w in order]
    folder.mkdir()
    for server in range(servers):
        RunDir(folder).events(server).write_text("".join(json.dumps(e) + "\n" for e in events))
    return folder


def _by_hand(order: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Apply pulling gradients in this order; a worker has the weights of its own last push."""
    server = make_replica()
    views = {w: server.params.clone() for w in order}
    steps, known, staleness = dict.fromkeys(views, 0), dict.fromkeys(views, 0), []
    for version, w in enumerate(order):
        worker = make_replica()
        worker.params.copy_(views[w])
        server.grads.copy_(pulling(w, steps[w], worker))
        server.apply()
        staleness.append(version - known[w])
        views[w], known[w], steps[w] = server.params.clone(), version + 1, steps[w] + 1
    return server.params, staleness


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_given_order_gives_the_weights_that_one_finds_by_hand(
    ranks, tmp_path: Path, order: list[int], servers: int
) -> None:  # type: ignore[no-untyped-def]
    text = f"async-server:servers={servers},replay={_forge(tmp_path / 'run', order, servers)}"
    found = drive(ranks, text, 3, gradient=pulling, steps=4)
    weights, staleness = _by_hand(order)
    for rank in found[:3]:
        torch.testing.assert_close(rank.replica.params, weights, rtol=1e-13, atol=1e-13)
    for rank in found[3:]:
        assert [e["worker"] for e in rank.strategy.events()] == order
        assert [e["staleness"] for e in rank.strategy.events()] == staleness
        assert rank.strategy.notes() == {
            "updates": 12, "staleness_mean": sum(staleness) / 12, "staleness_max": max(staleness)
        }  # fmt: skip


def _patient_ranks(work: Callable[[Comm], Any], size: int) -> list[Any]:
    """Run ranks as the fixture does, but let those go that wait for ever."""
    group = ThreadGroup(size)
    timer = threading.Timer(10.0, group.abort)
    timer.start()
    try:
        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(work, [ThreadComm(group, rank) for rank in range(size)]))
    finally:
        timer.cancel()


def test_a_push_that_comes_before_its_turn_waits(tmp_path: Path) -> None:
    """Whoever comes first: the order given is kept, and nobody waits for ever."""
    order = [0, 0, 1, 1, 2, 2, 2, 2, 1, 1, 0, 0]
    folder = _forge(tmp_path / "run", order, 1)
    found = drive(_patient_ranks, f"async-server:replay={folder}", 3, gradient=pulling, steps=4)
    torch.testing.assert_close(found[0].replica.params, _by_hand(order)[0], rtol=1e-13, atol=1e-13)


def test_a_replay_may_look_at_the_weights_at_other_times(train, tiny, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """The first run evaluated and kept checkpoints in between, the replays do not: looking changes nothing."""
    settings = {"engine": "threads", "workers": 3, "epochs": 3}
    first = train(tiny("adam"), **settings, sync="async-server:servers=2", checkpoint_every=4)
    replay = f"async-server:servers=2,replay={RunDir.find(tmp_path, first.id).path}"
    assert train(tiny("adam"), **settings, sync=replay).weights_sha256 == first.weights_sha256
    assert train(tiny("adam"), **settings, sync=replay, eval_every=9).weights_sha256 == first.weights_sha256


def test_a_checkpoint_is_of_one_moment(train, tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """Though the first worker asks late for the weights, nobody has gone on: Adam has counted every push so far."""
    usual = AsyncServer.settle

    def late(self: AsyncServer, replica: Replica, comm: Comm) -> None:
        time.sleep(0.05 if comm.rank == 0 else 0.0)
        usual(self, replica, comm)

    monkeypatch.setattr(AsyncServer, "settle", late)
    settings = {"engine": "threads", "workers": 3, "steps": 8, "checkpoint_every": 4, "sync": "async-server:servers=2"}
    record = train(tiny("adam"), **settings)
    kept = checkpoints(RunDir.find(tmp_path, record.id).checkpoints)
    assert [load_file(path)["scalars"].tolist() for path in kept] == [[3 * 4], [3 * 8]]


def test_another_order_gives_other_weights() -> None:
    """Or the test above, and those of the replay, would prove nothing."""
    found = [_by_hand(order)[0] for order in ORDERS.values()]
    for i, a in enumerate(found):
        assert not any(torch.allclose(a, b, rtol=1e-6) for b in found[:i])


@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_every_push_is_written_down_with_its_staleness(train, tmp_path: Path, workers: int, servers: int) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=workers, sync=f"async-server:servers={servers}", epochs=2)
    for server in range(servers):
        events = _events(tmp_path, record, server)
        assert Counter(e["worker"] for e in events) == dict.fromkeys(range(workers), record.steps)
        stale = [e["staleness"] for e in events]
        assert min(stale) >= 0
        assert max(stale) <= (workers - 1) * 20, "no more updates than the others can make in the run"
        if workers == 1:
            assert set(stale) == {0}
        notes = record.ranks[workers + server].notes
        assert notes["updates"] == len(events)
        assert notes["staleness_max"] == max(stale)
        assert notes["staleness_mean"] == pytest.approx(sum(stale) / len(stale))
    assert not RunDir.find(tmp_path, record.id).events(servers).exists()
    assert [rank.role for rank in record.ranks] == ["worker"] * workers + ["server"] * servers


def test_workers_have_no_updates_to_tell_of(train) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=2, sync="async-server", steps=3)
    for rank in record.ranks[:2]:
        assert rank.notes.get("updates", 0) == 0


@pytest.mark.parametrize("task", ["mlp", "sigmoid", "adam"])
@pytest.mark.parametrize("servers", [1, 2])
def test_one_worker_gives_the_serial_bits(train, tiny, task: str, servers: int) -> None:  # type: ignore[no-untyped-def]
    text = f"async-server:servers={servers}"
    found = train(tiny(task), engine="threads", workers=1, sync=text, epochs=2)
    assert found.weights_sha256 == train(tiny(task), epochs=2).weights_sha256


def test_three_workers_learn(train) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=3, sync="async-server:servers=2", epochs=8)
    assert record.train_loss[-1] < 0.9 * record.train_loss[0]


def test_a_replay_gives_the_same_weights(train, tiny, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Two epochs, with an evaluation between them; also a replay of a replay."""
    settings = {"engine": "threads", "workers": 3, "epochs": 2}
    first = train(tiny("adam"), **settings, sync="async-server:servers=2")
    folder = RunDir.find(tmp_path, first.id).path
    for _ in range(3):
        again = train(tiny("adam"), **settings, sync=f"async-server:servers=2,replay={folder}")
        assert again.weights_sha256 == first.weights_sha256
        assert again.test_loss == first.test_loss
        assert [_events(tmp_path, again, s) for s in (0, 1)] == [_events(tmp_path, first, s) for s in (0, 1)]
        folder = RunDir.find(tmp_path, again.id).path


def test_a_replay_of_another_order_gives_other_weights(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    settings = {"engine": "threads", "workers": 3, "steps": 4}
    found = []
    for name in ("in turns", "backwards"):
        folder = _forge(tmp_path / name.replace(" ", "-"), ORDERS[name], 2)
        runs = [train(**settings, sync=f"async-server:servers=2,replay={folder}") for _ in range(2)]
        assert runs[0].weights_sha256 == runs[1].weights_sha256
        found.append(weights_of(tmp_path, runs[0]))
    assert not torch.equal(*found)


def test_a_run_over_mpi_is_replayed_by_threads(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """What the servers do depends on the order alone, whoever carries the messages."""
    settings = {"workers": 3, "steps": 12, "blas_threads": 1}
    first = train(**settings, engine="mpi", sync="async-server:servers=2")
    folder = RunDir.find(tmp_path, first.id).path
    again = train(**settings, engine="threads", sync=f"async-server:servers=2,replay={folder}")
    assert again.weights_sha256 == first.weights_sha256


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command; each call returns (status, stdout, stderr)."""

    def command(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return command


def test_a_replay_of_nothing_gets_one_sentence(run: Run, tiny, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    short = _forge(tmp_path / "short", [0, 1, 2], 1)
    bad = _forge(tmp_path / "bad", [0, 1, 2], 2)
    RunDir(bad).events(1).write_text("worker 0\n")
    for folder, says in (
        (tmp_path / "none", "events-0.jsonl' to replay: it is left by a run with async-server and as many servers"),
        (short, "events-1.jsonl' to replay"),
        (bad, "events-1.jsonl' is damaged"),
    ):
        sync = f"async-server:servers=2,replay={folder}"
        words = ("train", tiny("mlp"), "--engine", "threads", "--workers", "3", "--steps", "1", "--sync", sync)
        status, stdout, stderr = run(*words, "--out", str(tmp_path / "out"))
        assert (status, stdout) == (2, "")
        assert says in stderr
        assert stderr.count("\n") == 1
    assert not (tmp_path / "out").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"workers": 2}, "a worker that is not there"),
        ({"workers": 4}, "a worker that the order does not know"),
        ({"workers": 3, "steps": 2}, "more pushes than this run has"),
        ({"workers": 3, "steps": 9}, "fewer pushes than this run has"),
    ],
)
def test_an_order_of_another_run_is_refused_before_it_starts(tiny, tmp_path: Path, settings, what: str) -> None:  # type: ignore[no-untyped-def]
    """A server would wait for ever for a message that never comes, or go on in an order of its own."""
    folder = _forge(tmp_path / "run", ORDERS["in turns"], 1)
    options = {"engine": "threads", "steps": 4, "sync": f"async-server:replay={folder}", **settings}
    with pytest.raises(UserError):
        preflight(resolve(tiny("mlp"), options))
