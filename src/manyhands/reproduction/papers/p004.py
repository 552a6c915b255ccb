"""Paper 004: "Simulation of Parallelization of Deep Neural Networks by Dividing Data"."""

from collections.abc import Mapping
from typing import Any

from manyhands.reproduction import base
from manyhands.reproduction.base import Claim, HostFacts, Paper, PaperColumn, PaperRow, PaperTable, Setting, printed

TABLE_3 = ((1, "9,511.66", ""), (2, "9,123.58", "4.08"), (4, "8,277.06", "9.28"), (8, "2,909.78", "64.85"))
"""As printed: nodes, seconds, improvement."""
TABLE_4 = ((1, "2815.08", ""), (2, "2647.11", "5.97"), (4, "4168.46", "−48.08"))
"""As printed: nodes, seconds, improvement."""
ONE_NODE = "33"
"""Accuracy on one node, which the text gives for table 2."""
IMAGES = "mnist:train=40000,test=10000"
QUICK_IMAGES = {"data": "mnist:train=4000,test=1000", "epochs": 5, "work_s": 3.0}
QUICK_TWEETS = {"epochs": 2, "work_s": 2.0}
FEW_IMAGES, FEW_EPOCHS = "4,000 of the 40,000 images, 5 of the 20 epochs", "2 epochs"
EPOCHS = {"recommender": 10, "dnn": 20}
"""Of the built-in tasks; the paper gives none for those on tweets."""
WORK_S = {"recommender": 5.0, "dnn": 10.0}
"""Estimated time of their training on tweets."""
PROCESSORS = (1, 2, 4, 6, 8)
FOLDS = (2, 5, 10)
CLOSE_POINTS = 2.0
"""Points of accuracy that count as close, or as a small decrease."""
PICTURE = "The table is a picture in our copy of the paper, so that none of its figures can be typed in"
OTHER_TWEETS = "the paper's tweets are not public, ours are generated"
NETWORK = (
    "The paper does not describe its CNN; ours is the built-in dnn with the paper's rate 0.099, batch 1024 and 20 "
    "epochs on 50,000 images of MNIST, cut 80–20."
)

LEFT_OUT = "Table 1 lists machines, figures 1 and 2 are diagrams."
STORY = """\
**It found** that cutting the data over nodes lowers the accuracy and that averaging weights costs more than 4 and 8
nodes gain; that ten folds on each node keep the accuracy; and that cutting the data saves up to 60 % of the time.

**We find** that two nodes which train their halves save {table 3/2/improvement %/2} % of the time of ten folds; 8
nodes would save {table 3/8/improvement %/predicted} % if all trained at once, since they exchange nothing; the
paper's formula gives {table 3/8/improvement %/paper}. Averaging once costs little: two nodes save
{table 4/2/improvement %/2} % where it saved {table 4/2/improvement %/paper} %. Accuracy falls with the number of
nodes for another reason than less data: in as many epochs a node makes an n-th of the steps.

**It could not know** what a node of its own costs: its simulator trained nodes on one processor, in which 2 and 4
nodes saved 4 and 13 %, and 8 suddenly 69 %. Tables 2 and 5 to 8 are pictures in our copy, so that only sentences can
be judged.
"""


def paper(machine: HostFacts) -> Paper:
    """Return the paper, with as many parallel workers as the machine has cores, and its GPU if it has one."""
    return Paper(
        number="004",
        title="Simulation of Parallelization of Deep Neural Networks by Dividing Data",
        by="Authors unnamed in our copy",
        about="perceptrons on 94,000 tweets and a CNN on MNIST; data cut over nodes, k-fold on each, weights averaged",
        rebuilds="data cut over nodes (tables 2–4), k folds × processors on images (tables 5–8)",
        story=STORY,
        left_out=LEFT_OUT,
        tables=(
            _table_2(),
            _table_3(machine),
            _table_4(),
            _table_5(machine),
            _table_6(machine),
            _table_7(),
            _table_8(machine),
        ),
        claims=_claims(machine),
    )


def _averaged(task: str, nodes: int) -> Setting:
    many = {"engine": "mpi", "workers": nodes, "sync": "average-once"} if nodes > 1 else {}
    return Setting(
        task=task,
        options={"blas_threads": 1, "data": "tweets", "top": 10, **many},
        work_s=WORK_S[task],
        quick=None if nodes > 4 else QUICK_TWEETS,
        shorter=FEW_EPOCHS,
    )


def _folds(task: str, folds: int, work_s: float, *, left_out: bool, **options: Any) -> Setting:
    """Return a cross-validation; `left_out` says whether `--quick` leaves it out."""
    images = task == "dnn"
    quick = QUICK_IMAGES if images else QUICK_TWEETS
    return Setting(
        command="crossval",
        task=task,
        options={"blas_threads": 1, "folds": folds, "baseline": False, **options},
        work_s=work_s,
        once=images,  # half an hour for all, as it is
        quick=None if left_out else quick,
        smaller=FEW_IMAGES if images else "",
        shorter="" if images else FEW_EPOCHS,
    )


