"""A folder has one owner at a time: who that is can be read, and what a killed one left is taken over."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from manyhands.errors import Diverged, RankFailed, UserError
from manyhands.record import owner
from manyhands.record.owner import OWNER, Owner, own, state_of
from manyhands.record.run import RunDir
from manyhands.record.status import note_failure, noting_failure, own_run, status_of

HERE = Owner(socket.gethostname(), os.getpid(), "2026-01-01 00:00:00", owner._boot(), owner._started(os.getpid()))


def leave(folder: Path, **values: object) -> None:
    """Leave the file of an owner that did not end as it should."""
    (folder / OWNER).write_text(json.dumps({**vars(HERE), **values}))


def gone() -> int:
    """Return the number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_second_owner_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    with own(tmp_path, "run 'a'"):
        assert state_of(tmp_path)[0] == "owned"
        with pytest.raises(UserError) as refused, own(tmp_path, "run 'a'"):
            pytest.fail("two own it")
        assert (tmp_path / OWNER).is_file(), "the one that is refused takes nothing away"
    sentence = f"run 'a' is in use by process {os.getpid()} on {socket.gethostname()} since 2"
    assert str(refused.value).startswith(sentence)
    assert list(tmp_path.iterdir()) == []
    with own(tmp_path, "run 'a'"):
        pass


def test_an_error_inside_ends_the_ownership(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), own(tmp_path, "run 'a'"):
        raise ZeroDivisionError
    assert state_of(tmp_path) == ("free", None)


def test_never_two_at_once_however_many_ask(tmp_path: Path) -> None:
    """Each removes the file when it ends, while others have it open already."""
    inside, owned, lock = 0, 0, threading.Lock()

    def ask(_: int) -> None:
        nonlocal inside, owned
        for _ in range(20):
            try:
                with own(tmp_path, "it"):
                    with lock:
                        inside, owned = inside + 1, owned + 1
                        assert inside == 1
                    time.sleep(0.0005)
                    with lock:
                        inside -= 1
            except UserError:
                pass

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(ask, range(5)))
    assert owned >= 20
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_left_is_taken_over_and_said(tmp_path: Path) -> None:
    leave(tmp_path, pid=gone())
    (tmp_path / ".record.json.12.ab.tmp").write_text("half")
    (tmp_path / "notes.tmp").write_text("the user's own")
    said: list[str] = []
    assert state_of(tmp_path)[0] == "left"
    with own(tmp_path, "run 'a'", said.append):
        assert json.loads((tmp_path / OWNER).read_text())["pid"] == os.getpid()
        assert {path.name for path in tmp_path.iterdir()} == {OWNER, "notes.tmp"}
    (sentence,) = said
    assert sentence.startswith("run 'a' was left by process ")
    assert sentence.endswith("which is gone; taking it over")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"host": "x"}'])
def test_a_damaged_file_of_nobody_is_taken_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / OWNER).write_bytes(content)
    with own(tmp_path, "run 'a'"):
        assert state_of(tmp_path)[0] == "owned"


def test_an_owner_on_another_host_is_believed_until_its_file_is_removed(tmp_path: Path) -> None:
    leave(tmp_path, host="elsewhere", boot="another", pid=7)
    assert state_of(tmp_path)[0] == "elsewhere"
    with pytest.raises(UserError) as refused, own(tmp_path, "run 'a'"):
        pytest.fail("nobody can know that it is gone")
    assert str(refused.value) == (
        "run 'a' is in use by process 7 on elsewhere since 2026-01-01 00:00:00; "
        f"if that host or process is gone, remove '{tmp_path / OWNER}' first"
    )
    (tmp_path / OWNER).unlink()
    with own(tmp_path, "run 'a'"):
        pass


@pytest.mark.parametrize("values", [{"host": "container"}, {"boot": "before the machine was started again"}])
def test_another_container_of_this_machine_and_this_machine_before_are_known_to_be_gone(
    tmp_path: Path, values: dict[str, str]
) -> None:
    leave(tmp_path, **values, pid=gone())
    with own(tmp_path, "run 'a'"):
        pass


def test_without_locks_the_process_and_when_it_started_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that is used again is not taken for life."""
    monkeypatch.setattr(owner, "_lock", lambda *_: "cannot")
    with own(tmp_path, "it"):
        assert state_of(tmp_path)[0] == "owned"
        with pytest.raises(UserError, match="is in use by process"), own(tmp_path, "it"):
            pytest.fail("two own it")
    leave(tmp_path, started=HERE.started + "0")
    assert state_of(tmp_path)[0] == "left"
    with own(tmp_path, "it"):
        pass
    leave(tmp_path, pid=gone())
    with own(tmp_path, "it"):
        pass


def test_a_folder_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / OWNER).mkdir()
    with pytest.raises(UserError, match=f"cannot write '{tmp_path / OWNER}'"), own(tmp_path, "it"):
        pass


FORKS = """
import os, sys, time
from pathlib import Path
from manyhands.record.owner import own
with own(Path(sys.argv[1]), "it"):
    child = os.fork()
    if not child:
        time.sleep(600)
    print(child, flush=True)
    time.sleep(600)
"""


def test_the_lock_ends_with_its_process_though_a_child_lives_on(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            with pytest.raises(UserError, match=f"in use by process {process.pid} "), own(tmp_path, "it"):
                pytest.fail("two own it")
            process.kill()
            process.wait()
            os.kill(child, 0)
            assert state_of(tmp_path)[0] == "left"
            with own(tmp_path, "it"):
                pass
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


def test_the_status_of_a_run_is_told_from_its_folder(tmp_path: Path, train) -> None:  # type: ignore[no-untyped-def]
    run = RunDir(tmp_path / "a")
    with own_run(run):
        assert status_of(run).word == "running"
        (run.checkpoints).mkdir()
        (run.checkpoints / ".step-000000003.safetensors.9.aa.tmp").write_text("half")
        run.live.mkdir()
    assert status_of(run).word == "unfinished"
    with own_run(run):
        assert not run.live.exists()
        assert not list(run.checkpoints.iterdir())
    for error, word in (
        (Diverged("the loss became nan at step 3"), "diverged"),
        (RankFailed(rank=1, host="h", step=3, cause="killed by signal 9"), "failed"),
        (KeyboardInterrupt(), "stopped"),
    ):
        with pytest.raises(type(error)), noting_failure(run):
            raise error
        assert status_of(run).word == word
    leave(run.path, pid=gone())
    assert status_of(run).word == "stopped", "it said so itself before it ended"
    with noting_failure(run):
        assert status_of(run).word == "killed", "what was said before it was resumed is gone"
    leave(run.path, host="node7", boot="another")
    assert status_of(run).word == "on node7"
    assert status_of(RunDir(tmp_path / train(steps=2).id)).word == "complete"


def test_a_failure_that_cannot_be_noted_does_not_hide_the_reason(tmp_path: Path) -> None:
    note_failure(RunDir(tmp_path / "deleted"), ZeroDivisionError("mine"))


def test_a_run_that_fails_says_why_in_its_folder(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(Diverged):
        train(lr=1e30, steps=40, batch_size=10)
    (folder,) = tmp_path.iterdir()
    word, says = status_of(RunDir(folder))
    assert word == "diverged"
    assert says.startswith("the loss became ")
    assert state_of(folder) == ("free", None)
