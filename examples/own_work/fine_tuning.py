"""Fine-tune with frozen layers that thaw later: python examples/own_work/fine_tuning.py"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import manyhands

CLASSES = 10


def model(data: manyhands.Dataset) -> nn.Module:
    """Build a body whose weights come from elsewhere, and a head that starts anew."""
    net = nn.Sequential()
    net.add_module("body", nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU()))
    net.add_module("head", nn.Linear(64, data.classes))
    return net


def groups(net: nn.Module) -> list[dict]:
    """Train the head from the beginning, and the body from the second epoch, at a tenth of the learning rate."""
    return [
        {"params": list(net.head.parameters())},
        {"params": list(net.body.parameters()), "lr": 0.0005, "from_epoch": 1},
    ]


task = manyhands.Task(
    model=model,
    data="mnist:train=2000,test=1000",
    optimizer=lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9),
    param_groups=groups,
    lr=0.005,
    batch_size=50,
    epochs=3,
)
teacher = manyhands.Task(model=model, data="mnist:train=5000,test=1000", optimizer="adam", lr=0.001, epochs=1)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        first = manyhands.train(teacher, out=out)
        weights = Path(out) / first.id / "model.safetensors"
        record = manyhands.train(task, engine="mpi", workers=2, init=str(weights), out=out)
    print(f"{100 * first.test_accuracy:.1f} % before, {100 * record.test_accuracy:.1f} % after fine-tuning")
