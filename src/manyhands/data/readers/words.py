"""Texts as the counts of their words, hashed to a fixed number of places (Weinberger et al. 2009).

The hash needs no vocabulary, so a word counts the same in every file and on every worker.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from manyhands.data.memory import check_size
from manyhands.errors import check

WORDS = 1024
LARGEST_COUNT = 255

# A sign is a word too, so that no text is without words, and an emoji or a # counts.
WORD = r"\w+|[^\w\s]"


def check_words(words: int, texts: int, owner: str, what: str) -> None:
    """Refuse a number of places for the `texts` of `what` that is not positive or does not fit into memory."""
    check(words >= 1, f"words of {owner} must be at least 1, got {words}")
    check_size(words * texts, 1, f"{what} with words={words}", "ask for fewer words")


def hashed(texts: Sequence[str], words: int) -> Tensor:
    """Return the counts of the words of every text, as bytes of the shape (texts, words)."""
    # Late, since it takes longer to import than most files to read.
    from sklearn.feature_extraction.text import HashingVectorizer  # type: ignore[import-untyped, unused-ignore]

    hashing = HashingVectorizer(n_features=words, token_pattern=WORD, norm=None, alternate_sign=False)
    counts = hashing.transform(texts)
    counts.data = np.minimum(counts.data, LARGEST_COUNT)
    return torch.from_numpy(counts.astype(np.uint8).toarray())
