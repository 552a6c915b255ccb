"""One frozen, validated description of a run. The text under each field is its help on the command line."""

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from manyhands.errors import UserError, check, unknown


class RunConfig(BaseModel):
    """Everything that decides a run. With the same config, `--exact` gives the same bits."""

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
    """Threads inside each worker's matrix products; 0 shares the cores out evenly."""
    sync: str = "allreduce"
    """What the workers exchange, such as allreduce or local-sgd:period=8; 'manyhands syncs' lists them."""
    batch_size: int | Literal["full"] = 64
    """Global batch size, shared out over the workers; 'full' for all samples at once."""
    lr: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Learning rate; with a warm-up or a decay, the highest."""
    warmup: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Epochs over which the learning rate grows from nothing to its full value."""
    lr_decay: Literal["none", "linear", "cosine"] = "none"
    """How the learning rate falls to zero after the warm-up: none, linear or cosine."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the training data."""
    steps: int = Field(default=0, ge=0)
    """Stop after so many steps; 0 for whole epochs."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Decides the initial weights, the order of samples, and random layers."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where to compute; 'auto' takes a GPU if there is one."""
    dtype: Literal["float32", "float64"] = "float32"
    """Number type of weights and data."""
    data: str = ""
    """Data, if not the task's: mnist, tweets, synthetic:samples=N, idx:DIR, npz:FILE, npy:DIR, csv:FILE,label=X."""
    image_size: int = Field(default=0, ge=0)
    """Side of the images: 28, 56 or 112; 0 leaves them as they are."""
    replicate: int = Field(default=1, ge=1)
    """Repeat the training data so many times."""
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
        """Number of workers, threads of hybrid processes counted one by one; servers of a strategy come on top."""
        return self.workers * self.threads

    def to_toml(self) -> str:
        """Write it as TOML, to run again with `--config`."""
        # Every value is a text, a number or a truth value; JSON writes those as TOML does, but for one character.
        lines = (f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in self.model_dump().items())
        return "".join(lines).replace("\x7f", "\\u007f")


def make_config(values: dict[str, Any]) -> RunConfig:
    """Validate; a bad value is a one-sentence error that names the option."""
    for key in values:
        if key not in RunConfig.model_fields:
            unknown("setting", key, RunConfig.model_fields)
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        raise UserError(_sentence(error)) from None
    if isinstance(config.batch_size, int):
        check(config.batch_size >= 1, f"batch-size must be at least 1, got {config.batch_size}")
    check(
        config.warmup == 0 or config.steps > 0 or config.warmup < config.epochs,
        f"a warmup of {config.warmup:g} epochs must be shorter than the run's {config.epochs}",
    )
    if config.exact:
        power = config.lanes & (config.lanes - 1) == 0
        check(power, f"lanes must be a power of two, got {config.lanes}")
        check(
            config.size <= config.lanes,
            f"--exact with {config.size} workers needs at least as many lanes, got {config.lanes}; "
            f"add --lanes {1 << (config.size - 1).bit_length()}",
        )
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """Read settings from a TOML file."""
    check(path.is_file(), f"there is no config file '{path}'")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"'{path}' is not valid TOML: {error}") from None


def plain_words(message: str) -> str:
    """Put a validator's message in our words."""
    for theirs, ours in (
        ("Input should be", "must be"),
        ("greater than or equal to", "at least"),
        ("a valid integer, unable to parse string as an integer", "a whole number"),
        ("a valid number, unable to parse string as a number", "a number"),
    ):
        message = message.replace(theirs, ours)
    return message


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    name = str(first["loc"][0])
    says = plain_words(first["msg"])
    if name == "batch_size":
        says = "must be a whole number or 'full'"
    return f"{name.replace('_', '-')} {says}, got {first['input']!r}"
