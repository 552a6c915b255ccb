"""A task's own figures of the test data: functions, and objects that gather states, such as those of torchmetrics."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from manyhands.comm import Comm
from manyhands.errors import UserError, check, kind_of, listed, unknown
from manyhands.replica.criterion import Criterion
from manyhands.replica.nested import Nested, tensors_in
from manyhands.spec import with_field_docs

Direction = Literal["higher", "lower"]
Figure = Callable[[Any, Any], Any]

LOSS, ACCURACY = "test_loss", "test_accuracy"
"""The figures that need no metric; their names are taken."""
CPU = torch.device("cpu")
MEAN = "dim_zero_mean"
"""Name of torchmetrics' function that joins states by their mean."""


@with_field_docs
@final
@dataclass(frozen=True)
class Metric:
    """A figure of the test data, of which is known whether more of it is better."""

    function: Figure
    """A function (output, target) → the mean of the figure over the rows."""
    better: Direction
    """Which of two values is the better one: `higher` or `lower`."""

    def __post_init__(self) -> None:
        check(
            callable(self.function),
            f"a metric's function must be a function (output, target) → number, got {kind_of(self.function)}",
        )
        check(self.better in ("higher", "lower"), f"better must be 'higher' or 'lower', got {self.better!r}")


@final
class MetricSet:
    """One rank's copies of a task's metrics: those that are means over rows, and those that gather states."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._names = tuple(expanded(metrics))
        self._means: dict[str, Figure] = {}
        self._gathered: dict[str, Any] = {}
        for name, metric in expanded(metrics).items():
            if isinstance(metric, Metric):
                self._means[name] = metric.function
            elif gathers_states(metric):
                _check_joins(name, metric)
                self._gathered[name] = _alone(copy.deepcopy(metric))  # threads share the task
            else:
                self._means[name] = metric

    @property
    def of_rows(self) -> tuple[str, ...]:
        """Names of the metrics that are means over rows."""
        return tuple(self._means)

    def means(self, output: Nested, target: Nested) -> list[float]:
        """Return the mean of each function over the rows of a chunk."""
        return [_number(name, _called(name, f, output, target)) for name, f in self._means.items()]

    def states(self, chunk: int, output: Nested, target: Nested) -> dict[str, Tensor]:
        """Return the states that the rows of a chunk give, by chunk, metric, state and place in a list."""
        tensors: dict[str, Tensor] = {}
        for i, (name, metric) in enumerate(self._gathered.items()):
            _move(metric, next((t.device for t in tensors_in(output)), CPU))
            _called(name, metric.reset)
            _called(name, metric.update, output, target)
            for key in metric._reductions:
                tensors |= _state(name, f"{chunk}/{i}/{key}", getattr(metric, key))
        return tensors

    def values(self, means: Sequence[float], states: Mapping[str, Tensor], rows: Sequence[int]) -> dict[str, float]:
        """Return every metric by its name, from the means over all rows and all chunks' states.

        `rows` has the number of rows of each chunk.
        """
        values = dict(zip(self._means, means, strict=True))
        for i, (name, metric) in enumerate(self._gathered.items()):
            _move(metric, CPU)
            _called(name, metric.reset)
            for key, reduction in metric._reductions.items():
                is_list = isinstance(getattr(metric, key), list)
                parts = [_parts(states, f"{chunk}/{i}/{key}", is_list=is_list) for chunk in range(len(rows))]
                setattr(metric, key, _called(name, _joined, parts, reduction, rows, is_list))
            metric._update_count = len(rows)  # or some ranks would be warned that there is nothing to compute
            metric._computed = None
            values[name] = _number(name, _called(name, metric.compute))
        return {name: values[name] for name in self._names}

    def gather(self, comm: Comm, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the states of all ranks' chunks."""
        if not self._gathered:
            return {}
        raw = torch.frombuffer(bytearray(save(dict(states))), dtype=torch.uint8)
        lengths = comm.all_gather(torch.tensor([len(raw)])).flatten().tolist()
        padded = torch.zeros(max(lengths), dtype=torch.uint8)
        padded[: len(raw)] = raw
        rows = comm.all_gather(padded)
        joined: dict[str, Tensor] = {}
        for row, length in zip(rows, lengths, strict=True):
            joined |= load(row[:length].numpy().tobytes())
        return joined


