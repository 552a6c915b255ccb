"""Layers that a model function leaves in evaluation mode stay in it."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import manyhands
from manyhands.replica.nested import set_training

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1


class Tuned(nn.Module):
    """A frozen backbone with BatchNorm, and a head."""

    def __init__(self, *, frozen: bool = True) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.backbone.requires_grad_(not frozen).eval()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out


def test_parts_in_evaluation_mode_stay_so_and_whole_networks_train() -> None:
    module = set_training(Tuned())
    assert [name for name, layer in module.named_children() if layer.training] == ["head"]
    assert module.training
    assert all(layer.training for layer in set_training(Tuned().eval()).modules())


@pytest.mark.parametrize("exact", [False, True])
def test_a_frozen_backbone_keeps_its_statistics_on_any_number_of_workers(tmp_path, exact: bool) -> None:  # type: ignore[no-untyped-def]
    model = Tuned()
    task = manyhands.Task(
        model=lambda _: copy.deepcopy(model), data=((X, (X[:, 0] > 1).long()),) * 2, batch_size=8, lr=0.1, name="tuned"
    )
    found = []
    for workers in (1, 3):
        engine = "threads" if workers > 1 else "serial"
        record = manyhands.train(
            task, engine=engine, workers=workers, exact=exact, dtype="float64", out=tmp_path / str(workers)
        )
        assert not record.warnings
        found.append(load_file(tmp_path / str(workers) / record.id / "model.safetensors"))
    alone, together = found
    for name, t in model.backbone.state_dict().items():
        assert together[f"backbone.{name}"].equal(t.to(together[f"backbone.{name}"].dtype))
    for name, t in alone.items():
        assert torch.allclose(together[name], t, rtol=1e-12, atol=0 if exact else 1e-14)
        assert together[name].equal(t) or not exact


def test_trainable_layers_in_evaluation_mode_are_told(tmp_path) -> None:  # type: ignore[no-untyped-def]
    data = ((X, (X[:, 0] > 1).long()),) * 2
    record = manyhands.train(manyhands.Task(model=lambda _: Tuned(frozen=False), data=data, batch_size=8), out=tmp_path)
    assert any("'backbone' has trainable weights, but was left in evaluation mode" in w for w in record.warnings)
