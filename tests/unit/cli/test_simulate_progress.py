"""What `manyhands simulate` says while it works, where there is no terminal to draw a bar on."""

import pytest

from manyhands.cli import show
from manyhands.cli import simulate as module
from manyhands.simulation.simulate import SimulationPulse


def test_a_long_training_is_announced_with_its_time_as_soon_as_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(show.people, "print", lambda sentence, **how: said.append(sentence))
    tell = module._observer(show.Meter())
    for done, left_s in ((0.01, 700.0), (0.02, 690.0), (0.5, 300.0), (1.0, 0.0)):
        tell(SimulationPulse("async-server", 64, done, 2, trains=True, left_s=left_s))
    tell(SimulationPulse("async-server", 8, 1.01, 2, trains=True, left_s=2.0))
    assert said == [
        "  0 % trained async-server on 64, about 11 min 40 s left for it",
        " 25 % trained async-server on 64, about 5 min left for it",
        " 50 % trained async-server on 64",
    ]
