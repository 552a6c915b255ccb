"""A new codec is one new file: no other one is edited."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands import codec, sync
from manyhands.cli.main import main
from manyhands.errors import UserError

SOURCE = '''"""Every n-th value as it is, each time others."""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from manyhands.codec.base import Codec, as_bytes, from_bytes


@final
@dataclass(kw_only=True, slots=True)
class MyCodec(Codec):
    """Send every n-th value and where the first of them stands."""

    stride: int = 4
    """Values of which one is sent."""

    _first: Tensor = field(init=False, repr=False, compare=False, default_factory=lambda: torch.zeros(1))

    def num_bytes(self) -> int:
        """Return the bytes of the values sent and of the first one's place."""
        return self._dtype.itemsize * (1 + -(-self._numel // self.stride))

    def state(self) -> dict[str, Tensor]:
        """Return the place."""
        return {"first": self._first}

    def _encode(self, t: Tensor) -> Tensor:
        first = int(self._first)
        self._first.fill_((first + 1) % self.stride)
        sent = t.new_zeros(-(-self._numel // self.stride))
        sent[: len(t[first :: self.stride])] = t[first :: self.stride]
        return as_bytes(torch.cat([t.new_tensor([first]), sent]))

    def _decode(self, code: Tensor) -> Tensor:
        values = from_bytes(code, self._dtype)
        t, first = values.new_zeros(self._numel), int(values[0])
        t[first :: self.stride] = values[1 : 1 + len(t[first :: self.stride])]
        return t
'''


@pytest.fixture
def my_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Put a file beside the codecs, as if it lay in their folder."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "my_codec.py").write_text(SOURCE)
    monkeypatch.setattr(codec, "__path__", [*codec.__path__, str(folder)])
    yield "my-codec"
    sys.modules.pop("manyhands.codec.my_codec", None)
    vars(codec).pop("my_codec", None)


def test_it_is_found_and_trains(train, my_codec: str) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 3, "steps": 9}
    third = train(**options, sync=f"compressed:codec={my_codec},stride=3")
    assert third.bytes_sent == 9 * 3 * 2 * 4 * (1 + -(-third.parameters // 3))
    whole = train(**options, sync=f"compressed:codec={my_codec},stride=1")
    assert whole.train_loss == pytest.approx(train(**options).train_loss, rel=1e-6)
    assert whole.weights_sha256 != third.weights_sha256


def test_it_resumes(train, my_codec: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 2, "sync": f"compressed:codec={my_codec},stride=3"}
    whole = train(**options, steps=9)
    part = train(**options, steps=9, checkpoint_every=5)
    (tmp_path / part.id / "record.json").unlink()  # as if it had been killed
    assert train(resume=part.id).weights_sha256 == whole.weights_sha256


def test_its_options_are_checked(my_codec: str) -> None:
    with pytest.raises(UserError, match="stride of codec 'my-codec' must be a whole number, got 'x'"):
        sync.make(f"compressed:codec={my_codec},stride=x")
    with pytest.raises(UserError, match="there is no option of codec 'my-codec' named 'strid'; did you mean 'stride'"):
        sync.make(f"compressed:codec={my_codec},strid=3")


def test_it_is_listed_with_its_help(
    my_codec: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["manyhands", "syncs", "compressed", "--json"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    options = json.loads(capfd.readouterr().out)["options"]
    says = "With codec=my-codec: Values of which one is sent."
    assert my_codec in options[0]["help"]
    assert {"name": "stride", "kind": "a whole number", "default": 4, "help": says} in options


def test_without_its_file_it_is_not_there() -> None:
    assert "my-codec" not in codec.names()
    with pytest.raises(UserError, match="there is no codec 'my-codec'"):
        sync.make("compressed:codec=my-codec")
