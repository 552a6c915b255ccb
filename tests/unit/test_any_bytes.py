"""Whatever bytes a file holds, reading it gives a value or one sentence."""

import gzip
import io
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manyhands.config import make_config, read_toml
from manyhands.data import load
from manyhands.data.idx import read_idx
from manyhands.errors import UserError
from manyhands.model.cluster import read_cluster
from manyhands.record.advice import AdviceDir
from manyhands.record.calibration import open_calibration
from manyhands.record.papers import ReproductionDir
from manyhands.record.run import RunDir, read_events
from manyhands.record.simulation import SimulationDir, ValidationDir, read_validations
from manyhands.record.sweep import SweepDir
from manyhands.report.losses import loss_curve
from manyhands.report.timeline import read_timeline
from manyhands.reproduction.store import read_taken
from manyhands.scaling.request import SweepRequest
from manyhands.scaling.store import read_measures

pytestmark = pytest.mark.timeout(300)
EXAMPLES = settings(max_examples=40)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """One folder for all examples."""
    with TemporaryDirectory() as path:
        yield Path(path)


def one_sentence(read: Callable[[], Any]) -> None:
    """Read; what is wrong must be one sentence."""
    error = None
    try:
        read()
    except UserError as caught:
        error = caught
    assert error is None or "\n" not in str(error)


def damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Draw files that once were whole: cut, with other bytes somewhere, or with something behind them."""
    places = st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)

    def hurt(changes: list[tuple[int, int]], end: int, more: bytes) -> bytes:
        raw = bytearray(whole)
        for place, byte in changes:
            raw[place] = byte
        return bytes(raw[:end]) + more

    ends = st.one_of(st.just(len(whole)), st.integers(0, len(whole)))
    return st.builds(hurt, places, ends, st.one_of(st.just(b""), st.binary(max_size=9)))


SIDES = st.lists(st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1)), max_size=6)
HEADERS = st.builds(
    lambda kind, dims, sides: bytes([0, 0, kind, dims]) + b"".join(struct.pack(">I", side) for side in sides),
    st.sampled_from([8, 8, 8, 0, 13]),
    st.one_of(st.integers(0, 5), st.integers(0, 255)),
    SIDES,
)
IDX = st.one_of(st.binary(max_size=40), st.builds(bytes.__add__, HEADERS, st.binary(max_size=20)))


@EXAMPLES
@given(raw=IDX)
@example(raw=bytes([0, 0, 8, 100]) + struct.pack(">I", 1) * 100 + b"x")
@example(raw=bytes([0, 0, 8, 255]) + bytes(255 * 4))
@example(raw=bytes([0, 0, 8, 3]) + struct.pack(">III", 0, 2**32 - 1, 2**32 - 1))
@example(raw=bytes([0, 0, 8, 2]) + b"\xff" * 8)
def test_idx(folder: Path, raw: bytes) -> None:
    plain, packed = folder / "file", folder / "file.gz"
    plain.write_bytes(raw)
    for packing in (gzip.compress(raw), gzip.compress(raw)[:-3], raw):
        packed.write_bytes(packing)
        one_sentence(lambda: read_idx(packed))
    one_sentence(lambda: read_idx(plain))
    one_sentence(lambda: read_idx(raw))


def npz() -> bytes:
    file = io.BytesIO()
    x, y = np.ones((6, 2), np.float32), np.arange(6) % 2
    np.savez_compressed(file, x_train=x, y_train=y, x_test=x, y_test=y)
    return file.getvalue()


NPZ = npz()


@EXAMPLES
@given(raw=st.one_of(st.binary(max_size=60), damaged(NPZ)))
def test_npz(folder: Path, raw: bytes) -> None:
    (folder / "x.npz").write_bytes(raw)
    one_sentence(lambda: load(f"npz:{folder / 'x.npz'}"))


NUMBERS = st.one_of(st.integers(-1, 7), st.just(2**62), st.just(10**30))
SHAPES = st.lists(NUMBERS, max_size=5).map(tuple)
TYPES = st.sampled_from(
    ["<f4", ">f8", "<i8", "|u1", "|b1", "<f2", "<u8", "<c8", "|O", "<U3", "<M8[s]", "V4", "nonsense"]
)


@st.composite
def npy(draw: st.DrawFn) -> bytes:
    header = {"descr": draw(TYPES), "fortran_order": draw(st.booleans()), "shape": draw(SHAPES)}
    text = draw(st.one_of(st.just(repr(header)), st.just("[" * 3000), st.text(max_size=20))).encode(errors="replace")
    version = draw(st.sampled_from([b"\1\0", b"\2\0", b"\3\0", b"\x09\0"]))
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + draw(st.binary(max_size=80))


@EXAMPLES
@given(x=st.one_of(npy(), st.binary(max_size=30)), y=st.one_of(st.none(), npy()))
def test_npy(folder: Path, x: bytes, y: bytes | None) -> None:
    here = folder / "npy"
    here.mkdir(exist_ok=True)
    (here / "x_train.npy").write_bytes(x)
    if y is None:
        np.save(here / "y_train.npy", np.arange(6) % 2)
    else:
        (here / "y_train.npy").write_bytes(y)
    one_sentence(lambda: load(f"npy:{here}"))


ARRAYS = st.sampled_from(
    [
        np.ones((6, 2), np.float32),
        np.ones((6, 2, 2), np.uint8),
        np.ones((6, 0)),
        np.ones(6),
        np.ones((0, 2)),
        np.float64(3.0).reshape(()),
        np.full((6, 2), np.nan),
        np.ones((6, 2), bool),
        np.ones((2, 1, 1, 1, 1)),
        np.arange(6) % 2,
        np.arange(6).reshape(6, 1),
        np.arange(6) - 3,
        np.array([0, 1, 2, 0, 1, 2**63], np.uint64),
        np.array([0, np.inf, 2, 0, 1, np.nan]),
        np.array([0, 1, 2, 0, 1, 1e300]),
        np.array(["a"] * 6),
    ]
)


@EXAMPLES
@given(arrays=st.lists(ARRAYS, min_size=2, max_size=4))
def test_arrays_of_any_shape(folder: Path, arrays: list[Any]) -> None:
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(folder / "y.npz", **dict(zip(names, arrays, strict=False)))
    one_sentence(lambda: load(f"npz:{folder / 'y.npz'}"))


CELLS = st.one_of(
    st.text(max_size=4),
    st.sampled_from(["1", "-2.5", "1_0", "nan", "inf", "1e999", "", "a", '"', '"b,c"', "\x00", "٣", "9" * 40]),
)
CSV = st.one_of(
    st.binary(max_size=60),
    st.lists(st.lists(CELLS, min_size=3, max_size=3).map(",".join), max_size=9).map(
        lambda rows: "\n".join(["a,b,c", *rows]).encode(errors="replace")
    ),
)


@EXAMPLES
@given(raw=CSV, options=st.sampled_from(["", ",label=c", ",label=c,text=a,words=7", ",label=c,train=2", ",label=zz"]))
def test_csv(folder: Path, raw: bytes, options: str) -> None:
    (folder / "x.csv").write_bytes(raw)
    one_sentence(lambda: load(f"csv:{folder / 'x.csv'}{options}"))


TOML = st.one_of(
    st.binary(max_size=40),
    st.text(alphabet="a=[]{}\".'\n#1_0x-+:TZ,tru\\ué ", max_size=60).map(str.encode),
    st.tuples(
        st.sampled_from(["nodes", "cores", "between", "slow", "workers", "task", "kind", "lr", "batch_size"]),
        st.sampled_from(
            ["1", "-1", "1e999", "nan", "0x" + "f" * 9000, "2" * 5000, '"x"', "[1,[2]]", "{a={}}", "1979-05-27"]
        ),
    ).map(lambda pair: f"{pair[0]} = {pair[1]}\n".encode()),
)


@EXAMPLES
@given(raw=TOML)
@example(raw=b"a = " + b"[" * 5000 + b"]" * 5000)
@example(raw=b"a = " + b"{a = " * 5000 + b"1" + b"}" * 5000)
@example(raw=b".".join([b"a"] * 5000) + b" = 1")
@example(raw=b"workers = " + b"9" * 5000)
@example(raw=b"workers = 0x" + b"f" * 5000)
def test_toml(folder: Path, raw: bytes) -> None:
    file = folder / "x.toml"
    file.write_bytes(raw)
    one_sentence(lambda: make_config(read_toml(file)))
    one_sentence(lambda: read_cluster(file))
    one_sentence(lambda: SweepRequest.from_toml(file))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["id", "step", "loss", "ms", "worker", "traceEvents", "ph", "pid"]), inner, max_size=3
        ),
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
STORED = st.one_of(st.binary(max_size=40), JSON, JSON.flatmap(damaged), st.just(b"[" * 100_000))


@EXAMPLES
@given(raw=STORED)
@example(raw=b'{"step": Infinity, "loss": 1, "ms": 1, "worker": Infinity, "staleness": 1}\n')
@example(raw=b'{"step": 1, "loss": 1' + b"0" * 400 + b', "ms": 1}\n')
@example(raw=b'{"traceEvents": [{"ph": "X", "name": "x", "pid": 1e999, "ts": 1, "dur": 1, "args": {}}]}')
@example(raw=b"\xff\xfe\x00")
def test_what_was_stored(folder: Path, raw: bytes) -> None:
    run = RunDir(folder)
    for path in (run.record, run.steps, run.events(0), run.trace):
        path.write_bytes(raw)
    kinds = (SweepDir, SimulationDir, ValidationDir, AdviceDir, ReproductionDir)
    for kind in kinds:
        kind(folder).record.write_bytes(raw)
        one_sentence(kind(folder).read)
    sweep, reproduction = SweepDir(folder), ReproductionDir(folder)
    for path in (sweep.measures, reproduction.taken):
        path.write_bytes(raw)
    one_sentence(lambda: read_measures(sweep))
    one_sentence(lambda: read_taken(reproduction))
    one_sentence(lambda: open_calibration(run.record))
    one_sentence(lambda: read_validations(run.record))
    one_sentence(lambda: read_events(str(folder), 0))
    one_sentence(run.read)
    assert run.read_or_none() is None
    loss_curve(run)
    read_timeline(run)


SOURCES = ("mnist", "synthetic", "tweets", "idx", "npz", "npy", "csv", "parquet", "arrow", "images", "tar")
OPTIONS = ("samples", "test", "train", "shape", "noise", "seed", "label", "words", "size", "input", "x", "")
SPECS = st.one_of(
    st.text(st.characters(exclude_characters="\n"), max_size=30),
    st.tuples(
        st.sampled_from(SOURCES),
        st.lists(
            st.tuples(
                st.sampled_from(OPTIONS),
                st.sampled_from(
                    ["1", "0", "-1", "1e9", "nan", "9" * 5000, "9" * 900, "1x1x1", "9" * 99 + "x1x1", "a b", "\0"]
                ),
            ).map("=".join),
            max_size=3,
        ).map(",".join),
    ).map(":".join),
)


@EXAMPLES
@given(spec=SPECS)
@example(spec="npz:" + "x" * 5000)
@example(spec="npz:" + " " * 100_000)
@example(spec="csv:" + " ," * 20_000 + "label=x")
@example(spec="npz:\udcff")
@example(spec="npz:a\0b")
def test_data_specs(spec: str) -> None:
    one_sentence(lambda: load(spec))
