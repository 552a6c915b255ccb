"""The recommender: one hidden layer that guesses better than the most popular accounts would."""

import pytest
import torch

from manyhands.data import load as load_data
from manyhands.tasks.load import load, spec_of

# A fifth of the tweets and a quarter of the accounts, to be learned in a second.
FEW = "tweets:samples=20000,accounts=25,follows=5,topics=5,words=128"


def test_it_is_a_built_in_task_with_one_hidden_layer() -> None:
    task = load("recommender")
    assert spec_of(task) == "recommender"
    assert (task.data, task.top) == ("tweets", 10)
    module = task.model(load_data("tweets:samples=5"))
    assert sum(p.numel() for p in module.parameters()) == 256 * 128 + 128 + 128 * 100 + 100


def test_it_takes_images_too() -> None:
    data = load_data("synthetic:samples=2,test=1,shape=1x28x28")
    assert load("recommender").model(data)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("top", [1, 3])
def test_it_beats_the_most_popular_accounts(train, top: int) -> None:  # type: ignore[no-untyped-def]
    data = load_data(FEW)
    popular = data.train.y.bincount().topk(top).indices
    known = torch.isin(data.test.y, popular).double().mean().item()
    hits = train("recommender", data=FEW, epochs=5, batch_size=256, top=top, blas_threads=1).test_accuracy
    assert top / 25 < known < 1.3 * known < hits < 0.9


def test_more_guesses_hit_more(train) -> None:  # type: ignore[no-untyped-def]
    small = {"data": "tweets:samples=1000", "epochs": 1, "blas_threads": 1}
    rates = [train("recommender", top=top, **small).test_accuracy for top in (1, 10, 50, 100)]
    assert rates == sorted(rates)
    assert rates[-1] == 1


def test_ten_guesses_count_unless_the_user_says_otherwise(train) -> None:  # type: ignore[no-untyped-def]
    small = {"data": "tweets:samples=500", "steps": 1, "blas_threads": 1}
    assert train("recommender", **small).config.top == 10
    assert train("recommender", top=3, **small).config.top == 3


def test_three_hidden_layers_take_tweets(train) -> None:  # type: ignore[no-untyped-def]
    record = train("dnn", data="tweets:samples=1000", top=10, epochs=1, blas_threads=1)
    assert 0 < record.test_accuracy < 1
