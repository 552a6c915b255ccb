"""The laws of every codec: the code's length, determinism, and that error feedback loses nothing."""

from collections.abc import Callable
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyhands import codec
from manyhands.codec import Codec
from manyhands.errors import UserError

Shapes = list[tuple[int, ...]]

VARIANTS = ["int8:chunk=7", "topk:ratio=0.3", "topk:ratio=1", "powersgd:rank=1"]
EVERY_CODEC = pytest.mark.parametrize("text", [*codec.names(), *VARIANTS])
NEVER_ROUND = ("fp16", "int8", "topk")
"""Codecs that move no value by more than twice its size, so that value and residual add up without rounding."""
DTYPES = st.sampled_from([torch.float32, torch.float64])
SEEDS = st.integers(0, 2**31)
SCALES = st.sampled_from([0.0, 1e-40, 1e-20, 1e-7, 1.0, 1e4])
SHAPES = st.lists(
    st.lists(st.integers(1, 9), min_size=0, max_size=4).map(tuple).filter(lambda s: prod(s) <= 400), max_size=4
)


def started(text: str, shapes: Shapes, loose: int = 0) -> Codec:
    """Make a codec for weights of these shapes and some loose values behind them."""
    made = codec.make(text)
    made.start(shapes, sum(map(prod, shapes)) + loose)
    return made


