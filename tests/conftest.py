"""What all tests share: nothing may be left running, and a short way to train in this process."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import HealthCheck, settings

import manyhands
from manyhands import RunRecord
from manyhands.comm import Comm
from manyhands.comm.barrier import GroupAborted
from manyhands.comm.threads import ThreadComm, ThreadGroup
from manyhands.launch.blas_threads import trial as thread_trial

# No test asserts a duration: a busy machine must not make a law fail.
settings.register_profile("manyhands", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("manyhands")

TINY = Path(__file__).parent / "conformance" / "tiny.py"

UNIT = Path(__file__).parent / "unit"
SLOW = (
    "advice/test_advise.py",
    "calibration/test_calibrate.py",
    "cli/test_bad_requests.py",
    "cli/test_commands.py",
    "cli/test_crossval_command.py",
    "cli/test_start.py",
    "cli/test_streams.py",
    "codec/test_codecs.py",
    "comm/test_torch_comm.py",
    "crossval/test_crossval.py",
    "data/readers/test_readers_equal_serial.py",
    "data/test_mnist.py",
    "launch/test_ray.py",
    "launch/test_stopping.py",
    "launch/test_torch.py",
    "machine/test_load.py",
    "model/test_fit_comm.py",
    "profiling/test_profile.py",
    "replica/test_stacked.py",
    "replica/test_update.py",
    "report/test_browser.py",
    "report/test_browser_predictions.py",
    "report/test_pages.py",
    "report/test_pictures.py",
    "scaling/test_scale_command.py",
    "simulation/test_forms.py",
    "simulation/test_simulate.py",
    "simulation/test_simulate_train.py",
    "sync/test_async_server.py",
    "sync/test_optimizers.py",
    "sync/test_overlap.py",
    "sync/test_strategies.py",
    "test_examples.py",
    "test_resume.py",
    "training/test_agreement.py",
    "training/test_caveats.py",
    "verification/test_compare.py",
    "virtual/test_virtual_train.py",
)
"""Files of `tests/unit` that take more than about 3 s or start many processes: `make check` leaves them out."""

GRACE_S = 3.0
"""How long what is ending anyway may take to be gone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow files."""
    slow = {UNIT / name for name in SLOW}
    assert all(path.is_file() for path in slow), "a file of SLOW was moved"
    for item in items:
        if item.path in slow:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True, scope="session")
def one_thread_per_product() -> Iterator[None]:
    """Compute the tests' own small products in one thread; launchers choose for themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep calibrations and chosen threads of the tests apart from those of the user, and from what else runs there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setattr(thread_trial, "_busy_programs", lambda meter: None)
        yield


@pytest.fixture(autouse=True)
def leaves_nothing_running() -> Iterator[None]:
    """Fail a test that leaves a thread (other than a daemon) or a child process behind."""
    threads, children = set(threading.enumerate()), set(_children())
    yield
    give_up = time.monotonic() + GRACE_S
    while (left := _left(threads, children)) and time.monotonic() < give_up:
        time.sleep(0.02)
    assert not left, f"left running: {left}"


def _left(threads: set[threading.Thread], children: set[psutil.Process]) -> list[str]:
    new_threads = [t.name for t in threading.enumerate() if t not in threads and not t.daemon]
    new_children = [p for p in _children() if p not in children]
    return new_threads + [str(p) for p in new_children]


def _children() -> list[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []  # the system knows at once that there are none; psutil reads about every process there is
    return psutil.Process().children(recursive=True)


def run_ranks(work: Callable[[Comm], Any], size: int) -> list[Any]:
    """Run some work as each of `size` threads; return what each gave, or raise what one raised."""
    group = ThreadGroup(size)
    comms = [ThreadComm(group, rank) for rank in range(size)]

    def attempt(comm: Comm) -> Any:
        try:
            return work(comm)
        except BaseException:
            group.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(attempt, comm) for comm in comms]
    errors = [e for f in futures if (e := f.exception()) is not None]
    for error in sorted(errors, key=lambda e: isinstance(e, GroupAborted)):
        raise error
    return [f.result() for f in futures]


Ranks = Callable[[Callable[[Comm], Any], int], list[Any]]


@pytest.fixture
def ranks() -> Ranks:
    """Run a function on every rank of a group of threads: `ranks(work, size)`."""
    return run_ranks


Train = Callable[..., RunRecord]


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Train in this process, or from it, with `tmp_path` as `--out`."""

    def run(task: str = f"{TINY}:mlp", **options: object) -> RunRecord:
        return manyhands.train(task, **{"out": tmp_path, **options})  # type: ignore[arg-type]

    return run


@pytest.fixture
def tiny() -> Callable[[str], str]:
    """Return the spec of a task of `conformance/tiny.py`."""
    return lambda name: f"{TINY}:{name}"
