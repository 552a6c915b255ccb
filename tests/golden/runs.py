"""The runs whose losses are kept as text: each built-in task with small, fixed settings."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import manyhands
from manyhands.record.run import RunDir, read_steps

FOLDER = Path(__file__).parent
STEPS = 10

RUNS: dict[str, dict[str, Any]] = {
    "softmax": {"data": "mnist:train=500,test=100"},
    "mlp": {"data": "mnist:train=500,test=100"},
    "mlp-sigmoid": {"data": "mnist:train=300,test=100", "replicate": 2},
    "cnn": {"data": "mnist:train=200,test=100", "batch_size": 32},
    "dnn": {"data": "mnist:train=500,test=100", "batch_size": 128},
    "recommender": {"data": "tweets:samples=2000", "batch_size": 128},
}


def file_of(task: str) -> Path:
    """Return where a task's losses are kept."""
    return FOLDER / f"{task}.txt"


def losses_of(task: str, **more: Any) -> list[float]:
    """Train the task and return the loss of each step."""
    with TemporaryDirectory() as out:
        record = manyhands.train(task, out=out, **{"steps": STEPS, "seed": 1, **RUNS[task], **more})
        return [step["loss"] for step in read_steps(RunDir.find(Path(out), record.id))]


def read(task: str) -> list[float]:
    """Return the losses that are kept."""
    lines = [line.split() for line in file_of(task).read_text().splitlines() if not line.startswith("#")]
    assert [int(step) for step, _ in lines] == list(range(1, len(lines) + 1))
    return [float(loss) for _, loss in lines]