def _tweets(machine: HostFacts, nodes: int) -> Setting:
    return _folds("recommender", 10, 40 / min(nodes, 2), left_out=nodes > 4, **_cut(machine, nodes))


def _split(machine: HostFacts, nodes: int, folds: int, device: str = "") -> Setting:
    cut = {"split_data": True, "nodes": nodes, "device": device} if device else _cut(machine, nodes)
    left_out, work_s = nodes > 2 or folds != 10, (folds - 1) * 19 / min(nodes, 2)
    return _folds("dnn", folds, work_s, left_out=left_out, data=IMAGES, **cut)


def _unsplit(processors: int) -> Setting:
    many = {"engine": "mpi", "workers": processors} if processors > 1 else {}
    return _folds("dnn", 10, 170 / min(processors, 2), left_out=processors > 2, data=IMAGES, **many)


def _cut(machine: HostFacts, nodes: int) -> dict[str, Any]:
    """Return the options that split the data over nodes, each trained by one worker; at most one per core at a time."""
    workers = min(nodes, machine.cores)
    many = {"engine": "mpi", "workers": workers} if workers > 1 else {}
    return {"split_data": True, "nodes": nodes, **many}


def _table_2() -> PaperTable:
    return PaperTable(
        name="table 2",
        title="MLP with one hidden layer on tweets, 80–20: data cut over nodes, weights averaged once",
        headings=("nodes",),
        columns=_averaged_columns("recommender"),
        rows=_averaged_rows("recommender", {1: {"accuracy %": printed(ONE_NODE)}, 2: {}, 4: {}, 8: {}}),
        notes=(f"{PICTURE}; the text says 33 % for one node, and that 4 and 8 nodes take longer than they gain.",),
    )


def _table_3(machine: HostFacts) -> PaperTable:
    one = _tweets(machine, 1)
    return PaperTable(
        name="table 3",
        title="MLP with one hidden layer on tweets: 10 folds on each node, without averaging",
        headings=("nodes",),
        columns=(
            PaperColumn("time s", "time", "total_s"),
            PaperColumn("improvement %", "improvement", "total_s"),
            PaperColumn("slowest node s", "time", "longest_node_s"),
        ),
        rows=tuple(
            PaperRow(labels=(f"{n}",), published=published, timed=_tweets(machine, n), base=one)
            for n, published in _by_formula(TABLE_3).items()
        ),
        notes=(
            "The paper's formula, (T1 − Tn) / T1, gives 12.98 and 69.41 % for 4 and 8 nodes; it prints 9.28 and 64.85, "
            "which are improvements over the row before. We hold ours against the formula.",
            _in_turn(machine),
        ),
    )


def _table_4() -> PaperTable:
    published = _by_formula(TABLE_4)
    published[4]["accuracy %"] = printed("about 35")
    return PaperTable(
        name="table 4",
        title="DNN with three hidden layers on tweets, 80–20: data cut over nodes, weights averaged once",
        headings=("nodes",),
        columns=_averaged_columns("dnn"),
        rows=_averaged_rows("dnn", published),
        notes=("The paper gives no widths, rate, batch or epochs for this network; ours are those of the task dnn.",),
    )


def _averaged_columns(task: str) -> tuple[PaperColumn, ...]:
    return (
        PaperColumn("time s", "time", "epoch_s", scale=EPOCHS[task]),
        PaperColumn("improvement %", "improvement", "epoch_s"),
        PaperColumn("accuracy %", "accuracy", "test_accuracy", scale=100, unjudged=OTHER_TWEETS),
    )


def _averaged_rows(task: str, published: Mapping[int, Mapping[str, base.Published]]) -> tuple[PaperRow, ...]:
    return tuple(
        PaperRow(labels=(f"{n}",), published=figures, timed=_averaged(task, n), base=_averaged(task, 1))
        for n, figures in published.items()
    )


def _by_formula(table: tuple[tuple[int, str, str], ...]) -> dict[int, dict[str, base.Published]]:
    """Return times and improvements by nodes: by the paper's formula, with what it prints where that differs."""
    one_s = printed(table[0][1]).low
    published = {}
    for nodes, time_s, text in table:
        published[nodes] = {"time s": printed(time_s)}
        if text:
            value = (one_s - printed(time_s).low) / one_s * 100
            both = text if abs(value - printed(text).low) < 0.01 else f"{value:.2f} (printed {text})"
            published[nodes]["improvement %"] = base.derived(value, text=both)
    return published


def _table_5(machine: HostFacts) -> PaperTable:
    return PaperTable(
        name="table 5",
        title="training accuracy on images, data cut over processors, k folds on each, on CPUs",
        headings=("processors × k",),
        columns=_accuracies("train_accuracy", "hold_out_accuracy"),
        rows=tuple(PaperRow(labels=(f"{n} × {k}",), timed=_split(machine, n, k)) for k in FOLDS for n in PROCESSORS),
        notes=(f"{PICTURE}, nor which k besides 10 it has; what its text says is held against ours below.", NETWORK),
    )