def gradient(numel: int, seed: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    """Draw a gradient whose values have very different sizes, some of them zero."""
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(numel, generator=generator, dtype=torch.float64)
    sizes = torch.rand(numel, generator=generator, dtype=torch.float64)
    return (scale * normal * sizes**4 * (sizes > 0.1)).to(dtype)


@EVERY_CODEC
@given(shapes=SHAPES, loose=st.integers(0, 3000), seed=SEEDS, dtype=DTYPES, scale=SCALES)
def test_what_is_decoded_and_the_residual_are_the_gradient(
    text: str, shapes: Shapes, loose: int, seed: int, dtype: torch.dtype, scale: float
) -> None:
    made = started(text, shapes, loose)
    g = gradient(sum(map(prod, shapes)) + loose, seed, dtype, scale)
    before = g.clone()
    code = made.encode(g)
    assert code.dtype == torch.uint8
    assert code.is_contiguous()
    assert code.shape == (made.num_bytes(),)
    decoded = made.decode(code)
    assert torch.equal(g, before), "the gradient is left as it is"
    assert decoded.dtype == g.dtype
    assert decoded.shape == g.shape
    assert decoded.isfinite().all()
    residual = g - decoded
    if text.startswith(NEVER_ROUND):
        assert torch.equal(decoded + residual, g)
    else:
        room = 4 * torch.finfo(dtype).eps * (decoded.abs() + g.abs())
        assert ((decoded + residual - g).abs() <= room).all()


@EVERY_CODEC
@given(seed=SEEDS, dtype=DTYPES)
def test_the_same_gradients_have_the_same_codes(text: str, seed: int, dtype: torch.dtype) -> None:
    one, other = (started(text, [(20, 30), (20,)], 5) for _ in range(2))
    for step in range(3):
        g = gradient(625, seed + step, dtype)
        assert torch.equal(one.encode(g), other.encode(g.clone()))


@EVERY_CODEC
@given(seed=SEEDS, numel=st.integers(1, 40), dtype=DTYPES)
def test_a_row_of_gathered_codes_is_decoded_where_it_lies(text: str, seed: int, numel: int, dtype: torch.dtype) -> None:
    """Codes of odd length put the second row at an odd address."""
    made = started(text, [(numel, 5)], 1)
    codes = [made.encode(gradient(5 * numel + 1, seed + rank, dtype)) for rank in range(3)]
    for row, code in zip(torch.stack(codes), codes, strict=True):
        assert torch.equal(made.decode(row), made.decode(code))


@EVERY_CODEC
@given(seed=SEEDS, dtype=DTYPES)
def test_who_never_encoded_decodes_too(text: str, seed: int, dtype: torch.dtype) -> None:
    worker, server = started(text, [(8, 9)], 3), codec.make(text)
    server.start([(8, 9)], 75, dtype=dtype)
    code = worker.encode(gradient(75, seed, dtype))
    assert torch.equal(server.decode(code), worker.decode(code))


@EVERY_CODEC
def test_nothing_one_value_and_zeros_have_codes(text: str) -> None:
    nothing = started(text, [])
    assert nothing.decode(nothing.encode(torch.zeros(0))).shape == (0,)
    single = started(text, [(1, 1)])
    assert single.decode(single.encode(torch.tensor([0.5]))).tolist() == pytest.approx([0.5], rel=1e-6)
    zeros = started(text, [(6, 7)], 3)
    for _ in range(3):
        assert zeros.decode(zeros.encode(torch.zeros(45))).tolist() == 45 * [0.0]


@EVERY_CODEC
@settings(max_examples=8)
@given(seed=SEEDS, dtype=DTYPES, scale=st.sampled_from([1e-3, 1.0, 100.0]))
def test_error_feedback_sends_everything_in_the_end(text: str, seed: int, dtype: torch.dtype, scale: float) -> None:
    """The sum of T codes of one gradient differs from T gradients by a residual that does not grow with T."""
    made, g = started(text, [(12, 15), (12,)], 8), gradient(200, seed, dtype, scale)
    residual, total, lengths = torch.zeros_like(g), torch.zeros_like(g), []
    for _ in range(600):
        decoded = made.decode(made.encode(g + residual))
        residual = g + residual - decoded
        total += decoded
        lengths.append(float(residual.norm()))
    assert torch.allclose(total + residual, 600 * g, rtol=1e-3, atol=1e-3 * float(g.norm())), "nothing is lost"
    assert float(residual.norm()) < 0.25 * 600 * float(g.norm()), "most has been sent"
    assert max(lengths[400:]) <= 1.5 * max(lengths[:400]) + 1e-12, "the residual has stopped growing"


@given(seed=SEEDS, dtype=DTYPES, scale=SCALES)
def test_fp16_errs_by_half_a_unit_in_the_last_place(seed: int, dtype: torch.dtype, scale: float) -> None:
    made, g = started("fp16", [], 300), gradient(300, seed, dtype, scale)
    error = (made.decode(made.encode(g)) - g).abs()
    assert (error <= (g.abs() * 2.0**-11).clamp(min=2.0**-25)).all()


def test_fp16_cuts_off_what_is_out_of_range_and_sends_it_later() -> None:
    made, g = started("fp16", [], 3), torch.tensor([1e5, -3e38, 1.0])
    assert made.decode(made.encode(g)).tolist() == [65504.0, -65504.0, 1.0]
    residual, total = g[:1] * 0, 0.0
    narrow = started("fp16", [], 1)
    for pushed in [g[:1], g[:1] * 0, g[:1] * 0]:
        decoded = narrow.decode(narrow.encode(pushed + residual))
        residual = pushed + residual - decoded
        total += float(decoded)
    assert total == 1e5


@given(seed=SEEDS, dtype=DTYPES, scale=SCALES, chunk=st.integers(1, 50))
def test_int8_errs_by_half_a_level_of_its_chunk(seed: int, dtype: torch.dtype, scale: float, chunk: int) -> None:
    made, g = started(f"int8:chunk={chunk}", [], 300), gradient(300, seed, dtype, scale)
    decoded = made.decode(made.encode(g))
    for part, found in zip(g.split(chunk), decoded.split(chunk), strict=True):
        largest = float(part.abs().max())
        # Below the smallest scale that a float32 can hold the whole value stays in the residual.
        assert float((part - found).abs().max()) <= largest / 254 * (1 + 1e-5) + 127 * 1.5e-45
        assert float(found.abs().max()) <= largest * (1 + 1e-6) + 127 * 1.5e-45


def test_int8_keeps_the_largest_numbers_finite() -> None:
    made = started("int8", [], 2)
    g = torch.tensor([torch.finfo(torch.float32).max, -torch.finfo(torch.float32).max])
    assert made.decode(made.encode(g)).isfinite().all()
    g = torch.tensor([1e300, -1e300], dtype=torch.float64)
    assert made.decode(made.encode(g)).isfinite().all()


@given(seed=SEEDS, dtype=DTYPES, numel=st.integers(1, 500), ratio=st.floats(0.001, 1))
def test_topk_keeps_the_largest_as_they_are(seed: int, dtype: torch.dtype, numel: int, ratio: float) -> None:
    made, g = started(f"topk:ratio={ratio}", [], numel), gradient(numel, seed, dtype) + 1e-9
    decoded = made.decode(made.encode(g))
    kept = decoded != 0
    assert kept.sum() == min(numel, max(1, round(ratio * numel)))
    assert torch.equal(decoded[kept], g[kept])
    assert kept.all() or g[kept].abs().min() >= g[~kept].abs().max()


@given(
    seed=SEEDS, dtype=DTYPES, rank=st.integers(1, 3), true=st.integers(0, 3), scale=st.sampled_from([1e-12, 1, 1e12])
)
def test_powersgd_finds_a_matrix_of_low_rank(seed: int, dtype: torch.dtype, rank: int, true: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, min(true, rank), generator=generator, dtype=dtype) for n in (20, 30))
    g = scale * (left @ right.T).reshape(-1)
    made = started(f"powersgd:rank={rank}", [(20, 6, 5)])
    for _ in range(4):
        decoded = made.decode(made.encode(g))
    assert float((decoded - g).norm()) <= 50 * torch.finfo(dtype).eps * float(g.norm())


