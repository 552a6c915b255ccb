"""The work of one worker in a cross-validation: its folds, or its share of a fold that several workers train."""

import contextlib
import itertools
import json
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
from manyhands.comm.texts import gather_texts
from manyhands.config import RunConfig
from manyhands.crossval.progress import ModelsWatch
from manyhands.crossval.record import FoldScore, HoldOut
from manyhands.crossval.stacked import TrainedFold, plans_of, train_stacked
from manyhands.crossval.units import FoldSettings, Sharing, Unit, read_places, units_of
from manyhands.data import Dataset
from manyhands.data.order import cut
from manyhands.launch.in_process import in_threads
from manyhands.record.files import writing
from manyhands.record.run import RunDir
from manyhands.replica.stacked import most_in_a_stack
from manyhands.tasks import Task
from manyhands.tasks.setup import device_of, load_data, make_replica
from manyhands.training.agreement import check_same_data, check_same_model
from manyhands.training.checkpoint import weights_sha256, write_weights
from manyhands.training.evaluate import evaluate, scoring_of
from manyhands.training.job import Job
from manyhands.training.loop import train_rank
from manyhands.training.plan import AT_END
from manyhands.training.watch import Watch

PLACES = "folds.npy"
"""File in a cross-validation's folder with the node and the fold of every sample."""


def crossval_rank(comm: Comm, job: Job, watch: Watch) -> dict[str, Any]:
    """Train and test this worker's folds; return the scores of all folds, the same on every worker."""
    task, settings = job.task or tasks.load(job.config.task), FoldSettings(**job.extra)
    device = device_of(job.config, comm.rank)
    loaded = job.data or load_data(task, job.config)
    if not job.same_data:
        check_same_data(comm, loaded, job.config.data)
    data = loaded.to(device)
    units = units_of(read_places(job.run.path / PLACES), settings)
    sharing = Sharing(len(units), comm.size)

    replica = make_replica(task, job.config, data, device)
    check_same_model(comm, replica, exchanged=False)
    comm.barrier()
    started = time.perf_counter()
    mine = [units[i] for i in sharing.mine(comm.rank)]
    group = comm.split(sharing.group(comm.rank)) if sharing.in_groups else SelfComm()
    config = alone_or_together(job.config, group.size)
    longest: dict[int, int] = {}
    for plan in plans_of(units, config, data.train):
        longest[plan.steps_per_epoch] = max(len(plan.split), longest.get(plan.steps_per_epoch, 0))
    most = most_in_a_stack(replica)
    folds = _Folds(task, config, data, device, comm.rank, job.run, group, settings.threads, most, longest)
    steps = sum(plan.steps for plan in plans_of(mine, config, data.train))
    alarm = job.run.path / "failed"
    models = ModelsWatch(watch, shown=comm.rank == 0, steps=steps, alarm=alarm)
    try:
        trained = list(folds.scores(mine, models, stacked=settings.stacked and not sharing.in_groups))
    except BaseException:
        with contextlib.suppress(OSError):  # a full disk must not hide the reason
            alarm.touch()
        raise

    texts = gather_texts(comm, json.dumps([score.model_dump() for score in trained] if group.rank == 0 else []))
    scores = [score for text in texts for score in json.loads(text)]
    if len(scores) < len(units):
        return {"status": "interrupted"}
    hold_out = _average(comm, job, task, data, units, sharing) if settings.nodes else None
    seconds = comm.all_gather(torch.tensor([time.perf_counter() - started], dtype=torch.float64))
    return {
        "status": "complete",
        "folds": sorted(scores, key=lambda score: (score["node"], score["fold"])),
        "hold_out": hold_out.model_dump() if hold_out else None,
        "total_s": float(seconds.max()),
    }


def alone_or_together(config: RunConfig, size: int) -> RunConfig:
    """Return the config of training one model with `size` workers; a fold is tested at the end only."""
    sync = config.sync if size > 1 else "allreduce"
    return config.model_copy(update={"workers": size, "threads": 1, "sync": sync, **AT_END})


