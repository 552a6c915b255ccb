"""Streams that are closed, broken or full: a result that cannot be written is one sentence, the rest is survived."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.cli.main import main

MANYHANDS = f"{sys.executable} -m manyhands"


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("{} runs list --json >&-", 1, "cannot write the result to stdout: it is closed"),
        ("{} runs list >&-", 1, "cannot write the result to stdout: it is closed"),
        ("{} --version >/dev/full", 1, "cannot write the result to stdout: No space left on device"),
        ("{} train nosuchtask <&- >&-", 2, "there is no task 'nosuchtask'"),
        ("{} train nosuchtask 2>&-", 2, ""),
        ("{} --version >&- 2>&-", 1, ""),
    ],
)
def test_a_closed_or_full_stream_gets_no_traceback(tmp_path: Path, line: str, status: int, says: str) -> None:
    done = subprocess.run(
        line.format(MANYHANDS), shell=True, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
    )
    assert done.returncode == status
    assert done.stderr.startswith(f"manyhands: {says}" if says else "")
    assert len(done.stderr.splitlines()) == bool(says)


def test_who_reads_only_the_beginning_is_no_failure(tmp_path: Path) -> None:
    line = f"{MANYHANDS} syncs --json | head -c 5; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"syn', "")


class Gone:
    """A stream whose other end is not there any more."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def flush(self) -> None:
        raise OSError(5, "Input/output error")

    def isatty(self) -> bool:
        return False


def _train(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    line = ["manyhands", "train", "mlp", "--data", "mnist:train=200,test=50", "--steps", "3", *options]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def test_a_run_outlives_the_terminal_it_was_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    assert _train(monkeypatch, "--json", "--out", str(tmp_path)) == 0
    assert json.loads(capsys.readouterr().out)["status"] == "complete"


def test_a_result_that_cannot_be_printed_is_kept_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Gone())
    assert _train(monkeypatch, "--json", "--out", str(tmp_path)) == 1
    assert capsys.readouterr().err.endswith("manyhands: cannot write the result to stdout: Input/output error\n")
    assert len(list(tmp_path.glob("*/record.json"))) == 1
