"""What one worker does in a cross-validation: its own folds, or its share of one that several train together."""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from safetensors.torch import load_file
from torch import Tensor

from manyhands import tasks
from manyhands.comm import Comm
from manyhands.comm.self_ import SelfComm
from manyhands.config import RunConfig
from manyhands.crossval.progress import ModelsWatch
from manyhands.crossval.record import FoldScore, HoldOut
from manyhands.crossval.stacked import TrainedFold, plans_of, train_stacked
from manyhands.crossval.units import FoldsAsk, Sharing, Unit, read_places, units_of
from manyhands.data import Dataset
from manyhands.data.order import cut
from manyhands.launch.in_process import in_threads
from manyhands.record import RunDir
from manyhands.record.files import writing
from manyhands.replica.stacked import most_in_a_stack
from manyhands.tasks import Task
from manyhands.tasks.setup import device_of, load_data, loss_of, make_replica
from manyhands.training.agreement import check_same_data, check_same_model
from manyhands.training.checkpoint import weights_sha256, write_weights
from manyhands.training.evaluate import evaluate
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.plan import NEVER, Plan
from manyhands.training.watch import Watch

PLACES = "folds.npy"
"""The file in a cross-validation's folder with the node and the fold of every sample."""
HASH_BYTES = 32


def crossval_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Train and test this worker's folds; return the scores of all, the same on every worker."""
    task, ask = job.task or tasks.load(job.config.task), FoldsAsk(**job.extra)
    device = device_of(job.config, comm.rank)
    loaded = job.data or load_data(task, job.config)
    if not job.same_data:
        check_same_data(comm, loaded, job.config.data)
    data = loaded.to(device)
    units = units_of(read_places(job.run.path / PLACES), ask)
    sharing = Sharing(len(units), comm.size)

    replica = make_replica(task, job.config, data, device)
    check_same_model(comm, replica, exchanged=False)
    most = most_in_a_stack(replica)
    comm.barrier()
    started = time.perf_counter()
    mine = [units[i] for i in sharing.mine(comm.rank)]
    group = comm.split(sharing.group(comm.rank)) if sharing.in_groups else SelfComm()
    config = alone_or_together(job.config, group.size)
    longest = _longest_of(plans_of(units, config, data.train))
    folds = _Folds(task, config, data, device, comm.rank, job.run, group, ask.threads, most, longest)
    steps = sum(plan.steps for plan in plans_of(mine, config, data.train))
    stacked = ask.stacked and not sharing.in_groups
    alarm = job.run.path / "failed"
    models = ModelsWatch(watch, shown=comm.rank == 0, steps=steps, alarm=alarm)
    try:
        own = {unit.name: score for unit, score in folds.scores(mine, models, stacked=stacked)}
    except BaseException:
        with contextlib.suppress(OSError):  # the disk may be full, and the reason is not to be hidden
            alarm.touch()
        raise

    scores = _gather(comm, units, own if group.rank == 0 else {})
    if scores is None:
        return {"status": "interrupted"}
    hold_out = _average(comm, job, task, data, units, sharing) if ask.nodes else None
    return {
        "status": "complete",
        "folds": [score.model_dump() for score in scores],
        "hold_out": hold_out.model_dump() if hold_out else None,
        "total_s": _longest(comm, time.perf_counter() - started),
    }


def alone_or_together(config: RunConfig, size: int) -> RunConfig:
    """Return the config of one model's training, by so many workers; a fold is tested at the end only."""
    sync = config.sync if size > 1 else "allreduce"
    return config.model_copy(update={"workers": size, "threads": 1, "sync": sync, "eval_every": NEVER})


