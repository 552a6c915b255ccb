"""Paper 000: França Sobreira and Guedes Carneiro, "Distributed Neural Network Training" (Campinas 2024)."""

from typing import Any

from manyhands.reproduction import base
from manyhands.reproduction.base import HostFacts, Paper, PaperColumn, PaperRow, PaperTable, Setting, printed

SIDES = (28, 56, 112)
STEPS = {28: 25, 56: 15, 112: 8}
STEP_S = {28: 0.07, 56: 0.4, 112: 1.7}
"""Estimated time of a step on one core."""
NODES = (1, 2, 3, 4)
PROFILED_STEPS = 40
MANY_AT_ONCE = "ours computes 1,000 images in a call"
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


def paper(machine: HostFacts) -> Paper:
    """Return the paper, with as many threads as the machine has cores."""
    return Paper(
        number="000",
        title="Distributed Neural Network Training",
        about="softmax regression on MNIST at image sizes 784, 3136 and 12544; OpenMP, MPI + OpenMP, OmpCluster, GPU",
        rebuilds="profile (table 1), speed-up on one node (figure 5) and on 1–4 nodes (figures 6–8)",
        tables=(
            _table_1(),
            _training_step(),
            _figure_5(machine),
            *(_nodes(machine, i, side) for i, side in enumerate(SIDES, start=6)),
        ),
    )


def _run(side: int, **options: Any) -> Setting:
    nodes = options["workers"] if options.get("engine") in ("mpi", "hybrid") else 1
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
        quick=None if nodes == 3 or (nodes == 4 and side == 112) else quick,
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
    versions = (("OpenMP", "about 10", openmp, ""), ("GPU", "about 4", {"device": "cuda"}, machine.lacks_gpu))
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
            "The figure is a picture; its numbers are those of the text: about 10 for OpenMP at all sizes, a scale of "
            "4 for the GPU. How many cores a node has is not said; here it is all of this machine's.",
        ),
    )


def _nodes(machine: HostFacts, figure: int, side: int) -> PaperTable:
    threads = max(1, machine.cores // max(NODES))
    one = _run(side, engine="threads", workers=threads) if threads > 1 else _run(side)
    many = {"engine": "hybrid", "threads": threads} if threads > 1 else {"engine": "mpi"}
    rows = [PaperRow(labels=("1",), published={"speed-up": printed("1")}, timed=one, base=one)]
    rows += [
        PaperRow(
            labels=(f"{nodes}",),
            published={"speed-up": printed(f"near {nodes}")},
            timed=_run(side, **many, workers=nodes, sync="reduce-broadcast"),
            base=one,
        )
        for nodes in NODES[1:]
    ]
    caption = " (the caption says 3248, which is no square; 56 × 56 is meant)" if side == 56 else ""
    return PaperTable(
        name=f"figure {figure}",
        title=f"MPI + OpenMP on several nodes, image size {side**2}, speed-up over one node",
        headings=("nodes",),
        columns=base.EPOCH_AND_SPEED_UP,
        rows=tuple(rows),
        notes=(
            f"The figure is a picture{caption}; the text calls MPI + OpenMP near-linear. Here a node is a process of "
            f"{threads} thread{'s' if threads > 1 else ''} on one machine, and rank 0 reduces and broadcasts as in the "
            f"paper. OmpCluster is not rebuilt.",
        ),
    )
