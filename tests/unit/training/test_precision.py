"""Products in bf16 and fp16: n workers agree with one within the numbers' rounding, and skip the same steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_runs import near, trained
from torch import Tensor, nn

from manyhands import Dataset, Task
from manyhands.comm import Comm
from manyhands.config import make_config
from manyhands.data import load
from manyhands.errors import UserError
from manyhands.replica import Replica
from manyhands.replica.precision import FIRST_SCALE
from manyhands.request import resolve
from manyhands.run import preflight
from manyhands.training.caveats import causes_of

SOURCE = "synthetic:samples=26,features=12,classes=3,test=5,seed=5"
SHORT = ["bf16", "fp16"]
EPS = {"bf16": 2.0**-8, "fp16": 2.0**-11}


def _network(data: Dataset) -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def _loud(out: Tensor, y: Tensor) -> Tensor:
    """Return a loss whose slopes overflow in fp16 at the first scale, for rows of one class only."""
    return (F.cross_entropy(out, y, reduction="none") * torch.where(y == 1, 300.0, 1e-3).to(out)).mean()


task = Task(model=_network, data=SOURCE, lr=0.05, optimizer="momentum")
loud = Task(model=lambda data: nn.Linear(12, 3), data=SOURCE, lr=1e-4, loss=_loud)


@pytest.mark.parametrize("strategy", ["allreduce", "overlap:bucket=7", "sharded", "parameter-server", "gather-server"])
@pytest.mark.parametrize("precision", SHORT)
def test_workers_agree_within_the_rounding(precision: str, strategy: str, ranks: Any, tmp_path: Path) -> None:
    same = {"dtype": "float32", "batch_size": 10, "precision": precision}
    expected, _ = trained(ranks, tmp_path, task, load(SOURCE), 1, **same)
    whole, _ = trained(ranks, tmp_path, task, load(SOURCE), 1, **{**same, "precision": "fp32"})
    actual, record = trained(ranks, tmp_path, task, load(SOURCE), 3, strategy, **same)
    assert record["warnings"] == []
    assert near(actual, expected, EPS[precision])
    assert not near(expected, whole, 0.0), "the products are shorter"


@pytest.mark.parametrize("strategy", ["local-sgd:period=2", "gossip", "average-once", "compressed"])
def test_workers_who_step_alone_meet_as_often_as_ever(strategy: str, ranks: Any, tmp_path: Path) -> None:
    """The overflows of one worker do not keep the others waiting."""
    after, _ = trained(
        ranks, tmp_path, loud, load(SOURCE), 3, strategy, dtype="float32", batch_size=4, precision="fp16"
    )
    assert all(t.isfinite().all() for t in after.values())


@pytest.mark.parametrize("strategy", ["allreduce", "overlap:bucket=7", "parameter-server"])
def test_a_step_that_overflows_anywhere_is_left_out_everywhere(strategy: str, ranks: Any, tmp_path: Path) -> None:
    seen = dict[tuple[int, int], tuple[float, Tensor]]()

    def note(comm: Comm, replica: Replica, _: object, step: int) -> None:
        seen[comm.rank, step] = float(replica.extras()["loss_scale"][0]), replica.params.clone()

    trained(ranks, tmp_path, loud, load(SOURCE), 3, strategy, dtype="float32", precision="fp16", after_step=note)
    scales = [seen[0, step][0] for step in range(9)]
    assert scales[0] == FIRST_SCALE / 2
    assert scales[-1] == scales[-2] < FIRST_SCALE / 4
    for step, scale in enumerate(scales):
        assert {seen[rank, step][0] for rank in range(3)} == {scale}
        assert all(torch.equal(seen[rank, step][1], seen[0, step][1]) for rank in range(3))
        if step:
            stayed = torch.equal(seen[0, step][1], seen[0, step - 1][1])
            assert stayed is (scale < scales[step - 1])


@pytest.mark.parametrize("strategy", ["allreduce", "local-sgd:period=2"])
def test_a_resumed_run_goes_on_with_its_scale(strategy: str, ranks: Any, tmp_path: Path) -> None:
    same = {"dtype": "float32", "precision": "fp16", "strategy": strategy, "batch_size": 4}
    whole, _ = trained(ranks, tmp_path, loud, load(SOURCE), 2, **same)
    trained(ranks, tmp_path, loud, load(SOURCE), 2, **{**same, "steps": 3, "checkpoint_every": 3})
    (checkpoint,) = (tmp_path / "run-1").rglob("step-*.safetensors")
    again, _ = trained(ranks, tmp_path, loud, load(SOURCE), 2, resume=str(checkpoint), **same)
    assert near(again, whole, 0.0)


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    for precision in ("tf32", *SHORT):
        with pytest.raises(UserError, match=f"precision {precision} shortens the products of float32"):
            make_config({"task": "mlp", "dtype": "float64", "precision": precision})
    config = resolve("own", {"engine": "threads", "workers": 2, "sync": "async-server", "precision": "fp16"}, task)
    with pytest.raises(UserError, match="use --precision bf16"):
        preflight(config, task)
    assert preflight(config.model_copy(update={"precision": "bf16"}), task).replica.precision == "bf16"


def test_tf32_is_said_to_do_nothing_on_a_cpu() -> None:
    (note,) = preflight(resolve("own", {"precision": "tf32"}, task), task).warnings
    assert note == "tf32 is a number type of GPUs, and does nothing on a CPU"


@pytest.mark.parametrize("precision", SHORT)
def test_rounding_is_not_taken_for_a_loss_that_cannot_be_cut(precision: str) -> None:
    ready = preflight(resolve("own", {"precision": precision, "engine": "threads", "workers": 2}, task), task)
    assert ready.warnings == []
    assert causes_of(task, ready.replica, ready.data) == []
    assert ready.replica.precision == precision
