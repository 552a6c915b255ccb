"""A bad request gets one sentence: what was given, what is allowed, and a hint."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.config import RunConfig
from manyhands.errors import Diverged, ManyhandsError, RankFailed, UserError, check, nearest, unknown

NAMES = st.lists(st.text("abcdefghij-", min_size=3, max_size=12), min_size=1, max_size=6, unique=True)


def test_check_raises_its_sentence_and_nothing_where_all_is_well() -> None:
    check(True, "never seen")
    with pytest.raises(UserError, match=r"^a is not b$"):
        check(False, "a is not b")


@pytest.mark.parametrize(
    ("given_name", "nearest"), [("allredcue", "allreduce"), ("local_sgd", "local-sgd"), ("gosip", "gossip")]
)
def test_the_nearest_name_is_offered(given_name: str, nearest: str) -> None:
    with pytest.raises(UserError) as caught:
        unknown("sync", given_name, ["allreduce", "local-sgd", "gossip"])
    assert str(caught.value) == (
        f"there is no sync '{given_name}'; did you mean '{nearest}'? choose from: allreduce, local-sgd, gossip"
    )


def test_a_name_far_from_all_gets_no_offer() -> None:
    with pytest.raises(UserError) as caught:
        unknown("sync", "zzzz", ["allreduce", "gossip"])
    assert "did you mean" not in str(caught.value)


OPTIONS = [f"--{name.replace('_', '-')}" for name in RunConfig.model_fields]


@pytest.mark.parametrize(
    ("given_name", "meant"),
    [
        ("--worker", "--workers"),
        ("--enigne", "--engine"),
        ("--batch_size", "--batch-size"),
        ("--Epochs", "--epochs"),
        ("--checkpoint", "--checkpoint-every"),
        ("--sedd", "--seed"),
    ],
)
def test_a_slip_of_the_pen_is_understood(given_name: str, meant: str) -> None:
    assert nearest(given_name, OPTIONS) == meant


@pytest.mark.parametrize("given_name", ["--amp", "--gpus", "--callbacks", "--logger", "--nodes-list", "-x", ""])
def test_no_hint_is_far_fetched(given_name: str) -> None:
    assert nearest(given_name, OPTIONS) is None


def test_another_number_is_no_slip_of_the_pen() -> None:
    assert nearest("005", ["000", "001", "all"]) is None
    assert nearest("2026", ["20261118-mlp"]) == "20261118-mlp"


@given(NAMES, st.text(min_size=1, max_size=8))
def test_every_allowed_name_is_listed_in_one_line(names: list[str], text: str) -> None:
    text = text.replace("\n", " ").replace("\r", " ")
    with pytest.raises(UserError) as caught:
        unknown("thing", text, iter(names))
    assert all(name in str(caught.value) for name in names)
    assert f"'{text}'" in str(caught.value)


@given(NAMES)
def test_a_name_with_a_letter_too_many_is_offered_itself_or_its_equal(names: list[str]) -> None:
    with pytest.raises(UserError, match="did you mean"):
        unknown("thing", names[0] + "x", names)


@pytest.mark.parametrize(("step", "where"), [(-1, "before the first step"), (0, "at step 0"), (17, "at step 17")])
def test_a_failed_rank_says_who_where_and_why(step: int, where: str) -> None:
    error = RankFailed(rank=3, host="node7", step=step, cause="killed by signal 9 (SIGKILL)")
    assert str(error) == f"rank 3 on node7 failed {where}: killed by signal 9 (SIGKILL)"
    assert (error.rank, error.host, error.step) == (3, "node7", step)


@pytest.mark.parametrize("kind", [UserError, Diverged, RankFailed])
def test_all_are_explained_by_us(kind: type) -> None:
    assert issubclass(kind, ManyhandsError)
