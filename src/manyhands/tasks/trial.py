"""Try each part of a task on two samples, and say which of them failed: the model, the loss or the optimiser."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from manyhands.config import RunConfig
from manyhands.data import Dataset, SampleSplit
from manyhands.errors import ManyhandsError, TaskFileFailed, UserError, check, kind_of, shown
from manyhands.replica.criterion import OF_CLASSES, Criterion
from manyhands.replica.nested import Nested, call, map_tensors, moved, set_training, tensors_in
from manyhands.replica.optimizer.groups import NamedGroup, OptimizerRecipe
from manyhands.replica.update import stepper
from manyhands.tasks.base import Task
from manyhands.tasks.metrics import check_monitored, direction_of, means_accuracy, try_metrics
from manyhands.tasks.optimizers import OF_MATRICES
from manyhands.tasks.seeding import seeded
from manyhands.tasks.setup import criterion_of, recipe_of

ROWS = 2
BROADCAST = "Using a target size"
"""Beginning of torch's warning that a loss pairs every output with every label."""


def try_parts(task: Task, config: RunConfig, data: Dataset, device: torch.device) -> None:
    """Make the model, pass two samples forward and backward, and step a few weights; refuse a part that fails."""
    dtype = getattr(torch, config.dtype)
    rows = ROWS + (data.classes == ROWS)  # labels broadcast over the outputs would fit as many rows as classes
    rows = min(rows, len(data.train))
    x, y = (moved(part, device) for part in data.train.batch(slice(0, rows), dtype))
    with seeded(config.seed):
        _check_classes(task, y, config, data)
        module = _model(task, config, data, device, dtype)
        out = _output(module, x, rows, task, config, data)
        loss = _loss(task, module, out, y, config, data)
        if isinstance(data.test, SampleSplit):
            _try_test_sample(module, data.test, config, device, dtype)
        _try_metrics(task, module, config, data, map_tensors(Tensor.detach, out), y)
        with saying("the backward pass failed", config):
            loss.backward()  # type: ignore[no-untyped-call]
        _try_optimizer(task, config, module)


@contextmanager
def saying(what: str, config: RunConfig) -> Iterator[None]:
    """Turn an exception raised inside into one sentence; the traceback of a user's own task file is shown too."""
    try:
        yield
    except ManyhandsError:
        raise
    except Exception as error:
        says = str(error).strip().split("\n")[0] or type(error).__name__
        kind = TaskFileFailed if ".py" in config.task else UserError
        raise kind(f"task '{config.task}': {what}: {says}") from error


