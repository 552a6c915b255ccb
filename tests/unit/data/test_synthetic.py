"""Generated clusters: the same for the same options, learnable, and refused where senseless."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data import load
from manyhands.errors import UserError


def test_defaults() -> None:
    data = load("synthetic")
    assert (len(data.train), len(data.test), data.classes, data.shape) == (10_000, 2_000, 10, (784,))
    assert data.train.x.dtype == torch.float32


@given(st.integers(1, 50), st.integers(1, 50), st.integers(2, 9), st.integers(0, 2**64))
@settings(deadline=None, max_examples=25)
def test_fewer_samples_are_the_first_of_more(n: int, more: int, classes: int, seed: int) -> None:
    options = f"features=3,classes={classes},seed={seed}"
    small = load(f"synthetic:samples={n},test={n},{options}")
    large = load(f"synthetic:samples={n + more},test={n + more},{options}")
    for part, whole in ((small.train, large.train), (small.test, large.test)):
        assert part.x.equal(whole.x[:n])
        assert part.y.equal(whole.y[:n])
        assert int(whole.y.max()) < classes


def test_seed_changes_everything() -> None:
    one, two = (load(f"synthetic:samples=100,test=100,features=5,seed={seed}") for seed in (1, 2))
    assert not one.train.x.equal(two.train.x)
    assert not one.train.y.equal(two.train.y)
    assert not one.train.x.equal(one.test.x)


def test_without_noise_a_class_is_its_centre() -> None:
    data = load("synthetic:samples=200,test=50,features=4,classes=3,noise=0")
    centres = torch.stack([data.train.x[data.train.y == c][0] for c in range(3)])
    assert data.train.x.equal(centres[data.train.y])
    assert data.test.x.equal(centres[data.test.y])
    assert len({tuple(c) for c in centres.tolist()}) == 3


def test_noise_is_the_spread_around_the_centres() -> None:
    data = load("synthetic:samples=4000,test=1,features=20,classes=2,noise=3")
    for c in range(2):
        assert abs(data.train.x[data.train.y == c].std(dim=0).mean() - 3) < 0.1


def test_shape_gives_images() -> None:
    data = load("synthetic:samples=3,test=2,shape=2x4x4", image_size=8)
    assert data.shape == (2, 8, 8)
    assert data.train.batch(torch.arange(3), torch.float32)[0].shape == (3, 2, 8, 8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("samples=0", "samples of synthetic must be at least 1, got 0"),
        ("features=-3", "features of synthetic must be at least 1, got -3"),
        ("classes=1", "classes of synthetic must be at least 2, got 1"),
        ("test=0", "test of synthetic must be at least 1, got 0"),
        ("seed=-1", "seed of synthetic must be at least 0, got -1"),
        ("noise=-1", "noise of synthetic must be a number from 0 up, got -1.0"),
        ("noise=nan", "noise of synthetic must be a number from 0 up, got nan"),
        ("noise=inf", "noise of synthetic must be a number from 0 up, got inf"),
        ("shape=28x28", "CHANNELSxHEIGHTxWIDTH, such as 1x28x28, got '28x28'"),
        ("shape=1x0x28", "got '1x0x28'"),
        ("shape=1x28x28,features=784", "either features or shape, not both"),
        ("samples=10000000000000000000000", "at most 8589934592 are allowed"),
        ("shape=99999x99999x99999", "at most 8589934592 are allowed"),
        ("samples=many", "samples of synthetic must be a whole number, got 'many'"),
        ("sample=5", "did you mean 'samples'"),
    ],
)
def test_senseless_options_are_one_sentence(options: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(f"synthetic:{options}")
    assert "\n" not in str(caught.value)
