"""A resumed run ends with the bits of the uninterrupted one."""

import itertools
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from manyhands import codec, launch, registry, sync
from manyhands.config import RunConfig
from manyhands.errors import UserError
from manyhands.launch.base import Launcher, Observer, Worker
from manyhands.record.run import Pulse, RunDir, RunRecord
from manyhands.record.status import own_run
from manyhands.run import decide
from manyhands.sync import Sync
from manyhands.training.checkpoint import checkpoints, newest_sound
from manyhands.training.job import Job

NAMES = registry.names(sync, Sync)
VARIANTS = [
    "local-sgd:period=3",
    "parameter-server:servers=3",
    "async-server:servers=2",
    "compressed:codec=topk,ratio=0.1",
    *(f"compressed:codec={name}" for name in codec.names()),
]
EXACT = [name for name in NAMES if sync.make(name).exact]
HELD_APART = ["local-sgd", "average-epoch", "average-once", "gossip", "compressed", "compressed:codec=powersgd"]
SAME = ("weights_sha256", "train_loss", "test_loss", "test_accuracy", "steps")


def _stop_after(steps: int):  # type: ignore[no-untyped-def]
    """Ask the run to stop, as Ctrl-C does, once, when it has come so far."""
    asked: list[int] = []

    def observe(pulse: Pulse) -> None:
        if pulse.step >= steps and not asked:
            asked.append(pulse.step)
            os.kill(os.getpid(), signal.SIGINT)

    return observe


def _forget_after(out: Path, record: RunRecord, step: int) -> None:
    """Remove the record and the checkpoints after this step, as if the run had been killed there."""
    run = RunDir.find(out, record.id)
    run.record.unlink()
    for later in checkpoints(run.checkpoints):
        if later.name > f"step-{step:09d}.safetensors":
            later.unlink()


def _lines(out: Path, record: RunRecord) -> list[str]:
    lines = RunDir.find(out, record.id).steps.read_text().splitlines()
    return [line.partition(', "ms"')[0] for line in lines]


@pytest.mark.parametrize("task", ["mlp", "sigmoid", "adam", "dropout", "conv", "batchnorm"])
@pytest.mark.parametrize("at", [4, 10, 13])
def test_resumed_is_uninterrupted(train, tiny, tmp_path: Path, task: str, at: int) -> None:  # type: ignore[no-untyped-def]
    """In the middle of an epoch, at its end, and in the next."""
    settings = {"epochs": 2, "batch_size": 10, "exact": True, "batchnorm": "local"}
    whole = train(tiny(task), **settings)
    part = train(tiny(task), **settings, checkpoint_every=at, keep=9)
    _forget_after(tmp_path, part, at)
    resumed = train(tiny(task), resume=part.id)
    assert resumed.resumed_from == at
    for key in SAME:
        assert getattr(resumed, key) == getattr(whole, key), key
    assert _lines(tmp_path, resumed) == _lines(tmp_path, whole)


@pytest.mark.parametrize(
    ("text", "task"), [*itertools.product(NAMES, ["sigmoid", "adam"]), *((text, "adam") for text in VARIANTS)]
)
def test_with_every_strategy_resumed_is_uninterrupted(train, tiny, tmp_path: Path, text: str, task: str) -> None:  # type: ignore[no-untyped-def]
    """In the middle of the second epoch, between two averagings; the order of asynchronous workers is no law."""
    workers = 1 if text.startswith("async-server") else 3
    settings = {"epochs": 2, "batch_size": 10, "engine": "threads", "workers": workers, "sync": text}
    whole = train(tiny(task), **settings)
    part = train(tiny(task), **settings, checkpoint_every=13)
    assert part.weights_sha256 == whole.weights_sha256, "a checkpoint changes nothing"
    _forget_after(tmp_path, part, 13)
    resumed = train(tiny(task), resume=part.id)
    assert resumed.resumed_from == 13
    for key in SAME:
        assert getattr(resumed, key) == getattr(whole, key), key
    assert _lines(tmp_path, resumed) == _lines(tmp_path, whole)


@pytest.mark.parametrize("text", NAMES)
def test_without_a_state_and_with_statistics_too(train, tiny, tmp_path: Path, text: str) -> None:  # type: ignore[no-untyped-def]
    """Plain SGD has no state to keep; running statistics travel with the weights."""
    workers = 1 if text.startswith("async-server") else 3
    settings = {"steps": 7, "batch_size": 30, "engine": "threads", "workers": workers, "sync": text}
    whole = train(tiny("batchnorm"), **settings)
    part = train(tiny("batchnorm"), **settings, checkpoint_every=5)
    _forget_after(tmp_path, part, 5)
    assert train(tiny("batchnorm"), resume=part.id).weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("text", [*EXACT, "parameter-server:servers=2"])
