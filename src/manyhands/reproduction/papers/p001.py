"""Paper 001: "Parallelization of Deep Learning Models", a master's assignment on OpenMP, MPI and both."""

from typing import Any

from manyhands.reproduction import base
from manyhands.reproduction.base import Claim, HostFacts, Paper, PaperRow, PaperTable, Setting, Values, printed

EPOCH = 157
"""Steps of an epoch: 10,000 samples in batches of 64."""
SAME_LOSS = 1e-4
SAME_ACCURACY = 1e-3
PARAMETERS = "235,146"
EXPECTED = (
    ("OpenMP", "4 threads", "2.5–3.5", {"engine": "threads", "workers": 4}),
    ("OpenMP", "8 threads", "3.5–5.0", {"engine": "threads", "workers": 8}),
    ("MPI", "4 processes", "2.0–3.0", {"engine": "mpi", "workers": 4}),
    ("MPI", "8 processes", "2.5–4.0", {"engine": "mpi", "workers": 8}),
    ("Hybrid", "2×2 (4 total)", "2.5–3.5", {"engine": "hybrid", "workers": 2, "threads": 2}),
    ("Hybrid", "2×4 (8 total)", "3.5–5.5", {"engine": "hybrid", "workers": 2, "threads": 4}),
)
"""Table 4 as printed, and the options of our runs for it."""
OURS_TOO = (
    ("OpenMP", "2 threads", {"engine": "threads", "workers": 2}),
    ("MPI", "2 processes", {"engine": "mpi", "workers": 2}),
)
TWO = {"engine": "mpi", "workers": 2}
LARGE = 1024
NEAR_CONSTANT = 0.85
"""Least efficiency of weak scaling that counts as near-constant time: the tolerance of speed-ups."""

LEFT_OUT = (
    "Tables 2 and 3 list software and settings, which ours follow; table 5 rates the versions in words. Layers of "
    "table 1 are held against ours by their sum."
)
STORY = """\
**It found** nothing by measurement: its table 4 holds *expected* speed-ups, of up to 5.5 on 8 cores, and no time. It
does state that all versions give the same answer, that larger batches scale better, and that time stays near-constant
when the work grows with the workers.

**We find** the same answer to round-off in all versions, and the number of parameters. The speed-ups are too hopeful
for a program whose serial version multiplies whole batches: two processes reach {table 4/MPI 2 processes/speed-up/2}
on two cores; four and eight, simulated with a core for each, {table 4/MPI 4 processes/speed-up/predicted} and
{table 4/MPI 8 processes/speed-up/predicted} where {table 4/MPI 4 processes/speed-up/paper} and
{table 4/MPI 8 processes/speed-up/paper} were expected: 157 steps of batch 64 take one core
{table 4/Serial 1 core/epoch s/2} s, and the all-reduce of 0.94 MB in each does not shrink with more workers. Threads
reach {table 4/OpenMP 2 threads/speed-up/2}: Python's lock, which C does not have, is taken for every operation.

**It could not know** how fast its own programs were, since it did not run them; and that a faster serial program
makes every parallel one look worse.
"""


def paper(machine: HostFacts) -> Paper:
    """Return the paper, whose rows are the same on every machine."""
    return Paper(
        number="001",
        title="Parallelization of Deep Learning Models",
        by="A master's assignment",
        about="perceptron 784-256-128-10 on 10,000 samples, batch 64, SGD 0.01; OpenMP, MPI, MPI + OpenMP",
        rebuilds="expected speed-ups (table 4), parameters (table 1), and that all versions give the same answer",
        story=STORY,
        left_out=LEFT_OUT,
        tables=(base.parameters_table("table 1", PARAMETERS, _run()), _table_4()),
        claims=(
            Claim(
                text="all parallel versions give the loss and the accuracy of the serial one (section 5.3)",
                settings=(_run(), *(_run(**options) for *_, options in EXPECTED)),
                holds=_same,
            ),
            Claim(
                text="strong scaling is best with larger batches: 2 processes, batch 1,024 against 64 (section 5.2)",
                settings=(_run(), _run(**TWO), _run(batch_size=LARGE), _run(**TWO, batch_size=LARGE)),
                holds=_larger_is_better,
                speed=True,
            ),
            Claim(
                text="weak scaling: near-constant time, 64 samples on each of 2 processes (section 5.2)",
                settings=(_run(), _run(**TWO, batch_size=128)),
                holds=_constant,
                speed=True,
            ),
        ),
    )


def _run(**options: Any) -> Setting:
    workers = options.get("workers", 1) * options.get("threads", 1)
    batches = options.get("batch_size", 64) / 64
    return Setting(
        task="mlp",
        options={"blas_threads": 1, "steps": 4 * EPOCH, **options},
        work_s=4 * EPOCH * (0.0006 * batches if workers <= 2 else 0.002 * workers),
        quick=None if batches > 1 else {"steps": EPOCH, "work_s": EPOCH * 0.002 * workers},
    )


def _table_4() -> PaperTable:
    serial = _run()
    rows = [
        PaperRow(labels=("Serial", "1 core"), published={"speed-up": printed("1.0")}, timed=serial, base=serial),
        *(PaperRow(labels=(name, many), timed=_run(**options), base=serial) for name, many, options in OURS_TOO),
        *(
            PaperRow(labels=(name, many), published={"speed-up": printed(text)}, timed=_run(**options), base=serial)
            for name, many, text, options in EXPECTED
        ),
    ]
    return PaperTable(
        name="table 4",
        title="expected speed-up over the serial program",
        headings=("implementation", "configuration"),
        columns=base.EPOCH_AND_SPEED_UP,
        rows=tuple(rows),
        notes=(
            "The paper expects these speed-ups and prints no measured time. The rows of 2 threads and 2 processes are "
            "ours. Its serial program computes sample after sample; ours multiplies whole batches, so that a step has "
            "far less left to share out.",
        ),
    )


def _same(runs: list[Values]) -> tuple[bool, str]:
    serial, *others = runs
    loss = max(abs(v["test_loss"] / serial["test_loss"] - 1) for v in others)
    accuracy = max(abs(v["test_accuracy"] - serial["test_accuracy"]) for v in others)
    figures = (
        f"of {len(others)} versions the test loss differs by at most {loss:.1e} of its value, "
        f"the accuracy by {100 * accuracy:.2f} points"
    )
    return loss <= SAME_LOSS and accuracy <= SAME_ACCURACY, figures


def _larger_is_better(runs: list[Values]) -> tuple[bool, str]:
    alone, two, alone_large, two_large = (values["step_ms"] for values in runs)
    small, large = alone / two, alone_large / two_large
    return large > small, f"speed-up {large:.2f} with batch {LARGE:,}, {small:.2f} with batch 64"


def _constant(runs: list[Values]) -> tuple[bool, str]:
    alone, two = (values["step_ms"] for values in runs)
    return alone / two >= NEAR_CONSTANT, f"a step takes {two / alone:.2f} × as long; {1 / NEAR_CONSTANT:.2f} is near"
