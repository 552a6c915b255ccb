"""Generated tweets, and whom their writers follow: the data of the recommender in paper 004, which is not public.

The model, lowest first; the n-th word is drawn with a weight of 1/n (Zipf's law), the n-th topic or account, where
no one rules as "the" rules a language, with one of 1/√n:

- **Topics** have a vocabulary each, drawn from the words of the language, so that vocabularies overlap. A word is
  known by its hash alone, one of `words` places, so that some words collide.
- **Accounts** are about one topic each, and more or less popular among the accounts of that topic.
- **Users** are interested in a few topics, the first most, and follow `follows` different accounts, drawn by
  popularity, mostly of their topics. The follower lists are the network, which does not change.
- **A tweet** is by a user and about one of the user's topics. Of its 3 to 12 words the share `noise` comes from
  anywhere in the language, the others from the vocabulary of the topic.
- **A row** is a tweet's count of each hashed word; its label is an account that the tweet's writer follows, drawn by
  popularity, and more often one about the topic of the tweet.

A network can learn which accounts the writers of some words follow, but never all of it: two users who write the same
words follow different accounts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch

from manyhands.data.memory import check_size
from manyhands.data.order import generator
from manyhands.data.split import Dataset, Split
from manyhands.errors import check
from manyhands.spec import build

INTERESTS = 3
LANGUAGE = 4_000
VOCABULARY = 150
SHORTEST, LONGEST = 3, 12

ELSEWHERE = 0.05
"""Interest of every user in every topic, beside the topics of their own."""

LOYALTY = 3.0
"""How many times likelier a followed account is to be the label when it is about the tweet's topic."""

TEST_EVERY = 5
"""Every fifth row is for the test: the 80-20 split of the paper."""

