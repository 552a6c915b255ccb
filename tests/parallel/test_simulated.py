"""What is simulated is what really happens: the bits of runs over MPI and threads, there and back."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from manyhands import RunRecord
from manyhands.comm.sim import Instant, Machine
from manyhands.record.run import RunDir, read_events, read_steps
from manyhands.virtual.train import train_virtually

Train = Callable[..., RunRecord]
Tiny = Callable[[str], str]

STEPS: dict[str, Any] = {"batch_size": 10, "steps": 14}
"""10 steps are an epoch."""


class Uneven(Machine):
    """Every worker takes longer than the one before; calls and messages take their time, too."""

    def step_s(self, rank: int) -> float:
        return (1.0 + 0.3 * rank) * 1e-3

    def collective_s(self, call: str, ranks: Sequence[int], num_bytes: int) -> float:
        return 1e-4

    def message_s(self, source: int, to: int, num_bytes: int) -> tuple[float, float]:
        return 1e-4, 1e-5


def _losses(folder: Path) -> list[float]:
    return [step["loss"] for step in read_steps(RunDir(folder))]


@pytest.mark.parametrize(("workers", "network"), [(2, "mlp"), (3, "dropout")])
def test_exact_gives_the_bits_of_a_real_run(
    workers: int, network: str, tmp_path: Path, train: Train, tiny: Tiny
) -> None:
    same = {**STEPS, "exact": True, "dtype": "float64"}
    real = train(tiny(network), engine="mpi", workers=workers, **same)
    taking_turns = train(tiny(network), engine="sim", workers=workers, **same)
    for_all = train_virtually(tiny(network), workers, machine=Uneven(), **same)
    assert for_all.method == "one-worker"
    assert taking_turns.weights_sha256 == for_all.weights_sha256 == real.weights_sha256
    assert for_all.step_loss == _losses(tmp_path / taking_turns.id) == _losses(tmp_path / real.id)
    assert for_all.test_loss == taking_turns.test_loss == real.test_loss


@pytest.mark.parametrize("engine", ["threads", "mpi"])
def test_a_real_asynchronous_run_is_replayed(engine: str, tmp_path: Path, train: Train, tiny: Tiny) -> None:
    real = train(tiny("adam"), engine=engine, workers=3, sync="async-server:servers=2", **STEPS)
    replay = f"async-server:servers=2,replay={tmp_path / real.id}"
    again = train(tiny("adam"), engine="sim", workers=3, sync=replay, **STEPS)
    found = train_virtually(tiny("adam"), 3, sync=replay, machine=Uneven(), out=tmp_path / "virtual", **STEPS)
    assert again.weights_sha256 == found.weights_sha256 == real.weights_sha256
    for server in range(2):
        events = [read_events(str(tmp_path / name), server) for name in (real.id, again.id, "virtual")]
        assert events[0] == events[1] == events[2]


def test_a_simulated_asynchronous_run_is_replayed_for_real(tmp_path: Path, train: Train, tiny: Tiny) -> None:
    found = train_virtually(tiny("adam"), 3, sync="async-server", machine=Uneven(), out=tmp_path / "virtual", **STEPS)
    other = train_virtually(tiny("adam"), 3, sync="async-server", machine=Instant(), **STEPS)
    assert other.weights_sha256 != found.weights_sha256, "the order of events should matter"
    replay = f"async-server:replay={tmp_path / 'virtual'}"
    real = train(tiny("adam"), engine="threads", workers=3, sync=replay, **STEPS)
    assert real.weights_sha256 == found.weights_sha256
