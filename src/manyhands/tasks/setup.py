"""Load the data of a task, and build a replica of its network from the seed."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from manyhands import sync
from manyhands.config import RunConfig
from manyhands.data import Dataset, SampleSplit, Split, as_dataset, load
from manyhands.data.checks import check_finite, check_labels
from manyhands.errors import TaskFileFailed, UserError, check
from manyhands.replica import Replica, build
from manyhands.replica.criterion import Criterion, as_criterion
from manyhands.replica.elementwise import with_grain
from manyhands.replica.nested import moved
from manyhands.replica.optimizer.groups import ELEMENTS, OptimizerRecipe
from manyhands.replica.optimizer.naming import named_groups
from manyhands.replica.precision import SHORT
from manyhands.replica.stacked import Stack, stack
from manyhands.tasks.base import Task
from manyhands.tasks.init import take_weights
from manyhands.tasks.optimizers import grain_of
from manyhands.tasks.seeding import DATA, seeded


def is_cpu(device: str) -> bool:
    """Tell whether the setting `device` means the CPU on this host."""
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())


def device_of(config: RunConfig, rank: int) -> torch.device:
    """Return the rank's device; ranks on one host take its GPUs in turn."""
    if is_cpu(config.device):
        return torch.device("cpu")
    check(torch.cuda.is_available(), "--device cuda, but torch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda", rank % torch.cuda.device_count())


def trial_device(config: RunConfig) -> torch.device:
    """Return the device for a trial step in this process: rank 0's, or the CPU where only a Ray cluster has GPUs."""
    if config.engine == "ray" and not torch.cuda.is_available():
        return torch.device("cpu")
    return device_of(config, 0)


def load_data(task: Task, config: RunConfig, *, scan: bool = False) -> Dataset:
    """Return the config's data, or the task's own; with `scan` all of it is searched for bad labels and NaNs."""
    source = config.data or task.data
    if isinstance(source, str):
        data = load(source, image_size=config.image_size or None, replicate=config.replicate, scan=scan)
        if scan:
            check_labels(data)
        return _drawing(data, config)
    check(config.image_size == 0, "image-size works with the built-in data sources only")
    check(config.replicate == 1, "replicate works with the built-in data sources only")
    data = _drawing(_given(source, config), config)
    if scan:
        check_labels(data)
        check_finite(data)
    return data


def _drawing(data: Dataset, config: RunConfig) -> Dataset:
    """Return the data with samples that draw by the run's seed when they are read."""
    train, test = (
        replace(split, seed=config.seed) if isinstance(split, SampleSplit) else split
        for split in (data.train, data.test)
    )
    return replace(data, train=train, test=test)


def _given(source: Any, config: RunConfig) -> Dataset:
    """Return a task's own data; a function is called with seeded generators, to draw the same on every rank."""
    name = Path(config.task.rpartition(":")[0] or config.task).stem
    try:
        with seeded(config.seed, DATA):
            given = source() if callable(source) and not isinstance(source, Dataset) else source
            return load(given, scan=False) if isinstance(given, str) else as_dataset(given, name)
    except UserError:
        raise
    except MemoryError as error:
        raise TaskFileFailed(f"the data of '{config.task}' does not fit into memory") from error
    except Exception as error:
        raise TaskFileFailed(f"the data function of '{config.task}' failed: {error!r}") from error


def make_network(task: Task, config: RunConfig, data: Dataset) -> nn.Module:
    """Make the network, with the initial weights of the config's file where it names one."""
    module = task.make_model(data)
    if config.init:
        take_weights(module, config.init)
    return module


def without_init(config: RunConfig) -> RunConfig:
    """Return the config for a network whose weights a checkpoint replaces: the file of the first ones may be gone."""
    return config.model_copy(update={"init": ""})


def make_replica(task: Task, config: RunConfig, data: Dataset, device: torch.device) -> Replica:
    """Build the network from the seed, and return a replica of it on `device`.

    A strategy that is not exact has workers who step alone: their BatchNorm layers normalise over their own slices.
    """
    dtype = getattr(torch, config.dtype)
    with seeded(config.seed):
        sample, targets = data.train.batch(slice(0, min(2, len(data.train))), dtype)
        module = make_network(task, config, data)
        return build(
            module,
            moved(sample, device),
            criterion_of(task, module),
            recipe_of(task, config, module),
            device=device,
            dtype=dtype,
            fuse=config.fuse and data.classes > 0 and isinstance(sample, Tensor),
            precision=config.precision,
            global_norms=config.batchnorm == "global" and sync.make(config.sync).exact,
            targets=moved(targets, device),
        )


def can_stack(data: Dataset) -> bool:
    """Tell whether several networks can get different rows of the data at once: arrays of one input and one label."""
    split = data.train
    return isinstance(split, Split) and isinstance(split.x, Tensor) and split.labels is not None and data.classes > 0


def make_stack(
    task: Task, config: RunConfig, data: Dataset, device: torch.device, parts: Iterable[Dataset]
) -> Stack | None:
    """Build a network from the seed for each of `parts` of the data, and stack them; None if they cannot be stacked."""
    if not can_stack(data) or not passes_alike(task, config):
        return None
    dtype, modules = getattr(torch, config.dtype), []
    for part in parts:
        with seeded(config.seed):
            modules.append(make_network(task, config, part))
    if not steps_alike(task, config, modules[0], device):
        return None
    sample, _ = data.train.batch(slice(0, min(2, len(data.train))), dtype)
    return stack(
        modules,
        moved(sample, device),
        criterion_of(task, modules[0]),
        lambda params: task.make_optimizer(params, config),
        device=device,
        dtype=dtype,
        fuse=config.fuse and data.classes > 0 and isinstance(sample, Tensor),
    )


def recipe_of(task: Task, config: RunConfig, module: nn.Module) -> OptimizerRecipe:
    """Return how the run updates the weights of a network."""
    return OptimizerRecipe(
        lambda params: task.make_optimizer(params, config),
        task=config.task,
        groups=named_groups(task.param_groups, config.task, module),
        clip=config.clip,
        scheduler=task.scheduler,
        every=task.scheduler_every,
        grain=grain_of(task.optimizer_name(config)),
    )


def passes_alike(task: Task, config: RunConfig) -> bool:
    """Tell whether one pass may compute several networks: in full precision, with a mean of losses of single rows."""
    plain_mean = task.reduction == "mean" and task.loss_weight is None and not task.loss_takes_network
    return plain_mean and config.precision not in SHORT


def steps_alike(task: Task, config: RunConfig, module: nn.Module, device: torch.device) -> bool:
    """Tell whether one optimiser without groups and schedulers may step the weights of several networks at once."""
    if task.param_groups is not None or task.scheduler is not None or config.clip:
        return False
    return with_grain(recipe_of(task, config, module), (), device).grain == ELEMENTS


def criterion_of(task: Task, module: nn.Module) -> Criterion:
    """Return the task's loss; one that takes a third argument gets the network."""
    if isinstance(task.loss, str):
        return as_criterion(task.loss)
    return Criterion(task.loss_with(module), reduction=task.reduction, weight=task.loss_weight)
