"""Random numbers that a network draws by torch's functions, and not in a dropout layer, drawn by position too.

Inside `KeyedDraws` these functions take their bits from the pass's `Draws`. Which dimension of a tensor is the batch is
found by two trial passes, the second with a row more: it is the one that grows in proportion. So neither a sequence
before the batch, nor a length that happens to equal the number of rows, is taken for it. Rows in another order, such as
a flattened (length, batch) tensor, have such a dimension too: `training.caveats` compares gradients to find these.
"""

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FrameType, FunctionType
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.overrides import TorchFunctionMode

from manyhands.replica.random import (
    COMMON,
    Draws,
    KeyedDropout,
    Places,
    Shapes,
    dropout_mask,
    kept,
    normal,
    open_uniform,
    uniform,
    wide,
)

TRIAL_SEED = 0


class Unplaced(Exception):
    """A draw cannot be made by position: torch's generator makes it."""


Bits = Callable[[Sequence[int], torch.device], Tensor]
"""Returns hashes of a shape, or raises `Unplaced`."""


@final
class KeyedDraws(TorchFunctionMode):
    """Draw by position in this thread, where torch's functions would draw from its generator."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self._draws = draws

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _OPENED:
            with self:
                return _OPENED[func](*args, **kwargs)
        handler = HANDLERS.get(func)
        if handler is None:
            return func(*args, **kwargs)
        caller = _caller()

        def bits(shape: Sequence[int], device: torch.device) -> Tensor:
            batch_first = args[8:9] if handler is _recurrent else ()  # two layers may differ in it
            site = (func.__name__, caller.f_code.co_filename, caller.f_lineno, *batch_first)
            drawn = self._draws.bits(site, shape, device)
            if drawn is None:
                raise Unplaced
            return drawn

        try:
            return handler(bits, func, *args, **kwargs)
        except Unplaced:
            return func(*args, **kwargs)


_BETWEEN = (__name__, "torch.overrides", "torch.nn.functional", "torch._compile", "torch._dynamo.eval_frame")


@_disable_dynamo
def _caller() -> FrameType:
    """Return the frame of the network's or layer's code that called one of torch's functions."""
    frame = sys._getframe()
    while frame.f_globals.get("__name__") in _BETWEEN:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame


def keyed(draws: Draws) -> AbstractContextManager[object]:
    """Return a context in which a network draws by position; nothing if only its layers draw."""
    return KeyedDraws(draws) if draws.intercepts else nullcontext()


def draws_of(module: nn.Module) -> Draws:
    """Return the draws of the network's dropout layers, or new ones if it has none."""
    return next((layer.draws for layer in module.modules() if isinstance(layer, KeyedDropout)), Draws())


def keyed_whole(key: int) -> KeyedDraws:
    """Return a context in which a network draws by `key` alone, for a pass over a batch that is never cut."""
    draws = Draws()
    draws.whole = True
    draws.at(key, 0, 1)
    return KeyedDraws(draws)


def learn_places(draws: Draws, run: Callable[[Tensor], object], rows: int) -> Places:
    """Return the batch dimensions of all draws of `run`, which makes a pass over rows of a trial batch with `rows`.

    Both passes draw by the number of the draw alone, so that a branch that depends on a draw is the same in both.
    """
    few = _shapes(draws, run, torch.arange(rows))
    if not few:
        return {}
    try:
        more = _shapes(draws, run, torch.arange(rows + 1) % rows)
    except Exception:  # a network may insist on its number of rows: then its draws stay with torch's generator
        more = {}
    return {site: _batch_dim(few.get(site, []), more.get(site, []), rows) for site in few | more}


def _shapes(draws: Draws, run: Callable[[Tensor], object], rows: Tensor) -> Shapes:
    draws.at(TRIAL_SEED, 0, len(rows))
    shapes: Shapes = {}
    draws.shapes = shapes
    try:
        with KeyedDraws(draws):
            run(rows)
    finally:
        draws.shapes = None
    return shapes


def _batch_dim(few: list[tuple[int, ...] | None], more: list[tuple[int, ...] | None], rows: int) -> int | None:
    """Return the dimension in which every shape grows like `rows` to `rows + 1`, and no other does."""
    if len(few) != len(more):
        return None
    dims = {_growing_dim(before, after, rows) for before, after in zip(few, more, strict=True)}
    return dims.pop() if len(dims) == 1 else None


def _growing_dim(few: tuple[int, ...] | None, more: tuple[int, ...] | None, rows: int) -> int | None:
    if few is None or more is None or len(few) != len(more):
        return None
    growing = [dim for dim, (a, b) in enumerate(zip(few, more, strict=True)) if a != b]
    if not growing:
        return COMMON
    dim = growing[0]
    return dim if len(growing) == 1 and few[dim] * (rows + 1) == more[dim] * rows else None


