"""Generated tweets: the same for the same options, drawn from real follower lists, and refused where senseless."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.data import load
from manyhands.data.tweets import LONGEST, SHORTEST, Tweets, connect, write
from manyhands.errors import UserError

SMALL = {"samples": 500, "users": 40, "accounts": 12, "follows": 4, "topics": 5, "words": 32}


def test_defaults_are_those_of_the_paper() -> None:
    data = load("tweets")
    assert (len(data.train), len(data.test)) == (75_200, 18_800)
    assert (data.classes, data.shape, data.train.x.dtype) == (100, (256,), torch.uint8)
    assert data.train.y.unique().numel() == 100


@given(n=st.integers(5, 60), more=st.integers(0, 60), seed=st.integers(0, 2**64))
@settings(max_examples=25)
def test_fewer_samples_are_the_first_of_more(n: int, more: int, seed: int) -> None:
    options = f"users=9,accounts=7,follows=3,topics=4,words=11,seed={seed}"
    small, large = (load(f"tweets:samples={m},{options}") for m in (n, n + more))
    assert len(small.train) + len(small.test) == n
    assert len(small.test) == n // 5
    for part, whole in ((small.train, large.train), (small.test, large.test)):
        assert part.x.equal(whole.x[: len(part)])
        assert part.y.equal(whole.y[: len(part)])


@given(
    users=st.integers(1, 30),
    accounts=st.integers(2, 15),
    topics=st.integers(1, 20),
    words=st.integers(1, 40),
    noise=st.floats(0, 1),
    seed=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=50)
def test_every_label_is_an_account_that_the_writer_follows(
    users: int, accounts: int, topics: int, words: int, noise: float, seed: int, data: st.DataObject
) -> None:
    follows = data.draw(st.integers(1, accounts))
    wanted = Tweets(
        samples=80, users=users, accounts=accounts, follows=follows, topics=topics, words=words, noise=noise, seed=seed
    )
    network = connect(wanted)
    rows = write(wanted, network)
    assert network.follows.shape == (users, follows)
    assert all(len(set(row)) == follows for row in network.follows.tolist())
    assert np.allclose(network.interests.sum(axis=1), 1)
    for label, user, topic in zip(rows.labels, rows.users, rows.topics, strict=True):
        assert label in network.follows[user]
        assert network.interests[user, topic] > 0
    lengths = rows.counts.sum(axis=1, dtype=int)
    assert lengths.min() >= SHORTEST
    assert lengths.max() <= LONGEST


def test_users_follow_accounts_of_their_topics_and_the_popular_ones() -> None:
    network = connect(Tweets(users=4000))
    follows = np.zeros((4000, 100), bool)
    np.put_along_axis(follows, network.follows, True, axis=1)
    cares = network.interests[:, network.topic_of] > 0
    assert follows[cares].mean() > 3 * follows[~cares].mean()
    followers = follows.sum(axis=0)
    assert followers[network.popularity == 1].mean() > 1.3 * followers[network.popularity < 0.5].mean()


def test_labels_prefer_the_topic_of_the_tweet() -> None:
    wanted = Tweets(samples=20_000)
    network = connect(wanted)
    rows = write(wanted, network)
    about = (network.topic_of[network.follows[rows.users]] == rows.topics[:, None]).mean()
    assert (network.topic_of[rows.labels] == rows.topics).mean() > 1.5 * about


def test_words_tell_the_topic_unless_all_is_noise() -> None:
    def distance(noise: float) -> float:
        wanted = Tweets(samples=20_000, noise=noise)
        rows = write(wanted, connect(wanted))
        first, second = (rows.counts[rows.topics == t].mean(axis=0) for t in (0, 1))
        return float(np.abs(first - second).sum())

    without, some, all_noise = distance(0), distance(0.4), distance(1)
    assert without > some > 3 * all_noise


def test_seed_changes_everything() -> None:
    one, two = (Tweets(**SMALL, seed=seed) for seed in (1, 2))
    assert not np.array_equal(connect(one).follows, connect(two).follows)
    assert not np.array_equal(write(one, connect(one)).counts, write(two, connect(one)).counts)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("samples=4", "samples of tweets must be at least 5, got 4"),
        ("users=0", "users of tweets must be at least 1, got 0"),
        ("accounts=1", "accounts of tweets must be at least 2, got 1"),
        ("follows=0", "follows of tweets must be at least 1, got 0"),
        ("accounts=10", "follows of tweets must be at most the number of accounts, 10, got 12"),
        ("topics=0", "topics of tweets must be at least 1, got 0"),
        ("words=0", "words of tweets must be at least 1, got 0"),
        ("seed=-1", "seed of tweets must be at least 0, got -1"),
        ("noise=1.5", "noise of tweets must be between 0 and 1, got 1.5"),
        ("noise=nan", "noise of tweets must be between 0 and 1, got nan"),
        ("samples=10000000000000", "at most 8589934592 are allowed"),
        ("users=10000000000000", "at most 8589934592 are allowed"),
        ("user=5", "did you mean 'users'"),
        ("words=many", "words of tweets must be a whole number, got 'many'"),
    ],
)
def test_senseless_options_are_one_sentence(options: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(f"tweets:{options}")
    assert "\n" not in str(caught.value)