Ints = np.ndarray[Any, np.dtype[np.int64]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Tweets:
    """The options of `tweets:…`."""

    samples: int = 94_000
    """Tweets, of which every fifth is for the test."""
    users: int = 2_000
    """Users, who write and follow."""
    accounts: int = 100
    """Accounts that are followed: the classes."""
    follows: int = 12
    """Accounts that each user follows."""
    topics: int = 20
    """Topics of users and accounts."""
    words: int = 256
    """Places that words are hashed to: the values of one sample."""
    noise: float = 0.4
    """Share of a tweet's words that do not depend on its topic."""
    seed: int = 0
    """Seed of the network and the tweets."""

    def __post_init__(self) -> None:
        least = {"samples": TEST_EVERY, "users": 1, "accounts": 2, "follows": 1, "topics": 1, "words": 1, "seed": 0}
        for name, lowest in least.items():
            value = getattr(self, name)
            check(value >= lowest, f"{name} of tweets must be at least {lowest}, got {value}")
        check(
            self.follows <= self.accounts,
            f"follows of tweets must be at most the number of accounts, {self.accounts}, got {self.follows}",
        )
        check(
            math.isfinite(self.noise) and 0 <= self.noise <= 1,
            f"noise of tweets must be between 0 and 1, got {self.noise}",
        )
        values = max(self.samples * max(self.words, self.follows), self.users * max(self.accounts, self.topics))
        check_size(values, 1, "tweets", "ask for fewer samples, words, users or accounts")


class FollowerNetwork(NamedTuple):
    """Topics of accounts, interests of users, and who follows whom."""

    topic_of: Ints
    """The topic of each account."""
    popularity: Floats
    """The weight of each account among those of its topic."""
    interests: Floats
    """Interest of each user (a row) in each topic; rows add up to 1."""
    follows: Ints
    """The accounts that each user (a row) follows, in ascending order."""


class Rows(NamedTuple):
    """Tweets as word counts, with the label, the writer and the topic of each."""

    counts: Bytes
    labels: Ints
    users: Ints
    topics: Ints


def load_tweets(options: Mapping[str, str]) -> Dataset:
    """Generate the tweets; fewer samples of the same seed are the first ones of more, in either split."""
    given = build(Tweets, options, "tweets")
    rows = write(given, connect(given))
    for_test = np.arange(given.samples) % TEST_EVERY == TEST_EVERY - 1
    return Dataset(name="tweets", train=_split(rows, ~for_test), test=_split(rows, for_test), classes=given.accounts)


def connect(given: Tweets) -> FollowerNetwork:
    """Draw the interests of the users and the accounts they follow."""
    topic_of = np.arange(given.accounts) % given.topics
    popularity = _popularity(1 + np.arange(given.accounts) // given.topics)
    interests = _interests(given)
    appeal = (interests[:, topic_of] + ELSEWHERE) * popularity
    follows = np.sort(_choose(generator(given.seed, 1), appeal, given.follows), axis=1)
    return FollowerNetwork(topic_of, popularity, interests, follows)


def write(given: Tweets, network: FollowerNetwork) -> Rows:
    """Draw the tweets, and for each an account that its writer follows."""
    # Every draw has a stream of its own, so that the first tweets do not depend on how many follow.
    n = given.samples
    users = generator(given.seed, 2).integers(given.users, size=n)
    topics = _pick(generator(given.seed, 3).random(n), network.interests[users])
    followed = network.follows[users]
    liking = network.popularity[followed]
    liking[network.topic_of[followed] == topics[:, None]] *= LOYALTY
    chosen = _pick(generator(given.seed, 4).random(n), liking)
    return Rows(_counts(given, topics), followed[np.arange(n), chosen], users, topics)


def _interests(given: Tweets) -> Floats:
    topics = np.broadcast_to(_popularity(np.arange(1, given.topics + 1)), (given.users, given.topics))
    chosen = _choose(generator(given.seed, 0), topics, min(INTERESTS, given.topics))
    interests = np.zeros((given.users, given.topics))
    weights = _zipf(chosen.shape[1])
    np.put_along_axis(interests, chosen, np.broadcast_to(weights / weights.sum(), chosen.shape), axis=1)
    return interests


def _counts(given: Tweets, topics: Ints) -> Bytes:
    language = generator(given.seed, 5)
    place_of = language.integers(given.words, size=LANGUAGE)
    vocabularies = language.integers(LANGUAGE, size=(given.topics, VOCABULARY))
    n = len(topics)
    lengths = generator(given.seed, 6).integers(SHORTEST, LONGEST + 1, size=n)
    draws = generator(given.seed, 7).random((n, LONGEST))
    anywhere = generator(given.seed, 8).random((n, LONGEST)) < given.noise
    of_topic = vocabularies[topics[:, None], _ranks(draws, VOCABULARY)]
    spoken = place_of[np.where(anywhere, _ranks(draws, LANGUAGE), of_topic)]
    row, position = np.nonzero(np.arange(LONGEST) < lengths[:, None])
    counts = np.zeros((n, given.words), np.uint8)
    np.add.at(counts.reshape(-1), row * given.words + spoken[row, position], np.uint8(1))
    return counts


def _zipf(n: int) -> Floats:
    return 1.0 / np.arange(1, n + 1)


def _popularity(ranks: Ints) -> Floats:
    return 1.0 / np.sqrt(ranks)


def _ranks(draws: Floats, n: int) -> Ints:
    ends = np.cumsum(_zipf(n))
    rank: Ints = np.minimum(np.searchsorted(ends, draws * ends[-1], side="right"), n - 1)
    return rank


def _pick(draws: Floats, weights: Floats) -> Ints:
    """Return, for each draw in [0, 1), a column of its row of weights."""
    ends = np.cumsum(weights, axis=1)
    column: Ints = (ends <= (draws * ends[:, -1])[:, None]).sum(axis=1)
    return column


def _choose(stream: np.random.Generator, weights: Floats, n: int) -> Ints:
    """Return, for each row of weights, n different columns in the order they were drawn."""
    # The first n of a race in which each runs at the speed of its weight.
    arrivals = stream.standard_exponential(weights.shape) / weights
    first: Ints = np.argsort(arrivals, axis=1, kind="stable")[:, :n]
    return first


def _split(rows: Rows, kept: np.ndarray[Any, np.dtype[np.bool_]]) -> Split:
    return Split(torch.from_numpy(rows.counts[kept]), torch.from_numpy(rows.labels[kept]))
