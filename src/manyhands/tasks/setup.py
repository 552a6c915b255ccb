"""Make what a rank needs to train: the data, and a replica with the weights that the seed decides."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from manyhands.config import RunConfig
from manyhands.data import Dataset, load
from manyhands.data.checks import check_finite, check_labels
from manyhands.errors import UserError, check
from manyhands.replica import Replica, build
from manyhands.replica.base import Loss
from manyhands.replica.build import LOSSES
from manyhands.tasks.base import Task
from manyhands.tasks.load import TaskFileFailed

# The initial weights are drawn from torch's process-wide generator, which threads share.
_SEEDING = threading.Lock()


def is_cpu(device: str) -> bool:
    """Tell whether this choice of device means the CPU here."""
    return device == "cpu" or (device == "auto" and not torch.cuda.is_available())


def device_of(config: RunConfig, rank: int) -> torch.device:
    """Return the rank's device; ranks on one host take its GPUs in turn."""
    if is_cpu(config.device):
        return torch.device("cpu")
    check(torch.cuda.is_available(), "--device cuda, but torch sees no GPU here; use --device cpu or auto")
    return torch.device("cuda", rank % torch.cuda.device_count())


def trial_device(config: RunConfig) -> torch.device:
    """Return where this process may try a step: as rank 0, or on the CPU where only a Ray elsewhere has GPUs."""
    if config.engine == "ray" and not torch.cuda.is_available():
        return torch.device("cpu")
    return device_of(config, 0)


def load_data(task: Task, config: RunConfig, *, scan: bool = False) -> Dataset:
    """Load the config's data, or the task's own; `scan` looks for a NaN in all of it."""
    source = config.data or task.data
    if isinstance(source, str):
        return load(source, image_size=config.image_size or None, replicate=config.replicate, scan=scan)
    check(config.image_size == 0, "image-size works with the built-in data sources only")
    check(config.replicate == 1, "replicate works with the built-in data sources only")
    try:
        data = source()
    except UserError:
        raise
    except Exception as error:
        raise TaskFileFailed(f"the data function of '{config.task}' failed: {error!r}") from error
    check(isinstance(data, Dataset), f"the task's data function returned a {type(data).__name__}, not a Dataset")
    if scan:
        check_labels(data)
        check_finite(data)
    return data


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from the seed in here, and leave the process-wide generator as it was."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make_replica(task: Task, config: RunConfig, data: Dataset, device: torch.device) -> Replica:
    """Build the network from the seed and wrap it."""
    dtype = getattr(torch, config.dtype)
    with seeded(config.seed):
        sample, _ = data.train.batch(slice(0, min(2, len(data.train))), dtype)
        return build(
            task.model(data),
            sample.to(device),
            task.loss,
            lambda params: task.make_optimizer(params, config.lr),
            device=device,
            dtype=dtype,
            fuse=config.fuse,
        )


def loss_of(task: Task) -> Loss:
    """Return the task's loss as a function."""
    return LOSSES[task.loss] if isinstance(task.loss, str) else task.loss
