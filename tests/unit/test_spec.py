"""Spec strings: one parser, whose errors are one sentence."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.errors import UserError
from manyhands.spec import Option, build, convert, describe, parse

WORDS = st.text("abcdefgXYZ0189._-/", min_size=1, max_size=8)


@given(WORDS, st.dictionaries(WORDS, WORDS, max_size=5), st.sampled_from(["", " ", "  "]))
def test_what_is_written_is_read(name: str, options: dict[str, str], gap: str) -> None:
    text = f"{name}{gap}:" + ",".join(f"{gap}{key}{gap}={gap}{value}{gap}" for key, value in options.items())
    assert parse(text) == (name, options)


@given(WORDS)
def test_options_may_be_left_out(name: str) -> None:
    assert parse(name) == parse(f"{name}:") == (name, {})


def test_a_value_may_hold_colons_and_equals() -> None:
    assert parse("npz:file=C:/a=b.npz").options == {"file": "C:/a=b.npz"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no name"),
        (":a=1", "has no name"),
        ("  :a=1", "has no name"),
        ("x:a", "'a' in 'x:a' is not key=value"),
        ("x:=3", "is not key=value"),
        ("x:a=1,b", "'b' in"),
        ("x:a=1,a=2", "'a' is given twice"),
    ],
)
def test_bad_texts_are_explained(text: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@dataclass(kw_only=True)
class Options:
    """All the types that options have."""

    kind: ClassVar[str] = "not an option"
    period: int = 8
    ratio: float = 0.5
    codec: str = "fp16"
    wait: bool = True
    order: Literal["ring", "tree"] = "ring"
    hidden: int = field(default=0, init=False)


@given(st.integers(), st.floats(allow_nan=False), WORDS, st.booleans(), st.sampled_from(["ring", "tree"]))
def test_values_take_the_type_of_their_field(
    period: int, ratio: float, codec: str, wait: bool, order: Literal["ring", "tree"]
) -> None:
    texts = {"period": str(period), "ratio": repr(ratio), "codec": codec, "wait": str(wait), "order": order}
    assert build(Options, texts, "x") == Options(period=period, ratio=ratio, codec=codec, wait=wait, order=order)


def test_what_is_not_given_keeps_its_default() -> None:
    assert build(Options, {}, "x") == Options()


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("1", True), ("TRUE", True), ("no", False), ("0", False)])
def test_truth_values_have_several_words(text: str, value: bool) -> None:
    assert build(Options, {"wait": text}, "x").wait is value


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"period": "often"}, "period of sync 'x' must be a whole number, got 'often'"),
        ({"period": "1.5"}, "period of sync 'x' must be a whole number, got '1.5'"),
        ({"ratio": "half"}, "ratio of sync 'x' must be a number, got 'half'"),
        ({"wait": "perhaps"}, "wait of sync 'x' must be yes or no, got 'perhaps'"),
        ({"order": "tre"}, "no order of sync 'x' named 'tre'; did you mean 'tree'? choose from: ring, tree"),
        ({"order": ""}, "no order of sync 'x' named ''; choose from: ring, tree"),
        ({"perid": "1"}, "did you mean 'period'?"),
        ({"hidden": "1"}, "there is no option of sync 'x' named 'hidden'"),
        ({"kind": "1"}, "there is no option of sync 'x' named 'kind'"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        build(Options, options, "sync 'x'")
    assert sentence in str(caught.value)


def test_an_owner_without_options_says_so() -> None:
    with pytest.raises(UserError, match="sync 'x' has no options, but 'a' was given"):
        convert({"a": "1"}, {}, "sync 'x'")


def test_a_choice_keeps_the_type_of_what_is_chosen() -> None:
    assert convert({"bits": "8"}, {"bits": Literal[8, 16]}, "x") == {"bits": 8}


@dataclass(kw_only=True)
class Base:
    """What options may be inherited from."""

    needed: str
    """Must be given."""
    kept: int = 1
    """A help that
    goes over two lines."""
    changed: int = 2
    """The base's word."""


@dataclass(kw_only=True, slots=True)
class Derived(Base):
    """Options of all kinds."""

    kind: ClassVar[str] = "not an option"
    """Not a help."""
    changed: int = 3
    """The word that counts."""
    silent: float = 0.5
    order: Literal["ring", "tree"] = "tree"
    """Which way round."""
    hidden: int = field(default=0, init=False)
    """Not an option either."""
    parts: list[int] = field(default_factory=lambda: [1])

    def method(self) -> str:
        """Not a field's help."""
        return self.needed


def test_options_are_described_by_the_docstrings_under_them() -> None:
    assert describe(Derived) == [
        Option("needed", "a text", None, "Must be given."),
        Option("kept", "a whole number", 1, "A help that goes over two lines."),
        Option("changed", "a whole number", 3, "The word that counts."),
        Option("silent", "a number", 0.5, ""),
        Option("order", "ring or tree", "tree", "Which way round."),
        Option("parts", "list", [1], ""),
    ]


def test_a_class_inside_a_function_is_described_too() -> None:
    @dataclass
    class Inner:
        wait: bool = True
        """Wait for all."""

    assert describe(Inner) == [Option("wait", "yes or no", True, "Wait for all.")]


def test_an_option_that_overrides_a_base_s_field_stands_where_it_is_written() -> None:
    @dataclass(kw_only=True)
    class Base:
        late: int = field(init=False, default=1)
        early: int = 2

    @dataclass(kw_only=True)
    class Derived(Base):
        late: int = 3

    assert [option.name for option in describe(Derived)] == ["early", "late"]
