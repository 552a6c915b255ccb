"""The live folder: what ranks leave there, and what they do when it is full or gone."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from manyhands.comm.torch_ import PeerLost
from manyhands.errors import CannotWrite, Diverged, ManyhandsError, RankFailed, UserError
from manyhands.launch.mailbox import (
    LiveFolder,
    LiveWatch,
    Tail,
    failure_in,
    read_failures,
    read_status,
    show_pulses,
    stop_on_signals,
    write_failure,
)
from manyhands.launch.signals.stops import STOPS
from manyhands.record.run import Pulse, RunDir

PULSE = Pulse(
    step=1,
    steps=2,
    epoch=1,
    epochs=1,
    loss=0.5,
    accuracy=None,
    samples_per_s=1,
    eta_s=0,
    compute_s=0,
    comm_s=0,
    wait_s=0,
)


@pytest.fixture
def folder(tmp_path: Path) -> LiveFolder:
    folder = LiveFolder(RunDir(tmp_path / "run"))
    folder.open()
    return folder


FAILURES = [
    UserError("a bad request"),
    Diverged("the loss became nan"),
    PeerLost("rank 1 is gone"),
    RankFailed(rank=1, host="h", step=3, cause="ValueError('x')\nTraceback …\n"),
    CannotWrite("steps.jsonl", OSError(28, "No space left on device")),
]


@pytest.mark.parametrize("gone", [False, True], ids=["in its file", "on stderr"])
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
def test_a_failure_arrives_whether_or_not_it_can_be_written(
    folder: LiveFolder, capsys: pytest.CaptureFixture[str], error: ManyhandsError, gone: bool
) -> None:
    if gone:
        shutil.rmtree(folder.path)
    write_failure(folder.failure(0), error)
    said = capsys.readouterr().err
    (arrived,) = [failure_in(f"[0] {line}") for line in said.splitlines()] if gone else read_failures(folder)
    assert str(arrived) == str(error)
    assert bool(said) == gone
    assert type(arrived) is (type(error) if not isinstance(error, CannotWrite) else ManyhandsError)


@pytest.mark.parametrize("line", ["", "a user's own words\n", "manyhands-failure: {\n", "manyhands: stopped\n"])
def test_what_else_ranks_print_is_no_failure(line: str) -> None:
    assert failure_in(line) is None


def test_a_rank_goes_on_though_its_file_is_cut_short_or_gone(folder: LiveFolder) -> None:
    watch = LiveWatch(folder, 0)
    watch.at(3)
    assert read_status(folder, 0) is not None
    assert read_status(folder, 0)[:2] == (os.getpid(), 3)  # type: ignore[index]
    os.truncate(folder.rank(0), 0)
    watch.at(4)
    shutil.rmtree(folder.path)
    watch.at(5)
    watch.pulse(PULSE)
    assert not watch.stop_asked()


def test_a_pulse_that_a_full_disk_cut_off_is_passed_over(tmp_path: Path) -> None:
    text, shown = PULSE.model_dump_json(), list[Pulse]()
    (tmp_path / "pulses").write_text(f"{text}\n{text[:30]}{text}\n")
    show_pulses(Tail(tmp_path / "pulses"), shown.append)
    assert shown == [PULSE]


def test_a_signal_stops_every_rank_of_a_process(folder: LiveFolder) -> None:
    before = {number: signal.getsignal(number) for number in STOPS}
    try:
        stop = stop_on_signals()
        watches = [LiveWatch(folder, rank, stop) for rank in range(3)]
        os.kill(os.getpid(), signal.SIGINT)
        assert not any(watch.stop_asked() for watch in watches), "the supervisor answers Ctrl-C"
        os.kill(os.getpid(), signal.SIGTERM)
        assert all(watch.stop_asked() for watch in watches)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_folder_in_which_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CannotWrite, match=f"cannot write '{tmp_path}/run/live'"):
        LiveFolder(RunDir(tmp_path / "run")).open()
    with pytest.raises(CannotWrite, match=f"cannot write '{tmp_path}/run/live/rank-0'"):
        LiveWatch(LiveFolder(RunDir(tmp_path / "run")), 0)