@final
@dataclass(frozen=True, slots=True)
class _Folds:
    """All that the training of a fold needs but the fold."""

    task: Task
    config: RunConfig
    data: Dataset
    device: torch.device
    place: int
    """This worker's rank among all, which decides its device: in a group of its own every worker is the first."""
    run: RunDir
    group: Comm
    threads: int
    most_stacked: int
    longest: dict[int, int]
    """The most training samples of any fold that makes so many steps per epoch."""

    def scores(self, units: Sequence[Unit], watch: ModelsWatch, *, stacked: bool) -> Iterator[tuple[Unit, FoldScore]]:
        """Train and test these models; those not finished when the user wants to stop are left out."""
        plans = plans_of(units, self.config, self.data.train)
        pairs = list(zip(units, plans, strict=True))
        ordered = sorted(pairs, key=lambda pair: (pair[0].node, pair[1].steps_per_epoch))
        for (_, per_epoch), alike in itertools.groupby(ordered, lambda pair: (pair[0].node, pair[1].steps_per_epoch)):
            together = [unit for unit, _ in alike]
            batched = self._stacked(together, watch, self.longest[per_epoch]) if stacked else None
            yield from self._in_turn(together, watch) if batched is None else batched
            if watch.stopped:
                return

    def _stacked(self, units: Sequence[Unit], watch: ModelsWatch, longest: int) -> list[tuple[Unit, FoldScore]] | None:
        begun = time.perf_counter()
        trained = self._train_stacks(units, watch, longest)
        if trained is None or watch.stopped:
            return None if trained is None else []
        seconds = (time.perf_counter() - begun) / len(units)
        found = []
        for unit, model in zip(units, trained, strict=True):
            folder = self._folder(unit)
            write_weights(folder.model, model.module.state_dict())
            values = {"accuracy": model.accuracy, "loss": model.loss, "steps": model.steps, "seconds": seconds}
            found.append((unit, self._score(unit, weights_sha256(model.module), stacked=True, **values)))
            watch.passed(model.steps)
        return found

    def _train_stacks(self, units: Sequence[Unit], watch: ModelsWatch, longest: int) -> list[TrainedFold] | None:
        """Share them out to threads, and in each train stack after stack; a model's bits are the same in any."""
        threads = min(self.threads, len(units))
        watches = watch.parts(threads)

        def train(thread: int) -> list[TrainedFold] | None:
            share, trained = units[slice(*cut(len(units), threads, thread))], list[TrainedFold]()
            stacks = -(-len(share) // self.most_stacked)
            fixed = (self.task, self.config, self.data, self.device, watches[thread])
            for i in range(stacks):
                found = train_stacked(share[slice(*cut(len(share), stacks, i))], *fixed, longest=longest)
                if found is None:
                    return None
                trained += found
                watches[thread].passed(sum(model.steps for model in found))
            return trained

        parts = in_threads(watch.guarded(train), threads)
        return None if any(part is None for part in parts) else [model for part in parts for model in part or ()]

    def _in_turn(self, units: Sequence[Unit], watch: ModelsWatch) -> Iterator[tuple[Unit, FoldScore]]:
        for unit in units:
            begun = time.perf_counter()
            folder, data = self._folder(unit), unit.of(self.data)
            job = Job(self.config, folder, task=self.task, data=data, same_data=True, place=self.place)
            record = train_rank(self.group, job, watch)
            if record["status"] == "interrupted":
                watch.stopped = True
                return
            watch.passed(record["steps"])
            values = {"accuracy": record["test_accuracy"], "loss": record["test_loss"], "steps": record["steps"]}
            seconds = time.perf_counter() - begun
            yield unit, self._score(unit, record["weights_sha256"], stacked=False, seconds=seconds, **values)

    def _folder(self, unit: Unit) -> RunDir:
        folder = RunDir(self.run.path / unit.name)
        with writing(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        return folder

    def _score(self, unit: Unit, sha256: str, *, stacked: bool, **values: Any) -> FoldScore:
        copies = self.data.train.copies
        return FoldScore(
            node=unit.node,
            fold=unit.fold,
            train_samples=len(unit.train) * copies,
            samples=len(unit.test),
            stacked=stacked,
            weights_sha256=sha256,
            **values,
        )


def _longest_of(plans: Sequence[Plan]) -> dict[int, int]:
    found: dict[int, int] = {}
    for plan in plans:
        found[plan.steps_per_epoch] = max(len(plan.split), found.get(plan.steps_per_epoch, 0))
    return found


def _gather(comm: Comm, units: Sequence[Unit], own: dict[str, FoldScore]) -> list[FoldScore] | None:
    """Tell every worker all scores, or None where one is missing; adding to zeros changes no bit."""
    numbers = ("accuracy", "loss", "seconds", "steps", "train_samples", "samples", "stacked")
    rows = torch.zeros(len(units), 1 + len(numbers) + HASH_BYTES, dtype=torch.float64)
    for i, unit in enumerate(units):
        if unit.name in own:
            score = own[unit.name]
            values = [1.0, *(float(getattr(score, name)) for name in numbers), *bytes.fromhex(score.weights_sha256)]
            rows[i] = torch.tensor(values, dtype=torch.float64)
    comm.all_reduce_(rows)
    if not bool((rows[:, 0] == 1).all()):
        return None
    return [
        FoldScore.model_validate(
            {
                **dict(zip(numbers, row[1:], strict=False)),
                "node": unit.node,
                "fold": unit.fold,
                "weights_sha256": bytes(map(int, row[-HASH_BYTES:])).hex(),
            }
        )
        for unit, row in zip(units, rows.tolist(), strict=True)
    ]


def _average(comm: Comm, job: Job, task: Task, data: Dataset, units: Sequence[Unit], sharing: Sharing) -> HoldOut:
    """Average the weights of all models, in one order whoever trained them, and test the mean on the test split."""
    module = make_replica(task, job.config, data, device_of(job.config, comm.rank)).module
    state = module.state_dict()
    total = torch.zeros_like(_flat(state))
    for i, unit in enumerate(units):
        owner = sharing.owner(i)
        if owner == comm.rank:
            module.load_state_dict(load_file(RunDir(job.run.path / unit.name).model))
        model = _flat(state)
        comm.broadcast_(model, owner)
        total += model
    means = torch.split(total / len(units), [t.numel() for t in state.values()])
    for t, mean in zip(state.values(), means, strict=True):
        t.copy_((mean if t.is_floating_point() else mean.round()).view(t.shape))
    loss, accuracy = evaluate(module, data.test, loss_of(task), comm, job.config.top)
    train_loss, train_accuracy = evaluate(module, data.train, loss_of(task), comm, job.config.top)
    if comm.rank == 0:
        write_weights(job.run.model, module.state_dict())
    return HoldOut(
        accuracy=accuracy,
        loss=loss,
        train_accuracy=train_accuracy,
        train_loss=train_loss,
        weights_sha256=weights_sha256(module),
    )


def _flat(state: dict[str, Tensor]) -> Tensor:
    """Copy all weights and buffers, counters of whole numbers too, into one tensor that holds each exactly."""
    return torch.cat([t.detach().reshape(-1).double() for t in state.values()])


def _longest(comm: Comm, seconds: float) -> float:
    return float(comm.all_gather(torch.tensor([seconds], dtype=torch.float64)).max())
