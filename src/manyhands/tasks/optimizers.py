"""Optimisers by their names, with the weight decay and momentum of a run's settings."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from manyhands.config import RunConfig
from manyhands.errors import check, unknown
from manyhands.replica.optimizer.groups import ELEMENTS, TENSORS, Grain

CLASSES: dict[str, type[Optimizer]] = {
    name.lower(): cls
    for name, cls in sorted(vars(torch.optim).items())
    if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer
}
"""Every optimiser of torch by its name in small letters."""
OF_TENSORS = ("adafactor", "muon")
"""Those that look at whole tensors."""
OF_MATRICES = ("muon",)
"""Those that take no others."""
REFUSED = {
    "lbfgs": "needs a closure that computes the loss again within a step, which workers that share a batch cannot give",
    "sparseadam": "takes sparse gradients, and those of a batch are dense here",
}
KNOWN: dict[str, tuple[str, Mapping[str, Any]]] = {
    "momentum": ("sgd", {"momentum": 0.9}),
    "adam": ("adam", {"fused": True}),
    "adamw": ("adamw", {"fused": True}),
}
"""Names whose options are not torch's defaults: class and options."""
NAMES = ("sgd", *KNOWN, "rmsprop", *(name for name in CLASSES if name not in (*KNOWN, *REFUSED, "sgd", "rmsprop")))

OPTIMIZERS: dict[str, Callable[[list[Any], float], Optimizer]] = {
    "sgd": lambda params, lr: _make("sgd", params, lr),
    **{name: lambda params, lr, name=name: _make(name, params, lr) for name in KNOWN},  # type: ignore[misc]
}
"""The usual ones, each a function of parameters and learning rate."""


def check_name(name: str) -> None:
    """Refuse a name that is no optimiser's, and those that cannot be shared out."""
    check(name not in REFUSED, f"the optimiser '{name}' {REFUSED.get(name)}; use sgd, adam or another")
    if name not in NAMES:
        unknown("optimizer", name, NAMES)


def grain_of(name: str) -> Grain | None:
    """Return what a named optimiser looks at together; None for no name."""
    return None if not name else TENSORS if name in OF_TENSORS else ELEMENTS


def make_named(name: str, params: list[Any], config: RunConfig) -> Optimizer:
    """Return a new optimiser of `params`, tensors or groups, with the settings of a run."""
    check_name(name)
    kind, _ = KNOWN.get(name, (name, {}))
    takes = inspect.signature(CLASSES[kind]).parameters
    options = {key: getattr(config, key) for key in ("weight_decay", "momentum") if getattr(config, key)}
    for key, value in options.items():
        option = key.replace("_", "-")
        check(key in takes, f"the optimiser '{name}' has no {key.replace('_', ' ')}; leave --{option} {value:g} out")
    grouped = [group for group in params if isinstance(group, dict)]
    for key, value in options.items():
        check(
            not grouped or any(key not in group for group in grouped),
            f"--{key.replace('_', '-')} {value:g} would change nothing, since every group of '{config.task}' has its "
            f"own {key}; leave it out",
        )
    for group in grouped:
        for key in group.keys() - takes.keys() - {"params"}:
            unknown(f"option of the optimiser '{name}'", key, [k for k in takes if k != "params"])
    return _make(name, params, config.lr, **options)


def _make(name: str, params: list[Any], lr: float, **options: Any) -> Optimizer:
    kind, usual = KNOWN.get(name, (name, {}))
    cls: Callable[..., Optimizer] = CLASSES[kind]
    return cls(params, lr=lr, **{**usual, **options})