@pytest.mark.parametrize(("task", "before", "after"), [("sigmoid", 3, 2), ("adam", 2, 5)])
def test_an_exact_strategy_may_go_on_with_other_workers(
    train, tiny, tmp_path: Path, text: str, task: str, before: int, after: int
) -> None:  # type: ignore[no-untyped-def]
    settings = {"steps": 14, "batch_size": 10, "exact": True}
    whole = train(tiny(task), **settings)
    part = train(tiny(task), **settings, engine="threads", workers=before, sync=text, checkpoint_every=9)
    _forget_after(tmp_path, part, 9)
    resumed = train(tiny(task), resume=part.id, workers=after)
    assert (resumed.workers, resumed.resumed_from) == (after, 9)
    assert resumed.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize("after", [2, 4])
@pytest.mark.parametrize("text", HELD_APART)
def test_workers_with_a_state_of_their_own_stay_as_many(train, tmp_path: Path, text: str, after: int) -> None:  # type: ignore[no-untyped-def]
    part = train(steps=6, engine="threads", workers=3, sync=text, checkpoint_every=4)
    _forget_after(tmp_path, part, 4)
    says = f"holds a state of its own for each of 3 workers; it cannot be resumed with {after}"
    with pytest.raises(UserError, match=says) as caught:
        train(resume=part.id, workers=after)
    assert "\n" not in str(caught.value)
    assert train(resume=part.id).resumed_from == 4, "and with three it can"


