"""Whom to follow, learned from tweets: hit rates of a trained recommender beside those of the most popular accounts."""

import torch

import manyhands
from manyhands.data import load

GUESSES = (1, 10)


def popular(top: int) -> float:
    """Return how often one of the most popular accounts is the right one."""
    data = load("tweets")
    return torch.isin(data.test.y, data.train.y.bincount().topk(top).indices).double().mean().item()


if __name__ == "__main__":
    for top in GUESSES:
        record = manyhands.train("recommender", engine="threads", workers=2, top=top)
        print(
            f"one of {top:>2} guesses is right: {100 * record.test_accuracy:.1f} % trained, "
            f"{100 * popular(top):.1f} % by popularity, {top:.1f} % by chance"
        )
