"""Paper 002: Liu and Lin, "Parallelizing Neural Network using MPI" (Columbia, APMA4302, 2021)."""

from typing import Any

from manyhands.reproduction.base import HostFacts, Paper, PaperColumn, PaperRow, PaperTable, Setting, derived, printed

ITERATIONS = 10
STRONG = (
    (1, "43.67", "1", "3.4581723865541387"),
    (2, "23.79", "1.84", "3.496332638489219"),
    (4, "14.81", "2.95", "3.4382602931234088"),
    (6, "12.17", "3.59", "3.4254379412279445"),
    (8, "11.01", "3.97", "3.4654451530017747"),
)
"""Table 1 as printed: processes, seconds, speed-up; and the cost at iteration 10, from figure 7."""
WEAK = ((1, "4.3"), (2, "4.97"), (4, "5.65"), (6, "6.51"), (8, "7.68"))
"""Table 2 as printed: processes, seconds; each process has 5,000 samples."""
SAMPLES, COPIES = 5_000, 12
COPY_S = 0.45
"""Estimated time of ten iterations over 5,000 samples on one core."""

LEFT_OUT = (
    "Figures 4 to 6 draw tables 1 and 2. Of figure 7, the program's output, costs of iterations 1 to 9 depend on the "
    "first weights, which the paper does not give."
)
STORY = """\
**It found** a speed-up of {table 1/2/speed-up/paper} on 2 and {table 1/8/speed-up/paper} on 8 processes of a
processor with 4 cores and 8 logical ones, and an efficiency of weak scaling that falls to
{table 2/8 (40,000)/efficiency/paper}. It puts the loss down to Amdahl's law, to communication, and to load balancing.

**We find** {table 1/2/speed-up/2} on 2 processes, each with a core, and {table 2/2 (10,000)/efficiency/2} of weak
scaling: the gather at rank 0 costs next to nothing beside 30,000 samples. The cost after ten iterations,
{table 1/1/cost at iteration 10/2}, is the same for any number of processes, while the paper's differ since every run
begins elsewhere. Simulated with a core for each, 4 and 8 processes reach {table 1/4/speed-up/predicted} and
{table 1/8/speed-up/predicted}.

**It could not know** what share of its loss was the processor's: 8 processes shared 4 cores, so that the last
doubling measured hyper-threading, not communication.
"""


def paper(machine: HostFacts) -> Paper:
    """Return the paper, whose rows are the same on every machine."""
    return Paper(
        number="002",
        title="Parallelizing Neural Network using MPI",
        by="Yaoxuan Liu and Shengjie Lin (Columbia, APMA4302, 2021)",
        about="one hidden layer, sigmoid outputs, full batch, 5,000 samples replicated; rank 0 gathers and averages",
        rebuilds="strong scaling on data × 12 (table 1), weak scaling on 5,000 samples a process (table 2)",
        story=STORY,
        left_out=LEFT_OUT,
        tables=(_strong(), _weak()),
    )


def _run(processes: int, copies: int) -> Setting:
    many: dict[str, Any] = {"engine": "mpi", "workers": processes, "sync": "gather-server"} if processes > 1 else {}
    return Setting(
        task="mlp-sigmoid",
        options={"blas_threads": 1, "replicate": copies, "epochs": ITERATIONS, "eval_every": ITERATIONS, **many},
        work_s=1 + copies * COPY_S / min(2, processes),
        rows=SAMPLES if copies == processes else 0,
        quick=None if processes == 6 else {},
    )


def _strong() -> PaperTable:
    one = _run(1, COPIES)
    return PaperTable(
        name="table 1",
        title="strong scaling: 60,000 samples, 10 iterations",
        headings=("processes",),
        columns=(
            PaperColumn("time s", "time", "epoch_s", scale=ITERATIONS),
            PaperColumn("speed-up", "speed-up", "epoch_s"),
            PaperColumn("cost at iteration 10", "loss", "train_loss", decimals=3),
        ),
        rows=tuple(
            PaperRow(
                labels=(f"{n}",),
                published={
                    "time s": printed(time_s),
                    "speed-up": printed(speed_up),
                    "cost at iteration 10": derived(float(cost), 3),
                },
                timed=_run(n, COPIES),
                base=one,
            )
            for n, time_s, speed_up, cost in STRONG
        ),
        notes=(
            "The paper gives neither the hidden width (ours: 256) nor the first weights; its costs come from figure 7 "
            "and begin elsewhere in every run.",
        ),
    )


def _weak() -> PaperTable:
    one = _run(1, 1)
    first_s = float(WEAK[0][1])
    return PaperTable(
        name="table 2",
        title="weak scaling: 5,000 samples a process, 10 iterations",
        headings=("processes (samples)",),
        columns=(
            PaperColumn("time s", "time", "epoch_s", scale=ITERATIONS),
            PaperColumn("efficiency", "speed-up", "epoch_s"),
        ),
        rows=tuple(
            PaperRow(
                labels=(f"{n} ({n * SAMPLES:,})",),
                published={"time s": printed(time_s), "efficiency": derived(first_s / float(time_s))},
                timed=_run(n, n),
                base=one,
            )
            for n, time_s in WEAK
        ),
        notes=(
            "The paper prints times only; efficiency is that of one process over that of n. Its tables do not quite "
            "agree: one process takes 43.67 s for 60,000 samples, but 4.3 s, not a twelfth, for 5,000.",
        ),
    )
