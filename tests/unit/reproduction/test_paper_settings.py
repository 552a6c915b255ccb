"""What papers ask to be run: every setting is a valid request, each is run once, and `--quick` says what it cuts."""

import pytest

from manyhands import tasks
from manyhands.crossval.options import Options, make_options
from manyhands.errors import UserError
from manyhands.reproduction.base import HostFacts, Setting
from manyhands.reproduction.papers import ALL, PAPERS, papers_of
from manyhands.reproduction.run import about_s, plan, rounds
from manyhands.request import resolve

MACHINES = [HostFacts(1), HostFacts(2), HostFacts(16, 1)]
QUICK_MINUTES, WHOLE_MINUTES = 5.5, 90


def resolved(setting: Setting) -> None:
    """Find out whether manyhands would take the setting as a request."""
    options = dict(setting.options)
    own = {name: options.pop(name) for name in list(options) if name in Options.model_fields}
    assert not own or setting.command == "crossval"
    make_options(own)
    config = resolve(setting.task, options, tasks.load(setting.task))
    assert config.blas_threads == 1 or config.engine == "ray", "one worker is one core, but for Ray's nodes of several"


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("quick", [False, True])
def test_every_setting_is_a_request_that_manyhands_takes(machine: HostFacts, quick: bool) -> None:
    settings = plan(papers_of(ALL, machine), quick=quick)
    assert len(settings) > 20
    for setting in settings:
        resolved(setting)


@pytest.mark.parametrize("quick", [False, True])
def test_no_setting_is_run_twice_in_a_round(quick: bool) -> None:
    keys = [setting.key for setting in plan(papers_of(ALL, HostFacts(2)), quick=quick)]
    assert len(keys) == len(set(keys))


def test_rows_with_the_same_processes_share_their_runs() -> None:
    table = next(t for t in PAPERS["003"](HostFacts(2)).tables if t.name == "table 2")
    eight = [row for row in table.rows if row.labels[0] in ("1 × 8", "2 × 4", "4 × 2")]
    assert len(eight) == 3
    assert len({row.timed.key for row in eight if row.timed}) == 1
    assert len({row.whole.key for row in eight if row.whole}) == 1


def test_paper_003_keeps_its_own_rate_and_batch() -> None:
    table = next(t for t in PAPERS["003"](HostFacts(2)).tables if t.name == "table 2")
    for row in table.rows[:-2]:
        assert row.whole
        config = resolve("cnn", dict(row.whole.options), tasks.load("cnn"))
        n = row.whole.workers
        assert (config.batch_size, config.epochs, config.warmup, config.lr_decay) == (128 * n, 5, 0, "none")
        assert config.lr == pytest.approx(0.001 * n)
    eased = table.rows[-2].whole
    assert eased
    assert resolve("cnn", dict(eased.options), tasks.load("cnn")).warmup > 0


def test_paper_002_has_the_data_of_its_tables() -> None:
    strong, weak = PAPERS["002"](HostFacts(2)).tables
    assert {row.timed.options["replicate"] for row in strong.rows if row.timed} == {12}
    assert [row.timed.options["replicate"] for row in weak.rows if row.timed] == [1, 2, 4, 6, 8]


def test_paper_000_gives_a_node_its_share_of_the_cores() -> None:
    for cores, threads in ((2, 1), (16, 4)):
        figure = PAPERS["000"](HostFacts(cores)).tables[-1]
        nodes = [(row.labels[0], row.timed.workers / threads) for row in figure.rows if row.timed]
        assert nodes == [("MPI + OpenMP", n) for n in (1, 2, 3, 4)] + [("OmpCluster", n) for n in (1, 2, 3)]


def test_what_needs_a_gpu_says_so_where_there_is_none() -> None:
    for gpus, has in ((0, False), (1, True)):
        rows = [r for t in PAPERS["000"](HostFacts(4, gpus)).tables for r in t.rows if "GPU" in r.labels]
        rows += next(t for t in PAPERS["004"](HostFacts(4, gpus)).tables if t.name == "table 6").rows
        rows.append(next(t for t in PAPERS["003"](HostFacts(4, gpus)).tables if t.name == "table 2").rows[-1])
        assert all(bool(row.timed) == has and bool(row.left) != has for row in rows)


def test_what_needs_ray_says_so_where_it_is_not_installed() -> None:
    for ray in (False, True):
        rows = [r for t in PAPERS["000"](HostFacts(4, ray=ray)).tables for r in t.rows if "OmpCluster" in r.labels]
        assert len(rows) == 12
        assert all(bool(row.timed) == ray and bool(row.left) != ray for row in rows)


def test_repeats_go_forth_and_back_and_what_is_run_once_comes_once() -> None:
    some = plan(papers_of("003", HostFacts(2)), quick=False)
    runs = rounds(some, 3)
    often = [setting.key for setting in some if not setting.once]
    assert [s.key for repeat, s in runs if repeat == 0 and not s.once] == often
    assert [s.key for _, s in runs[len(often) : len(some)]] == [s.key for s in some if s.once], "long ones come later"
    assert [s.key for repeat, s in runs if repeat == 1] == often[::-1]
    assert [s.key for repeat, s in runs if repeat == 2] == often
    assert 0 < len(often) < len(some)


def test_quick_changes_are_told() -> None:
    for setting in plan(papers_of(ALL, HostFacts(2)), quick=False):
        short = setting.shortened()
        if short is None:
            continue
        data = short.options.get("data", ""), short.options.get("replicate")
        cut = data != (setting.options.get("data", ""), setting.options.get("replicate"))
        assert cut == bool(setting.smaller), setting.key
        fewer = short.options.get("epochs") != setting.options.get("epochs")
        assert fewer == bool(setting.smaller or setting.shorter) or setting.options.get("steps"), setting.key
        assert short.about_s <= setting.about_s + 2


def test_all_of_it_is_feasible_on_two_cores() -> None:
    papers = papers_of(ALL, HostFacts(2))
    assert about_s(papers, quick=True, repeats=1) < 60 * QUICK_MINUTES
    assert about_s(papers, quick=False, repeats=3) < 60 * WHOLE_MINUTES


def test_an_unknown_paper_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"^there is no paper '005'; .*choose from: 000, 001, 002, 003, 004, all$"):
        papers_of("005", HostFacts(2))
