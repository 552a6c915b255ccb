"""Codes travel instead of gradients: as many bytes as the codec promises, and nothing is lost for ever."""

import weakref
from functools import partial

import pytest
import torch
from driving import drive, make_replica, normed, pulling, stack, whole_numbers
from torch import Tensor

from manyhands import codec, sync
from manyhands.codec import Codec
from manyhands.comm.self_ import SelfComm

CODE_BYTES = {
    "compressed": lambda n: 2 * n,
    "compressed:codec=fp16": lambda n: 2 * n,
    "compressed:codec=int8": lambda n: n + 4 * -(-n // min(n, 1024)),
    "compressed:codec=topk": lambda n: round(0.01 * n) * (8 + 4),
    "compressed:codec=topk,ratio=0.2": lambda n: round(0.2 * n) * (8 + 4),
    "compressed:codec=powersgd,rank=1": lambda n: 8 * (n - 13 * 11 - 11 * 7 + (13 + 11) + (11 + 7)),
    "compressed:codec=powersgd": lambda n: 8 * (n - 13 * 11 - 11 * 7 + 2 * (13 + 11) + 2 * (11 + 7)),
}
"""The bytes of a code of n values in float64, two matrices of 11 by 13 and 7 by 11 among them."""

SPECS = dict.fromkeys([*CODE_BYTES, *(f"compressed:codec={name}" for name in codec.names())])
EVERY_SPEC = pytest.mark.parametrize("text", SPECS)


@EVERY_SPEC
@pytest.mark.parametrize("module", [stack, normed])
@pytest.mark.parametrize("size", [1, 3])
def test_a_step_sends_one_code_to_each_other_rank(ranks, text: str, module, size: int) -> None:  # type: ignore[no-untyped-def]
    steps, make = 4, partial(make_replica, module)
    for rank in drive(ranks, text, size, make, steps=steps):
        code_bytes = rank.strategy.codec.num_bytes()
        assert rank.comm.bytes_sent == steps * (size - 1) * code_bytes
        assert text not in CODE_BYTES or code_bytes == CODE_BYTES[text](make().params.numel())
        assert rank.comm.messages == (steps if size > 1 else 0)


@EVERY_SPEC
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("gradient", [whole_numbers, pulling])
def test_what_is_applied_and_what_is_left_are_the_gradients(ranks, text: str, size: int, gradient) -> None:  # type: ignore[no-untyped-def]
    """With plain SGD of rate 0.5, over all steps and ranks."""
    given: list[torch.Tensor] = []

    def noting(rank: int, step: int, replica):  # type: ignore[no-untyped-def]
        given.append(gradient(rank, step, replica))
        return given[-1]

    make = partial(make_replica, stack, "sgd")
    found = drive(ranks, text, size, make, noting, steps=6)
    left = sum(rank.strategy.tensors()["residual"] for rank in found)
    applied = (make().params - found[0].replica.params) / 0.5
    torch.testing.assert_close(applied + left, torch.stack(given).sum(0), rtol=1e-9, atol=1e-9)


@EVERY_SPEC
def test_ranks_agree_though_their_residuals_do_not(ranks, text: str) -> None:  # type: ignore[no-untyped-def]
    found = drive(ranks, text, 3, gradient=pulling, steps=5)
    assert all(torch.equal(rank.replica.params, found[0].replica.params) for rank in found)
    residuals = [rank.strategy.tensors()["residual"] for rank in found]
    assert not torch.equal(residuals[0], residuals[1])


@EVERY_SPEC
def test_it_learns(train, text: str) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=3, sync=text, epochs=8)
    assert record.train_loss[-1] < 0.95 * record.train_loss[0]


def test_half_precision_halves_what_an_all_gather_would_send(train) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=3, sync="compressed", steps=5)
    assert record.bytes_sent == 5 * 3 * 2 * (2 * record.parameters)


def test_codes_that_leave_nothing_out_are_an_all_reduce(ranks) -> None:  # type: ignore[no-untyped-def]
    found, expected = (drive(ranks, t, 3)[0].replica.params for t in ("compressed:codec=topk,ratio=1", "allreduce"))
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-15)


def test_codes_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank has no room for the gradients of all others at once."""
    decode, decoded, alive = Codec.decode, list[weakref.ref[Tensor]](), list[int]()

    def counting(self: Codec, code: Tensor) -> Tensor:
        alive.append(sum(ref() is not None for ref in decoded))
        t = decode(self, code)
        decoded.append(weakref.ref(t))
        return t

    monkeypatch.setattr(Codec, "decode", counting)
    comm, replica, strategy = SelfComm(), make_replica(), sync.make("compressed:codec=int8")
    monkeypatch.setattr(comm, "all_gather", lambda code: torch.stack([code] * 8))
    strategy.start(replica, comm)
    strategy.step(replica, comm, 0)
    assert len(alive) == 1 + 8
    assert max(alive) <= 1
