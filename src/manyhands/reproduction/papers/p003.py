"""Paper 003: Wang and Yang, "Distributed and Parallel Deep Learning: A case study of image classification on MNIST"."""

import statistics
from typing import Any, NamedTuple

from manyhands.reproduction import base
from manyhands.reproduction.base import Claim, HostFacts, Paper, PaperColumn, PaperRow, PaperTable, Setting, printed

BATCH, RATE, EPOCHS = 128, 0.001, 5
STEP_S = 0.07
"""Estimated time of a step of one process on its own core."""
STEPS, QUICK_STEPS = 25, 12
PARAMETERS = "690,590"


class Line(NamedTuple):
    """A line of table 2 as printed."""

    nodes: int
    per_node: int
    read_s: str
    batch_s: str
    epoch_s: str
    loss: str
    accuracy: str
    total_s: str

    @property
    def processes(self) -> int:
        """Number of processes on all nodes."""
        return self.nodes * self.per_node


TABLE_2 = (
    Line(1, 1, "0.53", "0.14", "142.04", "0.0441", "98.80", "595.27"),
    Line(1, 2, "0.55", "0.15", "82.06", "0.0559", "98.43", "416.88"),
    Line(1, 4, "0.54", "0.17", "34.40", "0.0659", "98.28", "193.12"),
    Line(1, 8, "0.55", "0.15", "20.52", "0.0912", "97.20", "103.67"),
    Line(2, 1, "0.57", "0.15", "81.99", "0.0521", "98.48", "415.21"),
    Line(2, 2, "0.55", "0.16", "41.03", "0.0664", "98.32", "207.78"),
    Line(2, 4, "0.53", "0.18", "20.52", "0.1115", "96.75", "97.32"),
    Line(4, 1, "0.88", "0.13", "41.06", "0.0591", "98.47", "215.06"),
    Line(4, 2, "0.89", "0.13", "20.53", "0.1942", "94.03", "130.8"),
)
PROCESSES = (1, 2, 4, 8)
GPU_READ_S, GPU_TOTAL_S = "0.38", "47.42"
GPU_EPOCHS_S = (8.87, 10.13, 8.82, 10.35, 8.70)
"""Of the run on one GPU, whose output the paper shows under "Further improvement"."""

LEFT_OUT = (
    "Table 1 lists settings, which ours follow; figures 2 to 5 are diagrams. Figures 7 to 10 draw table 2, and figure "
    "6 is the output of its row 2 × 4."
)
STORY = """\
**It found** that 8 processes train an epoch about {table 2/1 × 8/speed-up/paper} times as fast as one, that nodes
more or less make no difference, and that test accuracy falls from {table 2/1 × 1/accuracy %/paper} % to between 94.03
and 97.20 % as the batch grows with the processes, which it puts down to large batches. One GPU took half the time of
its best run.

**We find** {table 2/1 × 2/speed-up/2} on two processes, and, simulated with a core for each,
{table 2/1 × 4/speed-up/predicted} on 4 and {table 2/1 × 8/speed-up/predicted} on 8. With the paper's rate of 0.001 ×
n the accuracy with 8 processes is {table 2/1 × 8/accuracy %/2} %; with a rate that is warmed up and falls it is
{table 2/1 × 8, eased/accuracy %/2} %. The row of a GPU has not been run by this command yet; a sweep of
15 November 2026 on an H200 (benchmarks/sweep) had the network at batch 128 take 3.1 ms a step, 31 times as fast as one
core of its host, a single run.

**It could not know** that the fall is the learning rate's rather than the batch's: a rate of 0.008 in Adam without a
warm-up. Three runs with 8 processes differ by 3 points there, which says that training was hardly stable.
"""


def paper(machine: HostFacts) -> Paper:
    """Return the paper, whose rows are the same on every machine, but for the GPU's."""
    return Paper(
        number="003",
        title="Distributed and Parallel Deep Learning",
        by="Shiyuan Wang and Xiaokai Yang (Illinois): a case study of image classification on MNIST",
        about="CNN of 690,590 parameters on MNIST, Adam, batch 128 × n, rate 0.001 × n; MPI on 1, 2 and 4 nodes",
        rebuilds="nodes × processes: times, speed-up, loss and accuracy (table 2), one GPU, parameters (figure 1)",
        story=STORY,
        left_out=LEFT_OUT,
        tables=(base.parameters_table("figure 1", PARAMETERS, _timed(1)), _table_2(machine)),
        claims=(
            Claim(
                text="test accuracy falls as the processes, and with them the batch, grow",
                settings=tuple(_whole(n) for n in PROCESSES),
                holds=_falls,
                otherwise="better",
            ),
        ),
    )


