"""Paper 000: França Sobreira and Guedes Carneiro, "Distributed Neural Network Training" (Campinas 2024)."""

from typing import Any

from manyhands.reproduction import base
from manyhands.reproduction.base import (
    Claim,
    HostFacts,
    Paper,
    PaperColumn,
    PaperRow,
    PaperTable,
    Setting,
    Values,
    printed,
)

SIDES = (28, 56, 112)
STEPS = {28: 25, 56: 15, 112: 8}
STEP_S = {28: 0.07, 56: 0.4, 112: 1.7}
"""Estimated time of a step on one core."""
NODES = (1, 2, 3, 4)
WORKER_NODES = (1, 2, 3)
"""Of OmpCluster, whose head takes one of the four nodes."""
PROFILED_STEPS = 40
MANY_AT_ONCE = "ours computes 1,000 images in a call"
WORSE = 0.85
"""Ratio of speed-ups below which one is worse: the tolerance of speed-ups."""
QUICK_STEPS = 8
QUICK_IMAGES = {"data": "mnist:train=5000,test=1000", "steps": QUICK_STEPS, "work_s": 1.5}
FUNCTIONS = (
    ("neural_network_hypothesis", "56.53", "120.92", "6010000", "FusedReplica._forward"),
    ("neural_network_gradient_update", "43.18", "92.37", "6000000", "FusedReplica._backward"),
    ("neural_network_softmax", "0.27", "0.58", "6010000", "FusedReplica._loss"),
)
"""Table 1 as printed: name, per cent of the time, self seconds, calls; and our function that does the same. Functions
that take next to no time are left out."""
TOTAL_S, EPOCH_S, EPOCHS = "213.92", "2.14", 100

LEFT_OUT = (
    "Figures 1 to 4 are diagrams. Table 1 has eight more functions, which take 0.01 % of the time or less. The total "
    "durations of figures 5 to 8 are pictures without numbers, so that speed-ups alone are held against the text."
)
STORY = """\
**It found** that the forward pass and the gradients take 99 % of a C program that handles image after image; that a
node with OpenMP is about 10 times as fast as one core; that MPI + OpenMP scales near-linearly to four nodes over
InfiniBand, while OmpCluster gains little from more nodes; and that a GPU is only 4 times as fast as the serial
program.

**We find** that most of it can be had on one core: with whole batches in matrix products an epoch takes
{table 1, training step/neural_network_training_step/s per call/2} s instead of
{table 1, training step/neural_network_training_step/s per call/paper} s. What is then left to share out is small: two
processes on two cores are {figure 6/MPI + OpenMP 2/speed-up/2} times as fast at 784 pixels and
{figure 8/MPI + OpenMP 2/speed-up/2} times at 12544. Simulated over InfiniBand, with memory of its own for each, four
nodes reach {figure 6/MPI + OpenMP 4/speed-up/predicted}, {figure 7/MPI + OpenMP 4/speed-up/predicted} and
{figure 8/MPI + OpenMP 4/speed-up/predicted} at the three sizes. A head with workers, rebuilt by Ray, gains
{figure 6/OmpCluster 2/speed-up/2} and {figure 8/OmpCluster 2/speed-up/2} from a second worker: the pattern itself
costs little here, so that what the paper lost was rather OmpCluster's or its use, as the authors suspect. The rows
of a GPU have not been run by this command yet; a sweep of 15 November 2026 on an H200 (benchmarks/sweep) had an epoch
at 784 pixels take 0.98 ms, 70 times as fast as one core of its host, single runs: the GPU's part in the paper is small
because its program, not the GPU, was the limit.

**It could not know**, with one program in C, that the ten-fold gain of a node and the poor GPU may have one cause:
work on one image at a time. Its figures are pictures without numbers, and it does not say how many cores a node has.
"""


