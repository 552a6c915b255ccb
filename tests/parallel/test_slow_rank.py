"""A rank that is slow in each step of a real run is named by the explanation of a sweep."""

from pathlib import Path

import manyhands
from manyhands.record.run import RunDir

TASK = """
import os, time
import manyhands
from torch import nn

class Slow(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.layer = nn.Linear(12, data.classes)

    def forward(self, x):
        if self.training and os.environ.get("PMI_RANK") == "1":
            time.sleep(0.02)
        return self.layer(x)

data = "synthetic:samples=96,features=12,classes=3,test=23,seed=5"
task = manyhands.Task(model=Slow, data=data, batch_size=12)
"""


def test_rank_1_is_slow(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(TASK)
    record = manyhands.scale(
        "strong", f"{tmp_path / 'slow.py'}:task", workers=[1, 2], engines=["mpi"], steps=30, repeats=1, out=tmp_path
    )
    (finding,) = record.findings
    assert any("because rank 1 on " in sentence for sentence in finding.sentences), finding.sentences
    assert finding.remedies[0].cause in ("slow-rank", "others")
    (measure,) = [run for run in record.measures if run.cell == finding.row]
    assert measure.slowest
    assert measure.slowest.rank == 1
    run = RunDir(tmp_path / record.id / measure.run).read()
    assert run
    workers = [rank.steady for rank in run.ranks if rank.steady]
    assert [worker.rows for worker in workers] == [6, 6]
    assert workers[0].median_ms < workers[1].median_ms
    assert workers[1].last > 0.5
