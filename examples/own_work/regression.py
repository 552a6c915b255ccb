"""A regression with scikit-learn's data.

manyhands train examples/own_work/regression.py:task --engine threads --workers 2
"""

import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

import manyhands


def diabetes() -> tuple:
    """Return (inputs, targets) to learn from and to test on, as numpy arrays."""
    x, y = load_diabetes(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y[:, None], test_size=0.2, random_state=0)
    inputs, targets = StandardScaler().fit(x), StandardScaler().fit(y)
    return (inputs.transform(x), targets.transform(y)), (inputs.transform(x_test), targets.transform(y_test))


def decayed(model: nn.Module) -> list[dict]:
    """Let only matrices decay, as is usual."""
    weights, biases = ([p for p in model.parameters() if (p.dim() > 1) == matrix] for matrix in (True, False))
    return [{"params": weights, "weight_decay": 0.01}, {"params": biases, "weight_decay": 0.0}]


task = manyhands.Task(
    model=lambda data: nn.Sequential(
        nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1)
    ),
    data=diabetes,
    loss="mse",
    metrics={"mae": manyhands.Metric(lambda output, target: (output - target).abs().mean(), better="lower")},
    optimizer=lambda params, lr: torch.optim.AdamW(params, lr=lr),
    param_groups=decayed,
    scheduler=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3),
    scheduler_every="epoch",
    ema=0.98,
    lr=0.01,
    batch_size=50,
    epochs=40,
)

if __name__ == "__main__":
    record = manyhands.train(task, engine="threads", workers=2, patience=10, keep_best=True, monitor="mae")
    print(f"mean absolute error {record.metrics['mae']:.3f} after step {record.best_step} of {record.steps}")