def _dropout(bits: Bits, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    return _dropped(bits, func, input, p, train, tuple(input.shape))


def _feature_dropout(bits: Bits, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
    if input.dim() < 2:
        raise Unplaced  # torch says what is wrong
    return _dropped(bits, func, input, p, train, (*input.shape[:2], *(1 for _ in input.shape[2:])))


def _dropped(bits: Bits, func: Any, input: Tensor, p: float, train: bool, shape: tuple[int, ...]) -> Tensor:
    """Drop elements or channels; the alpha variants keep SELU's mean and variance (Klambauer et al. 2017)."""
    name = func.__name__
    if not train or p == 0 or input.numel() == 0:
        raise Unplaced
    _leave_unless(0 < p <= 1)
    drawn = bits(shape, input.device)
    if "alpha" not in name or p == 1:
        mask, shift = dropout_mask(drawn, p, input.dtype), None
    else:
        a = 1 / math.sqrt((SATURATION**2 * p + 1) * (1 - p))
        keep = kept(drawn, p, input.dtype)
        mask, shift = keep * a, (keep - 1 + p) * (SATURATION * a)
    if name.endswith("_"):
        input.mul_(mask)
        return input if shift is None else input.add_(shift)
    return input * mask if shift is None else input * mask + shift


SATURATION = 1.7580993408473766
"""Minus SELU's limit to the left."""


def _rrelu(
    bits: Bits, func: Any, input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, train: bool = False
) -> Tensor:
    if not train:
        raise Unplaced
    slope = uniform(bits(input.shape, input.device), input.dtype) * (upper - lower) + lower
    factor = torch.where(input > 0, torch.ones_like(slope), slope)
    return input.mul_(factor) if func.__name__.endswith("_") else input * factor


def _attention(
    bits: Bits,
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attend with all weights written out: a fused kernel would draw them itself."""
    if dropout_p == 0 or (is_causal and attn_mask is not None):
        raise Unplaced
    if enable_gqa:
        key, value = (t.repeat_interleave(query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    weights = torch.softmax(scores, -1) if attn_mask is None else _masked_softmax(scores, attn_mask)
    return (weights * dropout_mask(bits(weights.shape, weights.device), dropout_p, weights.dtype)).to(
        value.dtype
    ) @ value


def _masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the weights; a query that may attend to nothing has weights of 0, as in torch's kernels."""
    scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    blank = (scores == -math.inf).all(-1, keepdim=True)
    return torch.softmax(scores.masked_fill(blank, 0), -1).masked_fill(blank, 0)


def _recurrent(bits: Bits, func: Any, input: Tensor, hidden: Any, weights: Any, *rest: Any) -> Any:
    """Run the layers of an LSTM, GRU or RNN one by one, with dropout between them."""
    biases, layers, dropout, train, two_ways, *batch_first = rest
    if not isinstance(biases, bool) or not train or dropout == 0 or layers == 1:
        raise Unplaced  # a packed sequence has its weights in another place: its rows are in the order of their lengths
    per_layer, ways = len(weights) // layers, 2 if two_ways else 1
    ends = []
    for i in range(layers):
        if i:
            input = input * dropout_mask(bits(input.shape, input.device), dropout, input.dtype)
        of_layer = slice(i * ways, (i + 1) * ways)
        start = hidden[of_layer] if isinstance(hidden, Tensor) else tuple(h[of_layer] for h in hidden)
        part = weights[i * per_layer : (i + 1) * per_layer]
        input, *end = func(input, start, part, biases, 1, 0.0, train, two_ways, *batch_first)
        ends.append(end)
    return (input, *(torch.cat(parts) for parts in zip(*ends, strict=True)))


Values = Callable[[Tensor, torch.dtype], Tensor]
"""Returns random numbers of a type, from bits."""


def _new(values: Values) -> Callable[..., Tensor]:
    """Return a handler of a function that makes a tensor of random numbers, such as `torch.rand`."""
    return lambda bits, func, *args, **kwargs: _filled(bits, values, torch.empty, args, kwargs)


def _like(values: Values) -> Callable[..., Tensor]:
    """Return a handler of a function that makes a tensor like another, such as `torch.rand_like`."""
    return lambda bits, func, *args, **kwargs: _filled(bits, values, torch.empty_like, args, kwargs)


def _filled(bits: Bits, values: Values, empty: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
    _check_generator(kwargs)
    options = {name: value for name, value in kwargs.items() if name not in ("generator", "requires_grad")}
    new = empty(*args, **options)
    if not new.is_floating_point():
        raise Unplaced
    new.copy_(values(bits(new.shape, new.device), new.dtype))
    return new.requires_grad_(kwargs.get("requires_grad", False))


def _check_generator(kwargs: dict[str, Any]) -> None:
    """Leave a draw from the model's own generator, or into a given tensor, as it is."""
    if kwargs.get("generator") is not None or kwargs.get("out") is not None:
        raise Unplaced


def _leave_unless(valid: bool | Tensor) -> None:
    """Leave a call with bad arguments to torch, which says what is wrong; on a GPU it would cost a wait."""
    if not (valid if isinstance(valid, bool) else valid.is_cuda or bool(valid.all())):
        raise Unplaced


def _uniform_(bits: Bits, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    low, high = _two(args, kwargs, ("from", 0.0), ("to", 1.0))
    _leave_unless(low <= high)
    return _overwrite(bits, x, kwargs, lambda drawn: uniform(drawn, x.dtype) * (high - low) + low)


def _normal_(bits: Bits, func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    mean, std = _two(args, kwargs, ("mean", 0.0), ("std", 1.0))
    _leave_unless(std >= 0)
    return _overwrite(bits, x, kwargs, lambda drawn: normal(drawn, x.dtype) * std + mean)


def _exponential_(bits: Bits, func: Any, x: Tensor, lambd: float = 1.0, **kwargs: Any) -> Tensor:
    _leave_unless(lambd > 0)
    return _overwrite(bits, x, kwargs, lambda drawn: open_uniform(drawn, wide(x.dtype)).log_().div_(-lambd))


def _overwrite(bits: Bits, x: Tensor, kwargs: dict[str, Any], values: Callable[[Tensor], Tensor]) -> Tensor:
    _check_generator(kwargs)
    if not x.is_floating_point():
        raise Unplaced
    return x.copy_(values(bits(x.shape, x.device)))


def _bernoulli_(bits: Bits, func: Any, x: Tensor, p: float | Tensor = 0.5, **kwargs: Any) -> Tensor:
    _check_generator(kwargs)
    return x.copy_(_ones(bits, x, p))


def _bernoulli(bits: Bits, func: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    _check_generator(kwargs)
    p = args[0] if args else kwargs.get("p", input)
    return _ones(bits, input, p).to(input.dtype)


def _ones(bits: Bits, like: Tensor, p: float | Tensor) -> Tensor:
    """Return a tensor of the shape of `like`: 1 with probability `p`, else 0."""
    p = _plain(p)
    _leave_unless((p >= 0) & (p <= 1))
    drawn = bits(like.shape, like.device)
    return uniform(drawn, torch.float64) < p if isinstance(p, Tensor) else 1 - kept(drawn, p, torch.float32)


def _normal(bits: Bits, func: Any, mean: Any, std: Any = 1.0, size: Any = None, **kwargs: Any) -> Tensor:
    _check_generator(kwargs)
    if size is not None:
        return _filled(bits, normal, torch.empty, (size,), kwargs).mul_(std).add_(mean)
    _leave_unless(std >= 0)
    like = (mean if isinstance(mean, Tensor) else std).detach()
    shape = (torch.zeros_like(like) + _plain(mean) + _plain(std)).shape
    return normal(bits(shape, like.device), like.dtype).mul_(_plain(std)).add_(_plain(mean))


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _two(args: Any, kwargs: dict[str, Any], *names: tuple[str, float]) -> Iterable[float]:
    """Return two arguments that may be given by place or by name, or not."""
    return [args[i] if i < len(args) else kwargs.get(name, default) for i, (name, default) in enumerate(names)]


HANDLERS: dict[Hashable, Callable[..., Any]] = {
    **dict.fromkeys((torch.dropout, torch.dropout_, torch.alpha_dropout, torch.alpha_dropout_), _dropout),
    **dict.fromkeys((torch.feature_dropout, torch.feature_dropout_), _feature_dropout),
    **dict.fromkeys((torch.feature_alpha_dropout, torch.feature_alpha_dropout_), _feature_dropout),
    **dict.fromkeys((torch.rrelu, torch.rrelu_), _rrelu),
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _recurrent),
    F.scaled_dot_product_attention: _attention,
    torch.rand: _new(uniform),
    torch.randn: _new(normal),
    torch.rand_like: _like(uniform),
    torch.randn_like: _like(normal),
    torch.normal: _normal,
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _bernoulli),
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
    Tensor.exponential_: _exponential_,
}
"""Functions that draw; all others keep torch's generator."""

_GLOBALS = {
    **vars(F),
    **{f"has_torch_function{kind}": lambda *tensors: False for kind in ("", "_unary", "_variadic")},
}


def _opened(function: Any) -> Callable[..., Any]:
    """Return a function of `torch.nn.functional` whose calls of torch's functions reach the mode, and not itself."""
    return FunctionType(function.__code__, _GLOBALS, function.__name__, function.__defaults__, function.__closure__)


_OPENED: dict[Hashable, Callable[..., Any]] = {
    function: _opened(function)
    for function in (
        F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, F.rrelu,
        F.gumbel_softmax, F.multi_head_attention_forward,
    )
}  # fmt: skip