def paper(machine: HostFacts) -> Paper:
    """Return the paper, with as many threads as the machine has cores; OmpCluster by Ray, if it is installed."""
    return Paper(
        number="000",
        title="Distributed Neural Network Training",
        by="Bruna França Sobreira and César Guedes Carneiro (Campinas 2024)",
        about="softmax regression on MNIST at image sizes 784, 3136 and 12544; OpenMP, MPI + OpenMP, OmpCluster, GPU",
        network="infiniband",
        rebuilds="profile (table 1), speed-up on one node (figure 5) and on 1–4 nodes (figures 6–8)",
        story=STORY,
        left_out=LEFT_OUT,
        tables=(
            _table_1(),
            _training_step(),
            _figure_5(machine),
            *(_nodes(machine, i, side) for i, side in enumerate(SIDES, start=6)),
        ),
        claims=() if machine.lacks_ray else tuple(_worse_than_mpi(machine, side) for side in SIDES),
    )


def _run(side: int, **options: Any) -> Setting:
    engine = options.get("engine", "serial")
    nodes = options["workers"] if engine in ("mpi", "hybrid") else 1
    left_out = engine == "ray" or nodes == 3 or (nodes == 4 and side == 112)
    quick = QUICK_IMAGES if side == 112 else {"steps": QUICK_STEPS, "work_s": QUICK_STEPS * STEP_S[side]}
    return Setting(
        task="softmax",
        options={
            "blas_threads": 1,
            "data": "mnist:test=1000",
            "steps": STEPS[side],
            **({"image_size": side} if side > 28 else {}),
            **options,
        },
        work_s=STEPS[side] * STEP_S[side] / min(2, options.get("workers", 1)),
        quick=None if left_out else quick,
        smaller="5,000 of the 60,000 images" if side == 112 else "",
    )


