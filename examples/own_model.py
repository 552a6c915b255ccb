"""Your own network, BatchNorm and all: manyhands train examples/own_model.py:task --engine mpi --workers 2"""

from torch import Tensor, nn

import manyhands


class Net(nn.Module):
    """Any `nn.Module` will do; nothing in it knows of workers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(8 * 12 * 12, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


task = manyhands.Task(model=lambda data: Net(data.classes), optimizer="adam", lr=0.002, batch_size=128, epochs=2)

if __name__ == "__main__":
    record = manyhands.train(task, engine="mpi", workers=2)
    print(f"{100 * record.test_accuracy:.2f} % at {record.samples_per_s:,.0f} samples/s")