@final
@dataclass(frozen=True, slots=True)
class _Folds:
    """What all folds of a worker have in common, and their training."""

    task: Task
    config: RunConfig
    data: Dataset
    device: torch.device
    place: int
    """This worker's rank among all workers, which determines its device; in a group of its own it is rank 0."""
    run: RunDir
    group: Comm
    threads: int
    most_stacked: int
    longest: dict[int, int]
    """By number of steps per epoch: the most training samples of any such fold."""

    def scores(self, units: Sequence[Unit], watch: ModelsWatch, *, stacked: bool) -> Iterator[FoldScore]:
        """Train and test the models of `units`; when the user stops the run, unfinished ones are left out."""
        plans = plans_of(units, self.config, self.data.train)
        pairs = list(zip(units, plans, strict=True))
        ordered = sorted(pairs, key=lambda pair: (pair[0].node, pair[1].steps_per_epoch))
        for (_, per_epoch), alike in itertools.groupby(ordered, lambda pair: (pair[0].node, pair[1].steps_per_epoch)):
            together = [unit for unit, _ in alike]
            batched = self._stacked(together, watch, self.longest[per_epoch]) if stacked else None
            yield from self._in_turn(together, watch) if batched is None else batched
            if watch.stopped:
                return

    def _stacked(self, units: Sequence[Unit], watch: ModelsWatch, longest: int) -> list[FoldScore] | None:
        begun = time.perf_counter()
        trained = self._train_stacks(units, watch, longest)
        if trained is None or watch.stopped:
            return None if trained is None else []
        seconds = (time.perf_counter() - begun) / len(units)
        scores = []
        for unit, model in zip(units, trained, strict=True):
            write_weights(self._folder(unit).model, model.module.state_dict())
            values = {**model._asdict(), "seconds": seconds}
            scores.append(self._score(unit, weights_sha256(values.pop("module")), stacked=True, **values))
        return scores

    def _train_stacks(self, units: Sequence[Unit], watch: ModelsWatch, longest: int) -> list[TrainedFold] | None:
        """Train the models in stacks, divided among threads, which changes no bits; None where this is impossible."""
        threads = min(self.threads, len(units))

        def train(thread: int) -> list[TrainedFold] | None:
            share, trained = units[slice(*cut(len(units), threads, thread))], list[TrainedFold]()
            stacks = -(-len(share) // self.most_stacked)
            fixed = (self.task, self.config, self.data, self.device, watch)
            try:
                for i in range(stacks):
                    stack = train_stacked(share[slice(*cut(len(share), stacks, i))], *fixed, longest=longest)
                    if stack is None:
                        return None
                    trained += stack
                    watch.finish(sum(model.steps for model in stack))
            except BaseException:
                watch.stopped = True  # for the other threads
                raise
            return trained

        parts = in_threads(train, threads)
        return None if any(part is None for part in parts) else [model for part in parts for model in part or ()]

    def _in_turn(self, units: Sequence[Unit], watch: ModelsWatch) -> Iterator[FoldScore]:
        for unit in units:
            begun = time.perf_counter()
            folder, data = self._folder(unit), unit.of(self.data)
            job = Job(self.config, folder, task=self.task, data=data, same_data=True, place=self.place)
            record = train_rank(self.group, job, watch)
            if record["status"] == "interrupted":
                watch.stopped = True
                return
            watch.finish(record["steps"])
            values = {"accuracy": record["test_accuracy"], "loss": record["test_loss"]}
            values |= {name: record[name] for name in ("metrics", "steps")}
            seconds = time.perf_counter() - begun
            yield self._score(unit, record["weights_sha256"], stacked=False, seconds=seconds, **values)

    def _folder(self, unit: Unit) -> RunDir:
        folder = RunDir(self.run.path / unit.name)
        with writing(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        return folder

    def _score(self, unit: Unit, sha256: str, *, stacked: bool, **values: Any) -> FoldScore:
        return FoldScore(
            node=unit.node,
            fold=unit.fold,
            train_samples=len(unit.train) * self.data.train.copies,
            samples=len(unit.test),
            stacked=stacked,
            weights_sha256=sha256,
            **values,
        )


def _average(comm: Comm, job: Job, task: Task, data: Dataset, units: Sequence[Unit], sharing: Sharing) -> HoldOut:
    """Average the weights of all models in a fixed order, whoever trained them, and test the mean on the test split."""
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
    scoring = scoring_of(task, job.config, data, module)
    held, trained = (evaluate(module, split, scoring, comm) for split in (data.test, data.train))
    if comm.rank == 0:
        write_weights(job.run.model, module.state_dict())
    return HoldOut(
        accuracy=held.accuracy,
        loss=held.loss,
        metrics=held.metrics,
        train_accuracy=trained.accuracy,
        train_loss=trained.loss,
        weights_sha256=weights_sha256(module),
    )


def _flat(state: dict[str, Tensor]) -> Tensor:
    """Copy all weights and buffers, including integer counters, into one tensor that represents each exactly."""
    return torch.cat([t.detach().reshape(-1).double() for t in state.values()])
