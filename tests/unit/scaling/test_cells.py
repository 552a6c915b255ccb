"""Laws of a sweep's cells: one baseline each, every combination once, and the probes that the explanation needs."""

import math
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands import tasks
from manyhands.request import resolve
from manyhands.scaling.cells import make_cells, num_steps, own_steps, run_options, steps_per_epoch, why_not
from manyhands.scaling.request import SweepRequest, ask, command_of, powers_of_two

SPECS = ("allreduce", "local-sgd:period=8", "compressed:codec=topk,ratio=0.01")
batches = st.one_of(st.integers(1, 5000), st.just("full"))


def some(elements: st.SearchStrategy[object], most: int = 3) -> st.SearchStrategy[list[object]]:
    return st.lists(elements, min_size=1, max_size=most)


@st.composite
def asked_for(draw: st.DrawFn, kind: str = "") -> SweepRequest:
    return made(
        kind=kind or draw(st.sampled_from(["strong", "weak"])),
        workers=[1, 2, *draw(st.lists(st.integers(1, 64), max_size=4))],
        engines=draw(some(st.sampled_from(["serial", "threads", "mpi", "hybrid", "torch"]), 5)),
        syncs=draw(some(st.sampled_from(SPECS))),
        batch_sizes=draw(some(batches)),
        image_sizes=draw(some(st.sampled_from([0, 28, 56, 112]))),
        threads=draw(st.integers(1, 4)),
        replicate=draw(st.integers(1, 3)),
        epochs=draw(st.integers(0, 3)),
    )


def made(**values: object) -> SweepRequest:
    usual = {"kind": "strong", "task": "mlp", "command": "", "started": "", "batch_sizes": [64], "own_epochs": 20}
    rest = {"replicate": 1, "samples": 3000, "steps": 40, "options": {}}
    return SweepRequest.model_validate(usual | rest | values)


@given(asked_for())
def test_no_cell_comes_twice_and_keys_tell_them_apart(asked: SweepRequest) -> None:
    cells = make_cells(asked)
    assert len({cell.key for cell in cells}) == len(set(cells)) == len(cells)


@given(asked_for())
def test_one_worker_is_the_baseline_once_for_each_batch_and_image_size(asked: SweepRequest) -> None:
    alone = [cell for cell in make_cells(asked) if cell.role == "baseline"]
    expected = set(product(asked.batch_sizes, asked.image_sizes))
    assert sorted(map(str, expected)) == sorted(str((cell.batch_size, cell.image_size)) for cell in alone)
    assert {(cell.engine, cell.size, cell.sync, cell.replicate) for cell in alone} == {
        ("serial", 1, "allreduce", asked.replicate)
    }
    assert not any(cell.size == 1 for cell in make_cells(asked) if cell.role == "cell")


@given(asked_for())
def test_every_combination_of_several_workers_is_there(asked: SweepRequest) -> None:
    engines = [engine for engine in asked.engines if engine != "serial"]
    many = [n for n in asked.workers if n > 1]
    expected = set(product(engines, asked.syncs, many, asked.batch_sizes, asked.image_sizes))
    compared = [cell for cell in make_cells(asked) if cell.role == "cell"]
    assert len(compared) == len(expected)
    assert {(c.engine, c.sync, c.size, c.image_size) for c in compared} == {(e, s, n, i) for e, s, n, _, i in expected}


@given(asked_for("strong"))
def test_strong_cells_share_the_batch_and_probes_have_the_share_of_one_worker(asked: SweepRequest) -> None:
    cells = make_cells(asked)
    assert {c.batch_size for c in cells if c.role == "cell"} <= set(asked.batch_sizes)
    assert {c.replicate for c in cells} == {asked.replicate}
    whole = [asked.samples if batch == "full" else min(int(batch), asked.samples) for batch in asked.batch_sizes]
    shares = {math.ceil(batch / n) for batch in whole for n in asked.workers if n > 1}
    probes = [c for c in cells if c.role == "probe"]
    assert {(c.batch_size, c.image_size) for c in probes} == set(product(shares, asked.image_sizes))
    assert all((c.engine, c.size, c.sync) == ("serial", 1, "allreduce") for c in probes)


