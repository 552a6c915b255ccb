"""What a killed run left of MPICH's shared memory is removed if it is provably ours and nobody uses it."""

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manyhands.launch.guard.process import FAILED, _Guard
from manyhands.launch.guard.segments import FOLDER, WaitingMark, segments_of, sweep, unused

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"there is no {FOLDER}")

MAPS = """
import mmap, sys
with open(sys.argv[1], "r+b") as f:
    kept = mmap.mmap(f.fileno(), 0)
print(flush=True)
sys.stdin.read()
"""

User = subprocess.Popen[str]


@pytest.fixture
def segment() -> Iterator[Path]:
    """Make a file as MPICH does."""
    path = FOLDER / f"mpich_shm_{secrets.token_hex(4)}_0"
    path.write_bytes(bytes(4096))
    yield path
    path.unlink(missing_ok=True)


@pytest.fixture
def user(segment: Path) -> Iterator[Callable[[], User]]:
    """Start processes that have it mapped."""
    started: list[User] = []

    def start() -> User:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen([sys.executable, "-S", "-c", MAPS, str(segment)], **pipes))  # type: ignore[call-overload]
        assert started[-1].stdout.readline() == "\n"
        return started[-1]

    yield start
    for process in started:
        end(process)


def end(process: User) -> None:
    process.kill()
    process.communicate()


def test_what_a_killed_rank_had_mapped_is_removed_once_nobody_has(segment: Path, user: Callable[[], User]) -> None:
    killed, other = user(), user()
    assert segments_of(killed.pid) == {segment}
    WaitingMark(killed.pid).note()
    sweep()
    assert segment.exists(), "its process lives"
    end(killed)
    sweep()
    assert segment.exists(), "another process has it mapped"
    WaitingMark(other.pid).note()
    end(other)
    assert segment in unused()
    sweep()
    assert not segment.exists()
    assert not [path for path in FOLDER.glob("manyhands_waits-*") if str(killed.pid) in path.name]


def test_what_a_rank_has_just_mapped_is_removed_when_its_guard_ends_it(segment: Path, user: Callable[[], User]) -> None:
    guard = _Guard.__new__(_Guard)
    guard._rank = user().pid
    guard._mark = WaitingMark(guard._rank)
    assert guard._end(FAILED) == FAILED
    assert not segment.exists()


def test_what_others_left_stays(segment: Path, user: Callable[[], User]) -> None:
    end(user())
    sweep()
    assert segment.exists(), "no mark says that it was ours"


def test_a_mark_frees_no_other_file(tmp_path: Path, segment: Path, user: Callable[[], User]) -> None:
    killed = user()
    mark = WaitingMark(killed.pid)
    mark.note()
    (path,) = (path for path in FOLDER.glob("manyhands_waits-*") if f"-{killed.pid}-" in path.name)
    kept = tmp_path / "mpich_shm_0_0"
    kept.touch()
    path.write_text(f"{kept}\n{FOLDER}/../{kept}\n{FOLDER}\n{segment}\n")
    end(killed)
    sweep()
    assert kept.exists()
    assert not segment.exists()