def _run(processes: int, **options: Any) -> dict[str, Any]:
    many = {"engine": "mpi", "workers": processes, "sync": "reduce-broadcast"} if processes > 1 else {}
    return {"blas_threads": 1, "batch_per_worker": BATCH, **many, **options}


def _timed(processes: int, **device: Any) -> Setting:
    step_s = STEP_S * processes / min(2, processes)
    return Setting(
        task="cnn",
        options=_run(processes, lr=RATE * processes, data="mnist:test=1000", steps=STEPS, **device),
        work_s=2 + step_s * STEPS,
        rows=BATCH,
        quick={"steps": QUICK_STEPS, "work_s": 2 + step_s * QUICK_STEPS},
    )


def _whole(processes: int, **options: Any) -> Setting:
    rate = {} if "lr_scaling" in options else {"lr": RATE * processes}
    return Setting(
        task="cnn",
        options=_run(processes, epochs=EPOCHS, **rate, **options),
        work_s=20 if "device" in options else EPOCHS * 469 * STEP_S / min(2, processes) + 10,
        once=True,
        quick=None,
    )


def _table_2(machine: HostFacts) -> PaperTable:
    one_s = float(TABLE_2[0].epoch_s)
    rows = [
        PaperRow(
            labels=(f"{line.nodes} × {line.per_node}",),
            published={
                "read s": printed(line.read_s),
                "batch s": printed(line.batch_s),
                "epoch s": printed(line.epoch_s),
                "total s": printed(line.total_s),
                "speed-up": base.derived(one_s / float(line.epoch_s)),
                "test loss": _spread(line, "loss"),
                "accuracy %": _spread(line, "accuracy"),
            },
            timed=_timed(line.processes),
            base=_timed(1),
            whole=_whole(line.processes),
        )
        for line in TABLE_2
    ]
    rows.append(PaperRow(labels=("1 × 8, eased",), whole=_whole(8, lr_scaling="linear")))
    rows.append(_gpu(machine.lacks_gpu))
    return PaperTable(
        name="table 2",
        title="nodes × processes per node",
        headings=("nodes × processes",),
        columns=(
            PaperColumn("read s", "time", "read_s"),
            PaperColumn("batch s", "time", "step_s", decimals=3),
            PaperColumn("epoch s", "time", "epoch_s"),
            PaperColumn("total s", "time", "total_s", whole=True, decimals=1),
            PaperColumn("speed-up", "speed-up", "epoch_s"),
            PaperColumn("test loss", "loss", "test_loss", whole=True, decimals=4),
            PaperColumn("accuracy %", "accuracy", "test_accuracy", whole=True, scale=100),
        ),
        rows=tuple(rows),
        notes=(
            "Here all processes are on one machine, so that rows of as many processes are one measurement. Speed-up "
            "is by the time of an epoch; the paper prints none.",
            "Nodes do not change what is learned: loss and accuracy are held against the spread of all rows with as "
            "many processes, which the paper trained two or three times (94.03 to 97.20 % with 8).",
            "The paper's times do not quite agree: five epochs of 142.04 s are more than the whole 595.27 s, 469 "
            "batches of 0.14 s less than half an epoch, and 4 processes are 4.1 times as fast as one.",
            "The row 'eased' is ours: --lr-scaling linear, which warms the rate up and lets it fall.",
            "The GPU's epoch is the median of the five under 'Further improvement', which give no test accuracy.",
        ),
    )


def _gpu(left: str) -> PaperRow:
    epoch_s = statistics.median(GPU_EPOCHS_S)
    return PaperRow(
        labels=("one GPU",),
        published={
            "read s": printed(GPU_READ_S),
            "epoch s": base.derived(epoch_s),
            "total s": printed(GPU_TOTAL_S),
            "speed-up": base.derived(float(TABLE_2[0].epoch_s) / epoch_s),
        },
        timed=None if left else _timed(1, device="cuda"),
        base=None if left else _timed(1),
        whole=None if left else _whole(1, device="cuda"),
        left=left,
    )


def _spread(line: Line, name: str) -> base.Published:
    """Return a figure as printed, with the range over all rows of as many processes, which train the same."""
    alike = [printed(getattr(other, name)).low for other in TABLE_2 if other.processes == line.processes]
    return base.Published(getattr(line, name), min(alike), max(alike))


def _falls(runs: list[base.Values]) -> tuple[bool, str]:
    accuracies = [100 * values["test_accuracy"] for values in runs]
    listed = ", ".join(f"{a:.2f} % with {n}" for n, a in zip(PROCESSES, accuracies, strict=True))
    return accuracies[-1] < accuracies[0] and accuracies[-1] == min(accuracies), listed