def _table_1() -> PaperTable:
    profile = Setting(
        command="profile",
        task="softmax",
        options={"blas_threads": 1, "data": "mnist:test=1000", "steps": PROFILED_STEPS, "trace": 0},
        work_s=2 + PROFILED_STEPS * STEP_S[28],
        quick={"steps": PROFILED_STEPS // 2, "work_s": 2 + PROFILED_STEPS // 2 * STEP_S[28]},
    )
    rows = [
        PaperRow(
            labels=(name, ours),
            published={"% of the time": printed(share), "calls": printed(calls)},
            timed=profile,
            part=ours,
            note="ours computes the loss apart, and turns pixels into numbers in every step",
        )
        for name, share, _, calls, ours in FUNCTIONS
    ]
    rows.append(PaperRow(labels=("(pixels are numbers already)", "Split._scaled"), timed=profile, part="Split._scaled"))
    return PaperTable(
        name="table 1",
        title="profile of the serial program",
        headings=("function", "of ours"),
        columns=(
            PaperColumn("% of the time", "share", "share {}"),
            PaperColumn("calls", "count", "calls {}", scale=EPOCHS, decimals=0, unjudged=MANY_AT_ONCE),
        ),
        rows=tuple(rows),
        notes=("Ours are shares of the training loop; 'manyhands profile softmax' shows all of it.",),
    )


def _training_step() -> PaperTable:
    whole = {"s per call": printed(EPOCH_S), "total s": printed(TOTAL_S)}
    return PaperTable(
        name="table 1, training step",
        title="time of an epoch of the serial program, and of all 100",
        headings=("function",),
        columns=(
            PaperColumn("s per call", "time", "epoch_s", decimals=3),
            PaperColumn("total s", "time", "epoch_s", scale=EPOCHS, decimals=1),
        ),
        rows=(PaperRow(labels=("neural_network_training_step",), published=whole, timed=_run(28)),),
    )


def _figure_5(machine: HostFacts) -> PaperTable:
    openmp = {"engine": "threads", "workers": machine.cores}
    head_and_worker = {"engine": "ray", "workers": 1, "sync": "parameter-server", "blas_threads": machine.cores}
    versions = (
        ("MPI + OpenMP", "about 10", openmp, ""),
        ("OmpCluster", "about 10", head_and_worker, machine.lacks_ray),
        ("GPU", "about 4", {"device": "cuda"}, machine.lacks_gpu),
    )
    rows = [
        PaperRow(
            labels=(f"{side**2}", name),
            published={"speed-up": printed(text)},
            timed=None if left else _run(side, **options),
            base=None if left else _run(side),
            left=left,
        )
        for name, text, options, left in versions
        for side in SIDES
    ]
    return PaperTable(
        name="figure 5",
        title="speed-up on one node over the serial program",
        headings=("image size", "with"),
        columns=base.EPOCH_AND_SPEED_UP,
        rows=tuple(rows),
        notes=(
            "The figure is a picture; its numbers are those of the text: about 10 for MPI + OpenMP and for OmpCluster "
            "at all sizes, a scale of 4 for the GPU. How many cores a node has is not said; here it is all of this "
            "machine's.",
            "OmpCluster is rebuilt by Ray: a head that holds the weights, and one worker node, an actor that computes "
            "with a thread on each core.",
        ),
    )


def _threads(machine: HostFacts) -> int:
    """Return the threads of a node, of which the machine stands for as many as the paper has."""
    return max(1, machine.cores // max(NODES))


def _mpi(machine: HostFacts, side: int, nodes: int) -> Setting:
    threads = _threads(machine)
    if nodes == 1:
        return _run(side, engine="threads", workers=threads) if threads > 1 else _run(side)
    many = {"engine": "hybrid", "threads": threads} if threads > 1 else {"engine": "mpi"}
    return _run(side, **many, workers=nodes, sync="reduce-broadcast")


def _ray(machine: HostFacts, side: int, nodes: int) -> Setting:
    return _run(side, engine="ray", workers=nodes, sync="parameter-server", blas_threads=_threads(machine))


def _nodes(machine: HostFacts, figure: int, side: int) -> PaperTable:
    threads, left = _threads(machine), machine.lacks_ray
    rows = [
        PaperRow(
            labels=("MPI + OpenMP", f"{nodes}"),
            published={"speed-up": printed(f"near {nodes}" if nodes > 1 else "1")},
            timed=_mpi(machine, side, nodes),
            base=_mpi(machine, side, 1),
        )
        for nodes in NODES
    ]
    rows += [
        PaperRow(
            labels=("OmpCluster", f"{nodes}"),
            published={"speed-up": printed("1")} if nodes == 1 else {},
            timed=None if left else _ray(machine, side, nodes),
            base=None if left else _ray(machine, side, 1),
            left=left,
        )
        for nodes in WORKER_NODES
    ]
    caption = " (the caption says 3248, which is no square; 56 × 56 is meant)" if side == 56 else ""
    return PaperTable(
        name=f"figure {figure}",
        title=f"several nodes, image size {side**2}, speed-up over one node",
        headings=("with", "nodes"),
        columns=base.EPOCH_AND_SPEED_UP,
        rows=tuple(rows),
        notes=(
            f"The figure is a picture{caption}; the text calls MPI + OpenMP near-linear, and the gain of OmpCluster "
            f"minimal. Here a node is a process of {threads} thread{'s' if threads > 1 else ''} on one machine, and "
            f"rank 0 reduces and broadcasts as in the paper.",
            "OmpCluster is rebuilt by Ray: worker nodes are actors that keep their images, and push gradients to a "
            "head, which holds the weights and, as in the paper, is one node more; it sleeps while they compute. With "
            "four nodes the paper had three workers at most.",
        ),
    )


def _worse_than_mpi(machine: HostFacts, side: int) -> Claim:
    of_mpi, of_ray = ([make(machine, side, nodes) for nodes in (1, 2)] for make in (_mpi, _ray))
    return Claim(
        text=f"OmpCluster scales worse than MPI + OpenMP from one to two nodes, image size {side**2}",
        settings=(*of_mpi, *of_ray),
        holds=_ray_is_worse,
        speed=True,
        otherwise="better",
    )


def _ray_is_worse(runs: list[Values]) -> tuple[bool, str]:
    mpi_1, mpi_2, ray_1, ray_2 = (values["epoch_s"] for values in runs)
    is_worse = ray_1 / ray_2 < WORSE * mpi_1 / mpi_2
    return is_worse, f"speed-up {ray_1 / ray_2:.2f} by Ray, {mpi_1 / mpi_2:.2f} by MPI"
