"""A task: what is learned, and the settings it is learned with unless the user gives others."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from manyhands.config import Precision, RunConfig
from manyhands.data import Dataset
from manyhands.errors import check, kind_of, unknown
from manyhands.replica.criterion import LOSSES, Loss
from manyhands.spec import with_field_docs
from manyhands.tasks.metrics import check_metrics
from manyhands.tasks.optimizers import check_name, make_named

GPU_ROWS = 16
"""How many times the rows of a CPU's `micro_batch` a GPU takes at once."""

FULL: Literal["full"] = "full"


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class Task:
    """A network with its data, loss and optimiser, and the settings that a run has unless the user gives others."""

    model: nn.Module | Callable[[Dataset], nn.Module]
    """A function that makes the network, to which the data's `shape` and `classes` tell its sizes; or the network
    itself, of which each replica is a deep copy: its initial weights are the same on every rank, and for every seed."""
    data: Any = "mnist"
    """A data spec such as `npz:digits.npz`; a `Dataset`; a pair (train, test) of torch Datasets, DataLoaders or pairs
    of arrays; a pair of arrays (X, y); or a function that returns one of these. All ranks must get the same data: what
    it draws from the process-wide generators of Python, numpy and torch is seeded, a `numpy.random.default_rng()` needs
    a seed of its own."""
    loss: str | Callable[..., Tensor] = "cross-entropy"
    """A name, or a function (output, target) → loss of the batch; one that needs a third argument gets the network."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether an own loss is the mean over its rows, or their sum."""
    loss_weight: Callable[[Any], Tensor] | None = None
    """A function (target) → the total weight of the batch's rows, of an own loss that is their weighted mean: with
    class weights `lambda y: weights[y].sum()`, with padding `lambda y: (y != -100).sum()`."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Further figures of the test data by name: functions (output, target) → their mean over the rows,
    `manyhands.Metric`, or torchmetrics objects."""
    optimizer: str | Callable[..., Optimizer] = "sgd"
    """A name such as sgd, momentum, adam, adamw, rmsprop or another of torch.optim, or a function (parameters, learning
    rate) → a torch optimiser; the parameters are groups if `param_groups` makes some."""
    param_groups: Callable[[nn.Module], list[dict[str, Any]]] | None = None
    """A function (network) → groups of its parameters with options of their own, as torch's optimisers take them:
    `[{"params": [...], "weight_decay": 0.1}, {"params": [...], "from_epoch": 2}]`; a group is frozen before the epoch
    `from_epoch`, which counts from 0."""
    clip_norm: float = 0.0
    """Largest norm of the gradient of the global batch over all parameters; larger ones are scaled down; 0 for none."""
    scheduler: Callable[[Optimizer], Any] | None = None
    """A function (optimiser) → any of torch's learning-rate schedulers, such as `lambda o: StepLR(o, 5, 0.7)`."""
    scheduler_every: Literal["step", "epoch"] = "step"
    """When the scheduler steps: after every step, or after every epoch."""
    ema: float = 0.0
    """Decay of an average of the weights over the steps, such as 0.999, which is then tested and stored; 0 for none."""
    lr: float = 0.01
    """Learning rate."""
    batch_size: int | Literal["full"] = 64
    """Global batch size; `full` for all samples at once."""
    epochs: int = 1
    """Passes over the training data."""
    micro_batch: int = 0
    """Rows computed at once on a CPU, to stay in cache and bound memory (a GPU takes 16 times as many); 0 for all."""
    top: int = 1
    """How many best guesses count: a sample is a hit when its label is among them."""
    eval_every: int = 1
    """Epochs between two evaluations on the test data."""
    monitor: str = "test_loss"
    """The figure that early stopping and the best weights look at: test_loss, test_accuracy or a metric's name."""
    precision: Precision = "fp32"
    """Number type of the network's products: fp32, tf32, bf16 or fp16; the weights stay as they are."""
    batchnorm: Literal["global", "local"] = "global"
    """Rows that BatchNorm layers normalise over: the whole global batch, or a worker's share of it."""
    init: str = ""
    """Weights to begin with: a safetensors file, or a run."""
    data_workers: int = 0
    """Processes of each worker that read samples ahead, of data that is read sample by sample; 0 for none."""
    replicate: int = 1
    """How often the training data is repeated."""
    name: str = ""
    """Its name in tables; the file's or variable's name if empty."""

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            unknown("loss", self.loss, LOSSES)
        if isinstance(self.optimizer, str):
            check_name(self.optimizer)
        check(
            callable(self.model),
            f"model must be an nn.Module, or a function that takes the data and returns one, got {kind_of(self.model)}",
        )
        check(
            isinstance(self.data, str | Dataset) or callable(self.data) or hasattr(self.data, "__len__"),
            "data must be a data spec such as 'mnist', a manyhands.Dataset, a pair (train, test) of torch Datasets or "
            f"arrays, or a function that returns one, got {kind_of(self.data)}",
        )
        check(
            isinstance(self.loss, str) or callable(self.loss),
            f"loss must be a name, or a function (output, target) → mean loss, got {kind_of(self.loss)}",
        )
        check(
            callable(self.loss) or (self.reduction == "mean" and self.loss_weight is None),
            f"reduction and loss_weight say what an own loss is, but loss={self.loss!r} is a name; give a function, "
            "such as torch.nn.functional.cross_entropy",
        )
        check(self.reduction in ("mean", "sum"), f"reduction must be 'mean' or 'sum', got {self.reduction!r}")
        check(
            self.loss_weight is None or self.reduction == "mean",
            'loss_weight is for a weighted mean, and reduction="sum" says that the loss is a sum; give one of them',
        )
        check(
            self.loss_weight is None or callable(self.loss_weight),
            f"loss_weight must be a function (target) → weight of the batch's rows, got {kind_of(self.loss_weight)}",
        )
        reduces = getattr(self.loss, "reduction", "")
        check(
            reduces not in ("mean", "sum") or reduces == self.reduction,
            f"loss is a {type(self.loss).__name__} with reduction={reduces!r}, but the task says {self.reduction!r}; "
            f"add reduction={reduces!r} to the Task",
        )
        check(
            self.scheduler is None or callable(self.scheduler),
            f"scheduler must be a function (optimiser) → a scheduler of torch, got {kind_of(self.scheduler)}; write "
            "scheduler=lambda optimizer: StepLR(optimizer, 5)",
        )
        check(
            self.scheduler_every in ("step", "epoch"),
            f"scheduler_every must be 'step' or 'epoch', got {self.scheduler_every!r}",
        )
        check(
            self.param_groups is None or callable(self.param_groups),
            "param_groups must be a function (network) → a list of groups, such as "
            f"lambda model: [{{'params': model.parameters()}}], got {kind_of(self.param_groups)}",
        )
        check(
            isinstance(self.optimizer, str) or callable(self.optimizer),
            "optimizer must be a name, or a function (parameters, learning rate) → optimiser, "
            f"got {kind_of(self.optimizer)}",
        )

        check_metrics(self.metrics)
        check(0 <= self.ema < 1, f"ema must be at least 0 and less than 1, such as 0.999, got {self.ema}")

    @property
    def loss_takes_network(self) -> bool:
        """Whether the loss is a function that needs a third argument: the network."""
        if isinstance(self.loss, str):
            return False
        try:
            signature = inspect.signature(self.loss)
            signature.bind("output", "target", "model")
        except (TypeError, ValueError):  # some functions written in C have no signature
            return False
        try:
            signature.bind("output", "target")
        except TypeError:
            return True
        return False

    def loss_with(self, module: nn.Module) -> Loss:
        """Return the own loss as a function of output and target; one of three arguments gets `module` as well."""
        loss = self.loss
        assert callable(loss)
        return (lambda output, target: loss(output, target, module)) if self.loss_takes_network else loss

    def make_model(self, data: Dataset) -> nn.Module:
        """Return a new network, for one replica."""
        module = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model(data)
        check(
            isinstance(module, nn.Module),
            f"model must be an nn.Module, or a function that takes the data and returns one, "
            f"but it returned {kind_of(module)}",
        )
        return module

    def optimizer_name(self, config: RunConfig) -> str:
        """Return the name of the run's optimiser; empty where the task has a function of its own."""
        return config.optimizer or (self.optimizer if isinstance(self.optimizer, str) else "")

    def make_optimizer(self, params: list[Any], config: RunConfig) -> Optimizer:
        """Return a new optimiser of `params`, tensors or groups, with the settings of a run."""
        if name := self.optimizer_name(config):
            return make_named(name, params, config)
        assert callable(self.optimizer)
        for option, value in (("weight-decay", config.weight_decay), ("momentum", config.momentum)):
            check(
                not value,
                f"--{option} {value:g} cannot change the optimiser of '{config.task}', which is a function of its own; "
                f"write it there, or give --optimizer as well, such as --optimizer sgd --{option} {value:g}",
            )
        return self.optimizer(params, config.lr)