def test_asynchronous_workers_may_become_more(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Their state lies with the servers."""
    part = train(steps=6, engine="threads", workers=2, sync="async-server:servers=2", checkpoint_every=4)
    _forget_after(tmp_path, part, 4)
    assert train(resume=part.id, workers=3).workers == 3


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 5)])
def test_an_exact_run_may_go_on_with_other_workers(train, tiny, tmp_path: Path, before: int, after: int) -> None:  # type: ignore[no-untyped-def]
    settings = {"epochs": 2, "batch_size": 10, "exact": True}
    whole = train(tiny("conv"), **settings)
    part = train(tiny("conv"), **settings, engine="threads", workers=before, checkpoint_every=13)
    _forget_after(tmp_path, part, 13)
    resumed = train(tiny("conv"), resume=part.id, engine="threads", workers=after)
    assert (resumed.workers, resumed.resumed_from) == (after, 13)
    assert resumed.weights_sha256 == whole.weights_sha256


def test_a_run_that_was_stopped_keeps_its_place(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    whole = train(epochs=2, exact=True)
    stopped = train(epochs=2, exact=True, checkpoint_every=100, observe=_stop_after(1))
    assert stopped.status == "interrupted"
    assert 0 < stopped.steps < whole.steps
    resumed = train(resume=True)
    assert resumed.id == stopped.id
    assert resumed.resumed_from == stopped.steps
    assert resumed.status == "complete"
    for key in SAME:
        assert getattr(resumed, key) == getattr(whole, key), key
    assert _lines(tmp_path, resumed) == _lines(tmp_path, whole)


def test_a_damaged_checkpoint_is_passed_over(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    whole = train(epochs=2, exact=True, checkpoint_every=6)
    *_, before, last = checkpoints(RunDir.find(tmp_path, whole.id).checkpoints)
    last.write_bytes(last.read_bytes()[:-100])
    RunDir.find(tmp_path, whole.id).record.unlink()
    resumed = train(resume=whole.id)
    assert f"{resumed.resumed_from:09d}" in before.name
    assert resumed.weights_sha256 == whole.weights_sha256


def test_a_finished_run_can_be_made_longer(train) -> None:  # type: ignore[no-untyped-def]
    long = train(epochs=3, exact=True)
    short = train(epochs=1, exact=True, checkpoint_every=10)
    longer = train(resume=short.id, epochs=3)
    assert longer.weights_sha256 == long.weights_sha256


def test_what_decides_the_mathematics_cannot_be_changed(train) -> None:  # type: ignore[no-untyped-def]
    run = train(steps=4, checkpoint_every=2)
    for change, says in (
        ({"batch_size": 20}, "has batch-size 10; a resumed run cannot change it to 20"),
        ({"seed": 3}, "seed"),
        ({"lr": 9.0}, "lr"),
        ({"exact": True}, "exact"),
    ):
        with pytest.raises(UserError, match=says):
            train(resume=run.id, **change)
    with pytest.raises(UserError, match=r"trains .*, not 'mlp'"):
        train("mlp", resume=run.id)


def test_nothing_to_resume_is_explained(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match="no checkpoint under"):
        train(resume=True)
    run = train(steps=4, checkpoint_every=2)
    shutil.rmtree(RunDir.find(tmp_path, run.id).checkpoints)
    RunDir.find(tmp_path, run.id).record.unlink()
    with pytest.raises(UserError, match="has no checkpoint to resume from: there is none"):
        train(resume=run.id)
    again = train(steps=4, checkpoint_every=2)
    for path in checkpoints(RunDir.find(tmp_path, again.id).checkpoints):
        path.write_bytes(b"")
    RunDir.find(tmp_path, again.id).record.unlink()
    with pytest.raises(UserError, match="all 2 are damaged"):
        train(resume=again.id)


def test_a_run_whose_rate_decays_keeps_its_length(train) -> None:  # type: ignore[no-untyped-def]
    first = train(steps=6, lr_decay="linear", checkpoint_every=3)
    with pytest.raises(UserError, match="lr-decay linear, so its length cannot be changed"):
        train(resume=first.id, steps=12)


def test_average_epoch_may_stop_and_go_on_in_mid_epoch(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 3, "sync": "average-epoch", "checkpoint_every": 1}
    whole = train(steps=14, **options)
    assert train(resume=train(steps=5, **options).id, steps=14).weights_sha256 == whole.weights_sha256


def _contents(run: RunDir) -> dict[str, tuple[int, bytes]]:
    files = [path for path in run.path.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@pytest.mark.parametrize("change", [{}, {"steps": 5}, {"engine": "threads", "workers": 2}])
def test_a_finished_run_is_left_as_it_is(train, tmp_path: Path, change: dict[str, object]) -> None:  # type: ignore[no-untyped-def]
    record = train(steps=6, checkpoint_every=4, keep=1)
    run = RunDir.find(tmp_path, record.id)
    before = _contents(run)
    for which in (True, record.id):
        with pytest.raises(UserError, match="is complete: it has made its 6 steps; raise --epochs or --steps to go on"):
            train(resume=which, **change)
    assert _contents(run) == before


def test_a_run_in_use_is_not_resumed_and_left_as_it_is(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    record = train(steps=6, checkpoint_every=4)
    run = RunDir.find(tmp_path, record.id)
    with own_run(run):
        before = _contents(run)
        with pytest.raises(UserError, match=f"run '{record.id}' is in use by process {os.getpid()} on .* since 2"):
            train(resume=True, steps=9)
        assert _contents(run) == before
    assert train(resume=True, steps=9).steps == 9


def test_settings_that_cannot_be_read_are_passed_over(train, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    sound = train(steps=4, checkpoint_every=2)
    for content in (b"not = toml = at all", b"\xff\xfe", b"workers = 2\n"):
        other = train(steps=4, checkpoint_every=2)
        RunDir.find(tmp_path, other.id).toml.write_bytes(content)
    assert train(resume=True, steps=6).id == sound.id
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith("manyhands: passing over run '") for line in said] == [True] * 3
    RunDir.find(tmp_path, sound.id).toml.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"to resume from; the run\.toml of each"):
        train(resume=True)


def test_keep_one_keeps_what_was_just_written_though_newer_ones_are_damaged(train, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]
    record = train(steps=30, checkpoint_every=10, keep=3)
    run = RunDir.find(tmp_path, record.id)
    run.record.unlink()
    for path in checkpoints(run.checkpoints)[1:]:
        path.write_bytes(path.read_bytes()[:100])
    resumed = train(resume=True, keep=1, checkpoint_every=4)
    assert resumed.weights_sha256 == record.weights_sha256
    assert [path.name for path in checkpoints(run.checkpoints)] == ["step-000000028.safetensors"]
    assert newest_sound(run.checkpoints)[0] is not None


class _Followers(Launcher):
    """A process that does not lead: it hears what the one that leads has chosen."""

    features = frozenset()
    leads = False

    def __init__(self, heard: str) -> None:
        self.heard = heard

    def check(self, config: RunConfig) -> None: ...

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        return []

    def agree(self, text: str) -> str:
        return self.heard


def test_what_the_leading_process_chooses_is_everybodys() -> None:
    assert decide(launch.make("serial"), lambda: "mine") == "mine"
    assert decide(_Followers("step-5"), lambda: pytest.fail("it does not lead")) == "step-5"