@given(asked_for("weak"))
def test_weak_cells_have_the_baselines_work_for_each_worker(asked: SweepRequest) -> None:
    cells = make_cells(asked)
    work = {(c.batch_size, c.replicate) for c in cells if c.role == "baseline"}
    for cell in cells:
        n = cell.size
        per_worker = (
            ("full", cell.replicate / n) if cell.batch_size == "full" else (cell.batch_size / n, cell.replicate)
        )
        assert per_worker in work
    assert not [c for c in cells if c.role == "probe"]


@given(asked_for())
def test_hybrid_workers_are_processes_times_threads_or_refused(asked: SweepRequest) -> None:
    task = tasks.load("mlp")
    for cell in make_cells(asked):
        if cell.engine != "hybrid":
            continue
        if cell.size % asked.threads:
            assert "cannot be processes of" in why_not(asked, cell, task)
        else:
            assert cell.threads == asked.threads


@settings(max_examples=30)
@given(asked_for())
def test_a_run_gets_what_its_cell_says_and_as_many_steps_as_the_others(asked: SweepRequest) -> None:
    lengths = set()
    for cell in make_cells(asked):
        config = resolve("mlp", run_options(asked, cell))
        for name in ("engine", "workers", "threads", "sync", "batch_size", "image_size", "replicate"):
            assert getattr(config, name) == getattr(cell, name), name
        if asked.epochs and cell.role != "probe":
            assert num_steps(asked, cell) == asked.epochs * steps_per_epoch(asked, cell)
        else:
            lengths.add(num_steps(asked, cell))
    assert lengths <= {own_steps(asked) if asked.epochs else asked.steps}


def test_what_an_engine_cannot_do_is_said_in_the_words_of_train() -> None:
    asked = made(engines=["hybrid"], syncs=["parameter-server"], workers=[2])
    reasons = [why_not(asked, cell, tasks.load("mlp")) for cell in make_cells(asked)]
    assert reasons[:2] == ["", ""], "one worker alone can run"
    assert "needs servers, split, which engine 'hybrid' does not have" in reasons[2]


def test_a_weak_batch_that_the_data_cannot_fill_is_refused() -> None:
    asked = made(kind="weak", engines=["threads"], workers=[2, 4], batch_sizes=[1000])
    reasons = {cell.size: why_not(asked, cell, tasks.load("mlp")) for cell in make_cells(asked)}
    assert reasons == {1: "", 2: "", 4: reasons[4]}
    assert "4000 is more than the 3000 training samples" in reasons[4]


@settings(max_examples=30)
@given(asked_for())
def test_what_was_asked_for_is_found_again_in_its_file(
    tmp_path_factory: pytest.TempPathFactory, asked: SweepRequest
) -> None:
    path = tmp_path_factory.getbasetemp() / "sweep.toml"
    full = asked.model_copy(update={"options": {"lr": 1e-7, "data": 'npz:a "b"\x7f\\', "exact": True}})
    path.write_text(full.to_toml())
    assert SweepRequest.from_toml(path) == full


def test_texts_are_cut_at_commas_but_not_inside_a_strategy() -> None:
    asked = made(workers="4, 2,4", syncs="compressed:codec=topk,ratio=0.01,allreduce", batch_sizes="64,full")
    assert asked.workers == (2, 4)
    assert asked.syncs == ("compressed:codec=topk,ratio=0.01", "allreduce")
    assert asked.batch_sizes == (64, "full")


@given(st.integers(1, 500))
def test_worker_counts_double_up_to_the_cores(cores: int) -> None:
    found = powers_of_two(cores)
    assert found[0] == 1
    assert found[-1] == max(2, cores)
    assert all(a < b <= 2 * a for a, b in pairwise(found))


def test_the_command_runs_the_same_again() -> None:
    given = {"workers": [1, 2], "data": "npz:my file.npz", "fuse": False, "exact": True, "lr": 0.1}
    assert command_of("weak", "mlp", given) == (
        "manyhands scale weak mlp --workers 1,2 --data 'npz:my file.npz' --no-fuse --exact --lr 0.1"
    )


def test_the_tasks_own_settings_fill_what_is_left_open() -> None:
    asked = ask("strong", "mlp-sigmoid", {"workers": "1,2", "data": "mnist:train=500,test=50", "replicate": 3})
    assert (asked.batch_sizes, asked.replicate, asked.samples) == (("full",), 3, 1500)
    assert asked.options["blas_threads"] == 1, "one worker is one core"
    assert [c.batch_size for c in make_cells(asked) if c.role == "probe"] == [750]