def _check_takes(function: Callable[..., object], what: str, arguments: str, config: RunConfig) -> None:
    """Refuse a function that cannot be called with `arguments`, such as `data` or `params, lr`."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return
    try:
        signature.bind(*arguments.split(", "))
    except TypeError:
        raise UserError(
            f"the {what} function of '{config.task}' takes {signature}, but it is called with ({arguments})"
        ) from None


def _model(task: Task, config: RunConfig, data: Dataset, device: torch.device, dtype: torch.dtype) -> nn.Module:
    what = f"making the model for samples of shape {data.shape} and {data.classes} classes failed"
    if isinstance(task.model, type):
        what += (
            f" ({task.model.__name__} is called with the data; if it takes none, give model={task.model.__name__}())"
        )
    elif not isinstance(task.model, nn.Module):
        _check_takes(task.model, "model", "data", config)
    with saying(what, config):
        module = set_training(task.make_model(data).to(device=device, dtype=dtype))
    check(
        any(p.requires_grad for p in module.parameters()),
        f"the model of '{config.task}' has no trainable parameters",
    )
    return module


def _output(module: nn.Module, x: Nested, rows: int, task: Task, config: RunConfig, data: Dataset) -> Nested:
    with saying(f"the model does not take samples of shape {_shapes(x, rows)}", config):
        out = call(module, x)
    if callable(task.loss):  # which gets whatever the model returns
        has_output = any(True for _ in tensors_in(out))
        check(has_output, f"the model of '{config.task}' returned {kind_of(out)}, in which there is no tensor")
        return out
    check(
        isinstance(out, Tensor),
        f"the model of '{config.task}' returned {kind_of(out)}, not a tensor; "
        "its forward must return the outputs alone, a row for each sample",
    )
    of_classes = task.loss in OF_CLASSES and data.classes > 0
    check(
        len(out) == rows and (out.ndim == 2 or not of_classes) if out.ndim else False,
        f"the model of '{config.task}' returned a tensor of shape {tuple(out.shape)} for {rows} samples; "
        f"it must have a row for each sample{', and a column for each class' if of_classes else ''}",
    )
    check(
        not of_classes or out.shape[1] >= data.classes,  # or a later batch, with the last class, would fail
        f"the model of '{config.task}' has {out.shape[1] if out.ndim > 1 else 1} outputs, "
        f"but {data.name} has {data.classes} classes",
    )
    return out


def _try_test_sample(
    module: nn.Module, split: SampleSplit, config: RunConfig, device: torch.device, dtype: torch.dtype
) -> None:
    """Pass a test sample, which may have another shape than those to train on."""
    x, _ = split.batch(slice(0, 1), dtype)
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    with saying(f"the model does not take test samples of shape {_shapes(x, 1)}", config), torch.no_grad():
        call(module, moved(x, device))
    for layer, training in modes:
        layer.training = training


def _shapes(nested: Nested, rows: int | None = None) -> str:
    """Return the shape of a tensor in words, or of each in a nest; of `rows` samples, that of one."""

    def shape_of(t: Tensor) -> tuple[int, ...]:
        return tuple(t.shape[1:] if rows is not None and t.dim() and len(t) == rows else t.shape)

    return str(map_tensors(shape_of, nested))


def _kind(y: Nested) -> str:
    """Return in words what targets are, that are no tensor."""
    first = y[0] if isinstance(y, tuple | list) and y else y
    return f"texts, such as {shown(first)}; give their numbers" if isinstance(first, str) else kind_of(y)


def _check_classes(task: Task, y: Nested, config: RunConfig, data: Dataset) -> None:
    """Refuse one fraction a row, and a column of classes, as the target of a loss of classes."""
    single = isinstance(y, Tensor) and y.numel() == len(y)
    check(
        not (single and y.is_floating_point() and task.loss in OF_CLASSES),
        f"the loss '{task.loss}' of '{config.task}' needs classes, but the targets of {data.name} are fractions; "
        "a task of your own with loss='mse' learns these",
    )
    check(
        not (single and y.ndim > 1 and task.loss in OF_CLASSES),
        f"the targets of {data.name} have the shape {tuple(y.shape[1:]) if single else ()} a row, but the loss "
        f"'{task.loss}' of '{config.task}' takes one class a row: give them one dimension, such as y[:, 0]",
    )


def _check_targets(criterion: Criterion, out: Nested, y: Nested, config: RunConfig, data: Dataset) -> None:
    """Refuse a class that the model has no output for."""
    if not means_accuracy(criterion, data.classes, out, y):
        return
    most = int(y.max())
    unknown = (
        f"; {data.name} does not tell its classes, so that data.classes is 0: give its datasets `labels`, or write "
        f"manyhands.Dataset(name, SampleSplit(train), SampleSplit(test), classes=…)"
    )
    check(
        most < out.shape[1],
        f"the model of '{config.task}' has {out.shape[1]} outputs, but a sample is of class {most}"
        f"{'' if data.classes else unknown}",
    )


def _loss(task: Task, module: nn.Module, out: Nested, y: Nested, config: RunConfig, data: Dataset) -> Tensor:
    if isinstance(task.loss, str) and not isinstance(y, Tensor):
        raise UserError(f"the loss '{task.loss}' takes one tensor of targets, but those of {data.name} are {_kind(y)}")
    _check_targets(criterion_of(task, module), out, y, config, data)
    shapes = f"outputs of shape {_shapes(out)} and labels of shape {_shapes(y)}"
    what = f"the loss of {shapes} failed"
    if isinstance(task.loss, type):
        what += f" (give an instance, loss={task.loss.__name__}())"
    elif callable(task.loss):
        _check_takes(task.loss_with(module), "loss", "output, target", config)
    with saying(what, config), warnings.catch_warnings():
        warnings.filterwarnings("error", BROADCAST)
        loss = criterion_of(task, module).loss(out, y)
    check(isinstance(loss, Tensor), f"the loss of '{config.task}' returned {kind_of(loss)}, not a tensor")
    check(
        loss.ndim == 0,
        f"the loss of '{config.task}' returned a tensor of shape {tuple(loss.shape)}; "
        "it must be one number, the mean over the rows",
    )
    check(
        loss.requires_grad,
        f"the loss of '{config.task}' has no gradient: it must be computed from the outputs by torch, "
        "without detach() or no_grad()",
    )
    return loss


def _try_metrics(task: Task, module: nn.Module, config: RunConfig, data: Dataset, out: Nested, y: Nested) -> None:
    """Compute the metrics once, and refuse a monitored figure that the task does not have."""
    with saying("a metric failed", config), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # two samples have too few classes for some metrics
        try_metrics(task.metrics, out, y)
    accuracy = means_accuracy(criterion_of(task, module), data.classes, out, y)
    check_monitored(config.monitor, task.metrics, accuracy=accuracy)
    if config.patience or config.keep_best:
        direction_of(config.monitor, task.metrics)


def _try_optimizer(task: Task, config: RunConfig, module: nn.Module) -> None:
    """Make the run's optimiser for small weights, and a step with it; `check_own_optimizer` tries more."""
    recipe = recipe_of(task, config, module)
    if callable(task.optimizer) and not task.optimizer_name(config):
        _check_takes(task.optimizer, "optimiser", "params, lr", config)
    kind = task.optimizer_name(config)
    for name, p in module.named_parameters() if kind in OF_MATRICES else ():
        check(
            p.dim() == 2 or not p.requires_grad,
            f"the optimiser '{kind}' takes matrices alone, and '{name}' of '{config.task}' has shape {tuple(p.shape)}; "
            "use another one, or a function (parameters, learning rate) that treats them apart",
        )
    with saying("making the optimiser failed", config):
        optimizer = _small_optimizer(recipe, module)
    check(
        isinstance(optimizer, Optimizer),
        f"the optimiser function of '{config.task}' returned {kind_of(optimizer)}, not a torch.optim.Optimizer",
    )
    rates_of_groups = bool(recipe.groups) and all("lr" in group.options for group in recipe.groups)
    check(
        not rates_of_groups or config.lr == task.lr,
        f"--lr {config.lr:g} would change nothing, since every group of '{config.task}' has its own lr; leave it out",
    )
    if task.optimizer_name(config):
        return
    name = f"the optimiser {type(optimizer).__name__} of '{config.task}'"
    # Of the class, since a scheduler puts a function of its own in the place of the instance's method.
    _, *arguments = inspect.signature(type(optimizer).step).parameters.values()
    needed = [p for p in arguments if p.default is p.empty]
    closure = any(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in needed)
    check(
        not closure,
        f"{name} needs a closure that computes the loss again within a step, which "
        "workers that share a batch cannot give it; use one whose step() needs nothing, such as SGD or Adam",
    )
    lower = config.lr / 2 or 0.01
    changed = recipe_of(task, config.model_copy(update={"lr": lower}), module)
    rates, others = (
        [float(group.get("lr", rate)) for group in made.param_groups]
        for made, rate in ((optimizer, config.lr), (_small_optimizer(changed, module), lower))
    )
    same = rates[0]
    check(
        rates_of_groups or rates != others,
        f"{name} has the learning rate {same:g} whichever its function is given, so that --lr would do nothing; "
        f"let the function use its second argument, and say Task(lr={same:g})",
    )
    with saying(f"a step of the optimiser {type(optimizer).__name__} failed", config):
        stepper(optimizer)()


def _small_optimizer(recipe: OptimizerRecipe, module: nn.Module) -> Optimizer:
    """Make the optimiser of weights that are at most 2 long in each dimension, with gradients of 0."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    groups = recipe.groups or (NamedGroup(tuple(named)),)
    tensors = [[named[name].new_zeros([min(2, n) for n in named[name].shape]) for name in g.names] for g in groups]
    for weight in (t for of_group in tensors for t in of_group):
        weight.grad = torch.zeros_like(weight)
    return recipe.optimizer(tensors, groups)
