"""One frozen, validated description of a run. The text under each field is its help on the command line."""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manyhands.errors import LARGEST, UserError, check, printable, shown, unknown

Precision = Literal["fp32", "tf32", "bf16", "fp16"]


class RunConfig(BaseModel):
    """All settings of a run. With the same config, `--exact` gives the same bits."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str
    """Built-in task, or your own FILE.py:VARIABLE."""
    engine: str = "serial"
    """How the workers run: serial, threads, mpi, hybrid (MPI processes x threads), torch, ray, or sim (virtual)."""
    workers: int = Field(default=1, ge=1)
    """Workers: threads of engine threads, processes of the other engines."""
    threads: int = Field(default=1, ge=1)
    """Worker threads in each process of engine hybrid."""
    blas_threads: int = Field(default=0, ge=0)
    """Threads inside each worker's matrix products; with 0 a short trial chooses, up to the worker's cores."""
    chosen_blas_threads: int = Field(default=0, ge=0)
    """The number chosen by that trial, which a resumed run keeps; no option of the command line."""
    sync: str = "allreduce"
    """What the workers exchange, such as allreduce or local-sgd:period=8; 'manyhands syncs' lists them."""
    batch_size: int | Literal["full"] = 64
    """Global batch size, shared out over the workers; 'full' for all samples at once."""
    lr: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Learning rate; with a warm-up or a decay, the highest."""
    warmup: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Epochs over which the learning rate grows from zero to its full value."""
    lr_decay: Literal["none", "linear", "cosine"] = "none"
    """How the learning rate falls to zero after the warm-up: none, linear or cosine."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training data."""
    steps: int = Field(default=0, ge=0)
    """Stop after this number of steps; 0 for whole epochs."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the initial weights, the order of samples, and random layers."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where to compute; 'auto' takes a GPU if there is one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number type of weights and data."""
    precision: Precision = "fp32"
    """Number type of the network's products: fp32, tf32, bf16 or fp16; the weights stay as they are."""
    batchnorm: Literal["global", "local"] = "global"
    """Rows that BatchNorm layers normalise over: the global batch, or a worker's share of it, which is cheaper."""
    optimizer: str = ""
    """Optimiser, if not the task's: sgd, momentum, adam, adamw, rmsprop, or any other of torch.optim by its name."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of the optimiser; 0 leaves the task's."""
    momentum: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    """Momentum of the optimiser; 0 leaves the task's."""
    clip: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Largest norm of the gradient of a global batch; larger ones are scaled down; 0 for none."""
    ema: float = Field(default=0.0, ge=0, lt=1, allow_inf_nan=False)
    """Decay of an average of the weights, such as 0.999, which is tested and stored instead of them; 0 for none."""
    init: str = ""
    """Weights to begin with: a safetensors file, or a run by its id or folder."""
    data: str = ""
    """Data, if not the task's: mnist, tweets, synthetic:samples=N, idx:DIR, npz:FILE, npy:DIR, csv:FILE,label=X,
    parquet:FILE,label=X, arrow:FILE,label=X, images:DIR, tar:DIR,input=E,target=E."""
    image_size: int = Field(default=0, ge=0)
    """Side of the images: 28, 56 or 112; 0 leaves them as they are."""
    replicate: int = Field(default=1, ge=1)
    """Times that the training data is repeated."""
    exact: bool = False
    """The same bits for every number of workers and every engine (slower)."""
    lanes: int = Field(default=8, ge=1)
    """Parts of a batch that --exact sums in a fixed tree: a power of two, at least the number of workers."""
    micro_batch: int = Field(default=0, ge=0)
    """Rows computed at once, to bound memory; 0 for a worker's whole share."""
    top: int = Field(default=1, ge=1)
    """Best guesses that count as a hit when accuracy is measured."""
    eval_every: int = Field(default=1, ge=1)
    """Epochs between two evaluations on the test data."""
    eval_steps: int = Field(default=0, ge=0)
    """Steps between two evaluations, instead of epochs; 0 for epochs."""
    patience: int = Field(default=0, ge=0)
    """Stop after this number of evaluations without a better one; 0 goes on to the end."""
    monitor: str = "test_loss"
    """The figure that decides which evaluation is better: test_loss, test_accuracy or the name of a metric."""
    keep_best: bool = False
    """Keep the weights of the best evaluation as the run's, instead of the last ones."""
    data_workers: int = Field(default=0, ge=0)
    """Processes of each worker that read samples ahead, where data is read sample by sample; 0 for none."""
    checkpoint_every: int = Field(default=0, ge=0)
    """Steps between two checkpoints; 0 for none."""
    keep: int = Field(default=3, ge=1)
    """Checkpoints kept; older ones are removed."""
    trace: int = Field(default=0, ge=0)
    """Steps to keep a timeline of, in trace.json: what every rank did when; opens in Perfetto."""
    fuse: bool = True
    """Use hand-written forward and backward where the network allows it."""
    mpiexec: str = ""
    """Command that starts MPI ranks, such as 'mpiexec -hosts a,b'; found by itself if not given."""
    ray_address: str = ""
    """Address of a Ray cluster to join with engine ray; a local one is started if not given."""

    @property
    def size(self) -> int:
        """Number of workers, counting every thread of hybrid processes but no servers."""
        return self.workers * self.threads

    def to_toml(self) -> str:
        """Return the settings as TOML, to run again with `--config`."""
        return as_toml(self.model_dump())