def _table_6(machine: HostFacts) -> PaperTable:
    left = machine.lacks_gpu
    return PaperTable(
        name="table 6",
        title="the same on a GPU",
        headings=("processors × k",),
        columns=_accuracies("train_accuracy", "hold_out_accuracy"),
        rows=tuple(
            PaperRow(labels=(f"{n} × 10",), timed=None if left else _split(machine, n, 10, "cuda"), left=left)
            for n in PROCESSORS
        ),
        notes=(f"{PICTURE}. The nodes are trained in turn on one GPU, and k is 10.",),
    )


def _table_7() -> PaperTable:
    return PaperTable(
        name="table 7",
        title="10 folds on images without cutting the data, folds in parallel",
        headings=("processors",),
        columns=(*_speeds(), *_accuracies("accuracy")),
        rows=tuple(PaperRow(labels=(f"{n}",), timed=_unsplit(n), base=_unsplit(1)) for n in PROCESSORS),
        notes=(f"{PICTURE}.",),
    )


def _table_8(machine: HostFacts) -> PaperTable:
    one = _split(machine, 1, 10)
    return PaperTable(
        name="table 8",
        title="10 folds on images with the data cut over processors",
        headings=("processors",),
        columns=(
            *_speeds(),
            PaperColumn("slowest node s", "time", "longest_node_s", decimals=1),
            *_accuracies("accuracy", "hold_out_accuracy"),
        ),
        rows=tuple(PaperRow(labels=(f"{n}",), timed=_split(machine, n, 10), base=one) for n in PROCESSORS),
        notes=(f"{PICTURE}.", _in_turn(machine)),
    )


def _speeds() -> tuple[PaperColumn, ...]:
    return (
        PaperColumn("time s", "time", "total_s", decimals=1),
        PaperColumn("improvement %", "improvement", "total_s"),
    )


def _accuracies(*names: str) -> tuple[PaperColumn, ...]:
    headings = {"accuracy": "folds' %", "train_accuracy": "training %", "hold_out_accuracy": "test %"}
    return tuple(PaperColumn(headings[name], "accuracy", name, scale=100) for name in names)


def _in_turn(machine: HostFacts) -> str:
    return (
        f"A node is one worker with one core. More nodes than the {machine.cores} cores here are trained in turn, as "
        f"the paper's were; 'slowest node s' is what the slowest took by itself."
    )


def _claims(machine: HostFacts) -> tuple[Claim, ...]:
    return (
        Claim(
            text="table 2: cutting the data over nodes lowers the accuracy, 8 nodes against 1",
            settings=(_averaged("recommender", 1), _averaged("recommender", 8)),
            holds=lambda v: _lower(v[0], v[1], "test_accuracy"),
            otherwise="better",
        ),
        Claim(
            text="table 3: with 10 folds on each node the accuracy stays close to one node's, 8 nodes against 1",
            settings=(_tweets(machine, 1), _tweets(machine, 8)),
            holds=lambda v: _close(v[0], v[1], "hold_out_accuracy"),
        ),
        Claim(
            text="tables 5 and 6: k = 10 has the highest training accuracy for every number of processors",
            settings=tuple(_split(machine, n, k) for n in PROCESSORS for k in FOLDS),
            holds=_ten_is_best,
        ),
        Claim(
            text="tables 7 and 8: cutting the data lowers the accuracy only a little, 8 processors",
            settings=(_unsplit(8), _split(machine, 8, 10)),
            holds=lambda v: _close(v[0], v[1], "accuracy"),
        ),
        Claim(
            text="cutting the data over 8 processors saves about 60 % of the time",
            settings=(_split(machine, 1, 10), _split(machine, 8, 10)),
            holds=_saves,
            speed=True,
        ),
    )


def _lower(one: base.Values, many: base.Values, name: str) -> tuple[bool, str]:
    return many[name] < one[name], _from_to(one, many, name)


def _close(one: base.Values, many: base.Values, name: str) -> tuple[bool, str]:
    close = 100 * (one[name] - many[name]) <= CLOSE_POINTS
    because = "" if close else ", since a node makes an n-th of the steps in as many epochs"
    return close, f"{_from_to(one, many, name)}; {CLOSE_POINTS:g} are close{because}"


def _from_to(one: base.Values, many: base.Values, name: str) -> str:
    return f"{100 * one[name]:.2f} % and {100 * many[name]:.2f} %, {100 * (many[name] - one[name]):+.2f} points"


def _ten_is_best(runs: list[base.Values]) -> tuple[bool, str]:
    best_folds, holds = [], True
    for i, n in enumerate(PROCESSORS):
        here = {k: 100 * v["train_accuracy"] for k, v in zip(FOLDS, runs[i * len(FOLDS) :], strict=False)}
        best = max(here, key=lambda k: here[k])
        holds = holds and best == max(FOLDS)
        best_folds.append(f"{n}: k = {best} ({here[best]:.2f} %)")
    return holds, f"highest with {', '.join(best_folds)}"


def _saves(runs: list[base.Values]) -> tuple[bool, str]:
    one, many = (values["total_s"] for values in runs)
    saved = (one - many) / one * 100
    return saved >= 60 * 0.85, f"{saved:.1f} % of {one:.1f} s"
