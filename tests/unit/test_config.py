"""A config is frozen and checked; a bad value is one sentence that names the option."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from manyhands.config import RunConfig, make_config, read_toml
from manyhands.errors import UserError

BAD = [
    ("warmup", -1),
    ("warmup", float("inf")),
    ("top", 0),
    ("workers", 0),
    ("workers", "many"),
    ("workers", 1.5),
    ("threads", -1),
    ("blas_threads", -1),
    ("batch_size", 0),
    ("batch_size", -3),
    ("batch_size", "half"),
    ("lr", -0.1),
    ("lr", "fast"),
    ("lr", float("nan")),
    ("lr", float("inf")),
    ("epochs", 0),
    ("steps", -1),
    ("seed", -1),
    ("seed", 2**63),
    ("device", "tpu"),
    ("dtype", "float16"),
    ("image_size", -28),
    ("replicate", 0),
    ("exact", "perhaps"),
    ("lanes", 0),
    ("micro_batch", -1),
    ("eval_every", 0),
    ("eval_steps", -1),
    ("patience", -1),
    ("ema", 1),
    ("weight_decay", -0.1),
    ("momentum", 1),
    ("clip", -1),
    ("data_workers", -1),
    ("checkpoint_every", -1),
    ("trace", -1),
    ("keep", 0),
    ("task", None),
]


@pytest.mark.parametrize(("option", "value"), BAD, ids=lambda v: str(v))
def test_a_bad_value_is_one_sentence_that_names_the_option(option: str, value: object) -> None:
    with pytest.raises(UserError) as caught:
        make_config({"task": "mlp", option: value})
    sentence = str(caught.value)
    assert sentence.startswith(f"{option.replace('_', '-')} must be ")
    assert "\n" not in sentence
    assert (repr(value) if isinstance(value, str) else str(value)) in sentence


def test_a_missing_task_is_named() -> None:
    with pytest.raises(UserError, match=r"^task "):
        make_config({})


def test_every_numeric_option_has_a_bad_value_here() -> None:
    no_option = {"chosen_blas_threads"}
    numeric = {n for n, f in RunConfig.model_fields.items() if f.annotation in (int, float)} - no_option
    assert numeric <= {option for option, _ in BAD}


def test_an_unknown_setting_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="there is no setting 'worker'; did you mean 'workers'"):
        make_config({"task": "mlp", "worker": 2})


@pytest.mark.parametrize("lanes", [3, 6, 12, 100])
def test_lanes_are_a_power_of_two_where_they_matter(lanes: int) -> None:
    with pytest.raises(UserError, match=f"lanes must be a power of two, got {lanes}"):
        make_config({"task": "mlp", "exact": True, "lanes": lanes})
    assert make_config({"task": "mlp", "lanes": lanes}).lanes == lanes


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 5).map(lambda k: 2**k))
def test_exact_needs_as_many_lanes_as_workers_and_says_how_many(workers: int, threads: int, lanes: int) -> None:
    values = {"task": "mlp", "exact": True, "workers": workers, "threads": threads, "lanes": lanes}
    if workers * threads <= lanes:
        assert make_config(values).size == workers * threads
        return
    with pytest.raises(UserError) as caught:
        make_config(values)
    advised = int(str(caught.value).rpartition("--lanes ")[2])
    assert make_config({**values, "lanes": advised}).lanes == advised


def test_it_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        make_config({"task": "mlp"}).workers = 3  # type: ignore[misc]


@given(
    st.text(max_size=20).filter(lambda t: t.isprintable()),
    st.floats(0, allow_nan=False, allow_infinity=False),
    st.integers(0, 2**63 - 1),
    st.one_of(st.just("full"), st.integers(1, 10**6)),
    st.booleans(),
)
def test_toml_gives_it_back(task: str, lr: float, seed: int, batch_size: int | str, fuse: bool) -> None:
    values = {"task": task, "data": f"npz:{task}", "lr": lr, "seed": seed, "batch_size": batch_size, "fuse": fuse}
    config = make_config(values)
    assert make_config(tomllib.loads(config.to_toml())) == config


def test_toml_gives_back_names_beyond_the_basic_plane(tmp_path: Path) -> None:
    config = make_config({"task": "/home/ünï/😀.py:task"})
    file = tmp_path / "run.toml"
    file.write_text(config.to_toml())
    assert make_config(read_toml(file)) == config


def test_every_field_has_its_help() -> None:
    assert all(field.description for field in RunConfig.model_fields.values())


def test_a_file_that_is_not_there_or_not_toml_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no config file"):
        read_toml(tmp_path / "none.toml")
    for content in (b"workers = ", b"\xff\xfe\x00", b"{}"):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(UserError, match="is not valid TOML"):
            read_toml(tmp_path / "bad.toml")