def check_values(values: dict[str, Any]) -> RunConfig:
    """Return a config with each setting validated by itself; a bad one is a user error that names the option."""
    for key, value in values.items():
        if key not in RunConfig.model_fields:
            unknown("setting", key, RunConfig.model_fields)
        name = key.replace("_", "-")
        check(not isinstance(value, int) or abs(value) < LARGEST, f"{name} must have at most 1,000 digits")
        check(
            not isinstance(value, str) or value == printable(value),  # a file's name may hold any bytes
            f"{name} {value!r} is not UTF-8 text, which a run's settings are kept in; rename the file or folder",
        )
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(sentence_of(error, {"batch_size": "must be a whole number or 'full'"})) from None
    if isinstance(config.batch_size, int):
        check(config.batch_size >= 1, f"batch-size must be at least 1, got {config.batch_size}")
    return config


def make_config(values: dict[str, Any]) -> RunConfig:
    """Return a config with all settings validated, each by itself and together."""
    config = check_values(values)
    check(
        config.warmup == 0 or config.steps > 0 or config.warmup < config.epochs,
        f"a warmup of {config.warmup:g} epochs must be shorter than the run's {config.epochs}",
    )
    check(
        config.precision == "fp32" or config.dtype == "float32",
        f"precision {config.precision} shortens the products of float32, and leaves those of {config.dtype} as they "
        "are; leave one of the two out",
    )
    if config.exact:
        check(config.lanes.bit_count() == 1, f"lanes must be a power of two, got {config.lanes}")
        check(
            config.size <= config.lanes,
            f"--exact with {config.size} workers needs at least as many lanes, got {config.lanes}; "
            f"add --lanes {1 << (config.size - 1).bit_length()}",
        )
    return config


def as_toml(values: Mapping[str, Any]) -> str:
    """Return strings, numbers, booleans and lists of these as TOML, one a line."""
    # JSON writes these types as TOML does, but for one character.
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
    return "".join(lines).replace("\x7f", "\\u007f")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file; one that cannot be read or parsed is a user error."""
    check(os.path.isfile(path), f"there is no config file '{path}'")
    try:
        return parse_toml(path.read_bytes())
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"'{path}' is not valid TOML: {error}") from None


def parse_toml(raw: bytes) -> dict[str, Any]:
    """Parse TOML; any fault in it is a `ValueError` with a readable message."""
    try:
        values = tomllib.loads(raw.decode())
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from None
    except ValueError:
        raise ValueError("a number in it is too large") from None
    if not all(abs(number) <= 2**63 for number in _whole_numbers(values)):
        raise ValueError("a number in it is too large")
    return values


def _whole_numbers(values: dict[str, Any]) -> Iterator[int]:
    left: list[Any] = [values]
    while left:
        value = left.pop()
        if isinstance(value, dict | list):
            left += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int):
            yield value


def plain_words(message: str) -> str:
    """Replace the usual phrases of pydantic's messages by shorter ones."""
    for theirs, ours in (
        ("Input should be", "must be"),
        ("greater than or equal to", "at least"),
        ("a valid integer, unable to parse string as an integer", "a whole number"),
        ("a valid number, unable to parse string as a number", "a number"),
    ):
        message = message.replace(theirs, ours)
    return message


def sentence_of(error: ValidationError, words: Mapping[str, str] | None = None, name: str = "") -> str:
    """Return a sentence about the first bad value of a pydantic error.

    `words` replaces the message for some fields; `name` replaces the field's name.
    """
    first = error.errors()[0]
    field = str(first["loc"][0])
    says = (words or {}).get(field) or plain_words(first["msg"])
    return f"{name or field.replace('_', '-')} {says}, got {shown(first['input'])}"