def expanded(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics by name, with those of a collection one by one as `collection.name`."""
    flat: dict[str, Any] = {}
    for name, metric in metrics.items():
        if _is_collection(metric):
            flat |= {f"{name}.{key}": part for key, part in metric.items()}
        else:
            flat[name] = metric
    return flat


def gathers_states(metric: object) -> bool:
    """Tell whether an object is a metric of the kind that torchmetrics has."""
    return all(hasattr(metric, name) for name in ("update", "compute", "reset", "_reductions"))


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Refuse what is no metric, and names that are taken."""
    check(
        isinstance(metrics, Mapping),
        f"metrics must be a dict of names and functions (output, target) → mean over the rows, got {kind_of(metrics)}",
    )
    for name, metric in metrics.items():
        check(isinstance(name, str) and name != "", f"the name of a metric must be a text, got {name!r}")
        check(name not in (LOSS, ACCURACY), f"a metric cannot be named '{name}', which runs have anyway; rename it")
        usable = callable(metric) or isinstance(metric, Metric) or gathers_states(metric) or _is_collection(metric)
        check(not isinstance(metric, type), f"metric '{name}' is a class; give an instance of it")
        check(
            usable,
            f"metric '{name}' must be a function (output, target) → mean over the rows, a manyhands.Metric or a "
            f"torchmetrics object, got {kind_of(metric)}",
        )


def try_metrics(metrics: Mapping[str, Any], output: Nested, target: Nested) -> None:
    """Compute every metric of a few rows once; refuse one that raises or that returns no number."""
    tried = MetricSet(metrics)
    tried.values(tried.means(output, target), tried.states(0, output, target), [1])


def means_accuracy(criterion: Criterion, classes: int, output: Nested, target: Nested) -> bool:
    """Tell whether the share of hits means something: targets are classes, and outputs have one column for each."""
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return False
    if target.is_floating_point() or output.dim() != target.dim() + 1 or len(output) != len(target):
        return False
    if criterion.of_classes:
        return output.shape[2:] == target.shape[1:]  # of a sequence or an image, a class for each place
    return target.dim() == 1 and target.dtype == torch.int64 and 0 < classes <= output.shape[1]


def check_monitored(name: str, metrics: Mapping[str, Any], *, accuracy: bool) -> None:
    """Refuse to monitor a figure that the task does not have."""
    allowed = [LOSS, *([ACCURACY] if accuracy else []), *expanded(metrics)]
    check(
        name != ACCURACY or accuracy,
        f"--monitor test_accuracy, but the targets of this task are no classes; choose from: {listed(allowed)}",
    )
    if name not in allowed:
        unknown("figure to monitor named", name, allowed)


def direction_of(name: str, metrics: Mapping[str, Any]) -> Direction:
    """Return which of two values of a figure is better; refuse a metric of which that is not known."""
    direction = known_direction(name, metrics)
    if direction is None:
        raise UserError(
            f"it is not known whether a higher or a lower '{name}' is better; "
            f'write metrics={{"{name}": manyhands.Metric(…, better="lower")}}, or "higher"'
        )
    return direction


def known_direction(name: str, metrics: Mapping[str, Any]) -> Direction | None:
    """Return which of two values of a figure is better; None where a metric does not say it."""
    if name in (LOSS, ACCURACY):
        return "lower" if name == LOSS else "higher"
    metric = expanded(metrics)[name]
    if isinstance(metric, Metric):
        return metric.better
    higher = getattr(metric, "higher_is_better", None)
    return ("higher" if higher else "lower") if isinstance(higher, bool) else None


def _is_collection(metric: object) -> bool:
    """Tell whether an object is a collection of metrics, as torchmetrics has them."""
    parts = ("update", "compute", "reset", "items")
    return not hasattr(metric, "_reductions") and all(hasattr(metric, name) for name in parts)


def _check_joins(name: str, metric: Any) -> None:
    """Refuse a metric whose states lie in other metrics inside it, where they would not be joined."""
    inner = [m for m in metric.modules() if m is not metric] if isinstance(metric, nn.Module) else []
    check(
        bool(metric._reductions) and not any(gathers_states(m) for m in inner),
        f"metric '{name}', a {type(metric).__name__}, keeps its states in other metrics, which cannot be joined over "
        "workers; give those metrics themselves",
    )


def _alone(metric: Any) -> Any:
    """Keep a metric from joining its states itself, where torch's own process group runs."""
    metric._to_sync = False
    return metric


def _move(metric: Any, device: torch.device) -> None:
    if isinstance(metric, nn.Module):
        metric.to(device)


def _called(name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except UserError:
        raise
    except Exception as error:
        says = str(error).strip().split("\n")[0] or type(error).__name__
        raise UserError(f"metric '{name}' failed: {says}") from error


def _number(name: str, value: Any) -> float:
    """Return a metric's value as a float; refuse what is no single number."""
    is_tensor = isinstance(value, Tensor)
    if is_tensor and value.numel() == 1 and not value.is_complex():
        return float(value)
    try:
        if not is_tensor and not isinstance(value, str):
            return float(value)
    except (TypeError, ValueError):
        pass
    returned = f"a tensor of shape {tuple(value.shape)}" if is_tensor else kind_of(value)
    raise UserError(f"metric '{name}' returned {returned}; it must be one number, the mean over the rows")


def _state(name: str, key: str, value: Any) -> dict[str, Tensor]:
    """Return a state's tensors by their keys; a list has one for each place."""
    parts = value if isinstance(value, list) else [value]
    check(
        all(isinstance(part, Tensor) for part in parts),
        f"metric '{name}' keeps a state that is no tensor, which cannot be joined over workers",
    )
    return {f"{key}/{i}": part.detach().cpu().contiguous().clone() for i, part in enumerate(parts)}


def _parts(states: Mapping[str, Tensor], key: str, *, is_list: bool) -> list[Tensor]:
    """Return the tensors of a chunk's state, in their order."""
    if not is_list:
        return [states[f"{key}/0"]]
    parts: list[Tensor] = []
    while (part := states.get(f"{key}/{len(parts)}")) is not None:
        parts.append(part)
    return parts


def _joined(parts: Iterable[list[Tensor]], reduction: Any, rows: Sequence[int], is_list: bool) -> Any:
    """Join a state of all chunks as torchmetrics joins those of processes: stacked, or lists one behind the other."""
    flat = [t for part in parts for t in part]
    if is_list:
        return reduction(flat) if reduction is not None and flat else flat
    stacked = torch.stack(flat)
    if getattr(reduction, "__name__", "") == MEAN:  # chunks have different numbers of rows
        weights = torch.tensor(rows, dtype=torch.float64).view(-1, *[1] * (stacked.dim() - 1))
        return ((stacked.double() * weights).sum(0) / weights.sum()).to(stacked.dtype)
    return stacked if reduction is None else reduction(stacked)
