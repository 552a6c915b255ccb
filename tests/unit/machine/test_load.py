"""What other programs use of the cores: the machine's processor time less our own, and when that matters."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.machine import facts
from manyhands.machine.load import CoreMeter, CoreUse, others_of, worst
from manyhands.record.run import Others, RunRecord

shares = st.lists(st.floats(0, 1), min_size=1, max_size=4)


def use(
    pid: int, own_s: float, busy_s: dict[str, float], *, host: str = "a", wall_s: float = 10.0, limit: float = 0.0
) -> str:
    return CoreUse(host=host, pid=pid, threads=1, wall_s=wall_s, own_s=own_s, busy_s=busy_s, limit=limit).to_json()


def others(text: list[str]) -> Others:
    found = others_of(text)
    assert found is not None
    return found


@given(shares, shares)
def test_others_have_what_the_run_did_not_use(own: list[float], foreign: list[float]) -> None:
    """Each rank keeps a core busy for a share of the time; other programs use more cores."""
    busy = {f"cpu{i}": 10.0 * share for i, share in enumerate(own)}
    busy |= {f"cpu{len(own) + i}": 10.0 * share for i, share in enumerate(foreign)}
    found = others([use(pid, 10.0 * share, busy) for pid, share in enumerate(own)])
    assert found.cores == pytest.approx(sum(foreign), abs=0.006)
    assert found.of == len(own) + len(foreign)
    assert found.wanted == len(own)


def test_threads_of_one_process_are_counted_once_and_hosts_one_by_one() -> None:
    busy = {"cpu0": 10.0, "cpu1": 10.0}
    assert others([use(7, 15.0, busy), use(7, 15.0, busy)]).cores == 0.5
    quiet, loud = use(7, 20.0, busy), use(7, 4.0, busy, host="b")
    found = others([quiet, loud])
    assert (found.host, found.cores) == ("b", 1.6)


def test_ranks_that_are_bound_to_cores_of_their_own_do_not_see_what_goes_on_elsewhere() -> None:
    found = others([use(1, 9.0, {"cpu3": 10.0}), use(2, 10.0, {"cpu5": 10.0})])
    assert (found.cores, found.of) == (0.1, 2.0)


def test_a_container_has_fewer_cores_than_it_sees() -> None:
    found = others([use(1, 12.0, {"container": 15.0}, limit=1.5)])
    assert (found.cores, found.of) == (0.3, 1.5)


def test_a_moment_or_a_system_that_does_not_tell_says_nothing() -> None:
    assert others_of([use(1, 0.0, {"cpu0": 0.1}, wall_s=0.1)]) is None
    assert others_of([use(1, 0.0, {})]) is None
    assert worst([None, None]) is None


@pytest.mark.parametrize(
    ("cores", "of", "wanted", "disturbed"),
    [
        (1.7, 2, 2, True),
        (0.1, 2, 2, False),
        (1.0, 2, 1, False),
        (1.3, 2, 1, True),
        (10, 64, 2, False),
        (10, 64, 60, True),
    ],
)
def test_others_matter_where_they_take_much_and_more_than_is_idle(
    cores: float, of: float, wanted: int, disturbed: bool
) -> None:
    assert Others(host="a", cores=cores, of=of, wanted=wanted).disturbed is disturbed


@pytest.fixture
def busy_program() -> Iterator[None]:
    """Keep a core busy, as somebody else does."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield
        other.kill()


@pytest.mark.timeout(120)
def test_a_busy_program_shows_and_our_own_work_does_not(busy_program: None) -> None:
    meter, until_s = CoreMeter(), time.perf_counter() + 2.0
    while time.perf_counter() < until_s:
        pass
    found = others([meter.read().to_json()])
    assert 0.2 <= found.cores <= found.of == facts.cores(), "one program, and whatever else runs here"
    own_s = json.loads(meter.read().to_json())["own_s"]
    assert own_s > 0, "ours was counted"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("options", [{"engine": "serial"}, {"engine": "threads", "workers": 2, "sync": "async-server"}])
def test_a_run_tells_in_its_record(train: Callable[..., RunRecord], tmp_path: Path, options: dict[str, object]) -> None:
    record = train("mlp", data="mnist:train=6400,test=100", steps=600, **options)
    assert record.others is not None
    assert record.others.of == facts.cores()
    assert record.others.wanted == len(record.ranks) * record.blas_threads


def test_a_limit_of_the_container_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/sys/fs/cgroup/cpu.max": "150000 100000",
        "/sys/fs/cgroup/cpu.stat": "usage_usec 2500000\nuser_usec 1",
    }
    monkeypatch.setattr(facts, "core_ids", lambda: set(range(8)))
    monkeypatch.setattr(Path, "is_file", lambda self: str(self) in files)
    monkeypatch.setattr(Path, "read_text", lambda self: files[str(self)])
    facts.cpu_limit.cache_clear()
    try:
        limit = facts.cpu_limit()
        assert limit is not None
        assert (limit.cores, limit.used_s(), facts.cores()) == (1.5, 2.5, 1)
        files["/sys/fs/cgroup/cpu.max"] = "max 100000"
        facts.cpu_limit.cache_clear()
        assert facts.cpu_limit() is None
        assert facts.cores() == 8
    finally:
        facts.cpu_limit.cache_clear()
