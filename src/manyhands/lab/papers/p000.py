"""Paper 000: França Sobreira and Guedes Carneiro, "Distributed Neural Network Training" (Campinas 2024)."""

from typing import Any

from manyhands.lab.papers.base import Column, Machine, Paper, PaperRow, PaperTable, Setting, printed

SIDES = (28, 56, 112)
STEPS = {28: 25, 56: 15, 112: 8}
STEP_S = {28: 0.06, 56: 0.25, 112: 1.6}
"""About how long a step takes on one core."""
NODES = (1, 2, 3, 4)
QUICK_IMAGES = {"data": "mnist:train=10000,test=1000", "steps": 8, "work_s": 2.5}
FUNCTIONS = (
    ("neural_network_hypothesis", "56.53", "120.92", "6010000"),
    ("neural_network_gradient_update", "43.18", "92.37", "6000000"),
    ("neural_network_softmax", "0.27", "0.58", "6010000"),
    ("neural_network_training_step", "0.01", "0.02", "100"),
    ("_init", "0.01", "0.02", "-"),
    ("neural_network_random_weights", "0.00", "0.01", "1"),
)
"""Table 1 as printed: name, per cent of the time, self seconds, calls; functions below are called in no time."""
TOTAL_S, EPOCH_S, EPOCHS = "213.92", "2.14", 100


def paper(machine: Machine) -> Paper:
    """Return the paper, with rows for a machine of so many cores."""
    return Paper(
        number="000",
        title="Distributed Neural Network Training",
        about="softmax regression on MNIST at image sizes 784, 3136 and 12544; OpenMP, MPI + OpenMP, OmpCluster, GPU",
        rebuilds="time of an epoch (table 1), speed-up on one node (figure 5) and on 1–4 nodes (figures 6–8)",
        tables=(_table_1(), _figure_5(machine), *(_nodes(machine, i, side) for i, side in enumerate(SIDES, start=6))),
    )


def _run(side: int, **options: Any) -> Setting:
    steps = STEPS[side]
    cut = side == 112
    return Setting(
        task="softmax",
        options={
            "blas_threads": 1,
            "data": "mnist:test=1000",
            "steps": steps,
            **({"image_size": side} if side > 28 else {}),
            **options,
        },
        work_s=steps * STEP_S[side] / min(2, options.get("workers", 1)),
        quick=QUICK_IMAGES if cut else {"steps": min(steps, 10), "work_s": 10 * STEP_S[side]},
        smaller="10,000 of the 60,000 images" if cut else "",
    )


def _table_1() -> PaperTable:
    whole = {"s per call": printed(EPOCH_S), "total s": printed(TOTAL_S)}
    return PaperTable(
        name="table 1",
        title="profile of the serial program; here its epoch, which the training step is",
        headings=("function",),
        columns=(
            Column(name="s per call", kind="time", of="epoch_s", decimals=3),
            Column(name="total s", kind="time", of="epoch_s", scale=EPOCHS, decimals=1),
        ),
        rows=(PaperRow(labels=("training step, 100 calls",), published=whole, timed=_run(28)),),
        notes=(
            "The shares of the functions (56.53 % hypothesis, 43.18 % gradient update) are shown by 'manyhands profile "
            "softmax'; ours are matrix products over many images at once, so that functions do not match one to one.",
        ),
    )


def _figure_5(machine: Machine) -> PaperTable:
    rows = [
        PaperRow(
            labels=(f"{side**2}", "OpenMP"),
            published={"speed-up": printed("about 10")},
            timed=_run(side, engine="threads", workers=machine.cores),
            base=_run(side),
        )
        for side in SIDES
    ]
    rows += [
        PaperRow(
            labels=(f"{side**2}", "GPU"),
            published={"speed-up": printed("about 4")},
            timed=_run(side, device="cuda") if machine.gpus else None,
            base=_run(side) if machine.gpus else None,
            left="" if machine.gpus else "needs a GPU, and torch sees none here",
        )
        for side in SIDES
    ]
    return PaperTable(
        name="figure 5",
        title="speed-up on one node over the serial program",
        headings=("image size", "with"),
        columns=_columns(),
        rows=tuple(rows),
        notes=(
            "The figure is a picture; its numbers are those of the text: about 10 for OpenMP at all sizes, a scale of "
            "4 for the GPU. How many cores a node has is not said; here it is all of this machine's.",
        ),
    )


def _nodes(machine: Machine, figure: int, side: int) -> PaperTable:
    threads = max(1, machine.cores // max(NODES))
    one = _run(side, engine="threads", workers=threads) if threads > 1 else _run(side)
    rows = [PaperRow(labels=("1",), published={"speed-up": printed("1")}, timed=one, base=one)]
    rows += [
        PaperRow(
            labels=(f"{nodes}",),
            published={"speed-up": printed(f"near {nodes}")},
            timed=_run(side, **_spread(nodes, threads), sync="reduce-broadcast"),
            base=one,
        )
        for nodes in NODES[1:]
    ]
    caption = " (the caption says 3248, which is no square; 56 × 56 is meant)" if side == 56 else ""
    return PaperTable(
        name=f"figure {figure}",
        title=f"MPI + OpenMP on several nodes, image size {side**2}, speed-up over one node",
        headings=("nodes",),
        columns=_columns(),
        rows=tuple(rows),
        notes=(
            f"The figure is a picture{caption}; the text calls MPI + OpenMP near-linear. Here a node is a process of "
            f"{threads} thread{'s' if threads > 1 else ''} on one machine, and rank 0 reduces and broadcasts as in the "
            f"paper. OmpCluster is not rebuilt.",
        ),
    )


def _spread(nodes: int, threads: int) -> dict[str, Any]:
    if threads == 1:
        return {"engine": "mpi", "workers": nodes}
    return {"engine": "hybrid", "workers": nodes, "threads": threads}


def _columns() -> tuple[Column, ...]:
    return (
        Column(name="epoch s", kind="time", of="epoch_s", decimals=3),
        Column(name="speed-up", kind="speed-up", of="epoch_s"),
    )