def test_powersgd_turns_to_the_best_approximation() -> None:
    """Power iterations that start where the last ended reach the leading singular vectors."""
    g = gradient(600, 5)
    made = started("powersgd:rank=2", [(20, 30)])
    first = (g - made.decode(made.encode(g))).norm()
    for _ in range(60):
        last = (g - made.decode(made.encode(g))).norm()
    best = torch.linalg.svdvals(g.view(20, 30))[2:].norm()
    assert best * 1.01 > last
    assert first > last


def test_powersgd_sends_vectors_and_loose_values_as_they_are() -> None:
    made, g = started("powersgd:rank=1", [(4,), (10, 3, 3), (10,), (2, 2)], 6), gradient(114, 1)
    decoded = made.decode(made.encode(g))
    assert torch.equal(decoded[:4], g[:4])
    assert torch.equal(decoded[94:], g[94:]), "a matrix that would not become smaller goes as it is too"
    assert made.num_bytes() == 4 * (4 + (10 + 9) + 10 + 4 + 6)


def test_powersgd_is_found_again_by_its_state() -> None:
    shapes: Shapes = [(20, 30), (6, 8)]
    one, other = started("powersgd", shapes), started("powersgd", shapes)
    for step in range(3):
        one.encode(gradient(648, step))
    assert set(one.state()) == set(other.state()) != set()
    for name, tensor in other.state().items():
        tensor.copy_(one.state()[name])
    for step in range(3, 6):
        g = gradient(648, step)
        assert torch.equal(one.encode(g), other.encode(g))


def test_powersgd_recovers_from_a_gradient_of_zeros() -> None:
    made, g = started("powersgd", [(20, 30)]), gradient(600, 3)
    fresh = started("powersgd", [(20, 30)])
    made.encode(torch.zeros(600))
    assert torch.equal(made.encode(g), fresh.encode(g))


SIZES: dict[str, Callable[[int], int]] = {
    "fp16": lambda n: 2 * n,
    "int8": lambda n: n + 4 * -(-n // 1024),
    "topk": lambda n: 8 * max(1, round(n / 100)),
}


@pytest.mark.parametrize("text", SIZES)
@given(numel=st.integers(1, 5000))
def test_codes_are_as_small_as_promised(text: str, numel: int) -> None:
    assert started(text, [], numel).encode(torch.ones(numel)).numel() == SIZES[text](numel)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topk:ratio=0", "ratio of codec 'topk' must be above 0 and at most 1, got 0"),
        ("topk:ratio=1.5", "at most 1, got 1.5"),
        ("topk:ratio=nan", "at most 1, got nan"),
        ("topk:ratio=few", "ratio of codec 'topk' must be a number, got 'few'"),
        ("powersgd:rank=0", "rank of codec 'powersgd' must be at least 1, got 0"),
        ("int8:chunk=-1", "chunk of codec 'int8' must be at least 1, got -1"),
        ("fp16:rank=1", "codec 'fp16' has no options"),
        ("topk:_numel=1", "there is no option of codec 'topk' named '_numel'"),
        ("powersdg", "did you mean 'powersgd'?"),
    ],
)
def test_bad_options_get_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        codec.make(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@EVERY_CODEC
def test_a_gradient_on_a_gpu_stays_there(text: str) -> None:
    made, g = started(text, [(20, 30), (20,)], 5), gradient(625, 2).cuda()
    code = made.encode(g)
    assert code.is_cuda
    assert made.decode(code).is_cuda
    on_cpu = started(text, [(20, 30), (20,)], 5)
    expected = on_cpu.decode(on_cpu.encode(g.cpu()))
    assert torch.allclose(made.decode(code).cpu(), expected, atol=1e-5)
