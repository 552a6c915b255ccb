"""Codecs for gradients that hold no memory: a code's length, and the time that coding really takes."""

import copy
import statistics
import time
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
    """Lets the clock run for as long as a codec takes, and gives tensors of the lengths that it would."""

    times: CodecTimes
    advance: Callable[[float], None]
    charge: Charge
    _decoded: Tensor = field(init=False, repr=False)

    def num_bytes(self) -> int:
        """Return the length that was found out."""
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
    """Code a gradient of this size a few times, with one thread."""
    codec = copy.deepcopy(codec)
    codec.start(outline.shapes, outline.numel, dtype=outline.dtype)
    grads = torch.randn(outline.numel, dtype=outline.dtype, generator=torch.Generator().manual_seed(0))
    code = codec.encode(grads)
    with process_settings(RunConfig(task="", blas_threads=1), 1, 1):
        encode_s = _seconds(lambda: codec.encode(grads))
        decode_s = _seconds(lambda: codec.decode(code))
    return CodecTimes(code_bytes=codec.num_bytes(), encode_s=encode_s, decode_s=decode_s)


def _seconds(call: Callable[[], object]) -> float:
    call()  # makes its buffers
    took = []
    for _ in range(REPEATS):
        begun_s = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun_s)
    return statistics.median(took)
