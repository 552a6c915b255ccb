"""Codecs for gradients without memory: the length of a code, and the measured time of encoding and decoding."""

import copy
import statistics
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from manyhands.codec import Codec
from manyhands.comm.hollow import Charge, hollow
from manyhands.config import RunConfig
from manyhands.launch.blas_threads.count import process_settings
from manyhands.record.simulation import CodecTimes
from manyhands.replica.meta import Outline

REPEATS = 15


@final
@dataclass(kw_only=True, slots=True)
class TimedCodec(Codec):
    """Advances the clock by the measured times of a codec, and returns tensors of the right lengths."""

    times: CodecTimes
    advance: Callable[[float], None]
    charge: Charge
    _decoded: Tensor = field(init=False, repr=False)

    def num_bytes(self) -> int:
        return self.times.code_bytes

    def _prepare(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        self._decoded = hollow((self._numel,), self._dtype, self.charge)

    def _encode(self, t: Tensor) -> Tensor:
        self.advance(self.times.encode_s)
        return torch.empty(self.num_bytes(), dtype=torch.uint8, device="meta")

    def _decode(self, code: Tensor) -> Tensor:
        self.advance(self.times.decode_s)
        return self._decoded


def measure_codec(codec: Codec, outline: Outline) -> CodecTimes:
    """Measure the median time to encode and decode a gradient of this size with one thread."""
    codec = copy.deepcopy(codec)
    codec.start(outline.shapes, outline.numel, dtype=outline.dtype)
    grads = torch.randn(outline.numel, dtype=outline.dtype, generator=torch.Generator().manual_seed(0))
    code = codec.encode(grads)
    calls = (lambda: codec.encode(grads)), (lambda: codec.decode(code))
    with process_settings(RunConfig(task="", blas_threads=1), 1, 1):
        # The first call of each allocates its buffers.
        encode_s, decode_s = (
            statistics.median(timeit.repeat(call, number=1, repeat=REPEATS + 1)[1:]) for call in calls
        )
    return CodecTimes(code_bytes=codec.num_bytes(), encode_s=encode_s, decode_s=decode_s)
