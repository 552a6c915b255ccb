"""From a request to a config: the task's defaults, scaled batches and rates, and what is refused before a start."""

import math

import pytest

from manyhands.config import RunConfig
from manyhands.errors import UserError
from manyhands.run import preflight, resolve


def test_what_is_not_given_is_the_tasks() -> None:
    config = resolve("mlp-sigmoid", {"workers": None, "seed": 3})
    assert (config.batch_size, config.lr, config.epochs, config.replicate) == ("full", 0.1, 10, 12)
    assert (config.data, config.engine, config.workers, config.seed) == ("mnist:train=5000", "serial", 1, 3)


def test_other_data_is_not_replicated_unasked() -> None:
    assert resolve("mlp-sigmoid", {"data": "mnist"}).replicate == 1
    assert resolve("mlp-sigmoid", {"data": "mnist", "replicate": 2}).replicate == 2


def test_several_workers_mean_mpi_unless_an_engine_is_given() -> None:
    assert resolve("mlp", {"workers": 2}).engine == "mpi"
    assert resolve("mlp", {"workers": 2, "engine": "threads"}).engine == "threads"


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (3, 1), (2, 4)])
def test_a_batch_per_worker_grows_with_the_workers(workers: int, threads: int) -> None:
    settings = {"batch_per_worker": 16, "engine": "hybrid", "workers": workers, "threads": threads}
    assert resolve("mlp", settings).batch_size == 16 * workers * threads


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_rate_scales_with_the_batch(scaling: str, factor: float) -> None:
    assert resolve("mlp", {"batch_size": 256, "lr_scaling": scaling}).lr == pytest.approx(0.01 * factor)
    assert resolve("mlp", {"batch_size": 64, "lr_scaling": scaling}).lr == pytest.approx(0.01)
    given = resolve("mlp", {"batch_size": 16, "lr": 0.5, "lr_scaling": scaling}).lr
    assert math.isclose(given, 0.5 * {"none": 1, "linear": 1 / 4, "sqrt": 1 / 2}[scaling])


def test_a_rate_that_grew_with_the_batch_is_eased_in_and_out() -> None:
    large = {"batch_size": 512, "lr_scaling": "linear"}
    assert _easing(resolve("mlp", large)) == (1.0, "linear")
    assert _easing(resolve("mlp", {**large, "epochs": 2})) == (pytest.approx(0.4), "linear")
    assert _easing(resolve("mlp", {**large, "warmup": 0.0, "lr_decay": "none"})) == (0.0, "none")
    assert _easing(resolve("mlp", {**large, "lr_decay": "cosine"})) == (1.0, "cosine")
    assert _easing(resolve("mlp", {"batch_size": 512})) == (0.0, "none")
    assert _easing(resolve("mlp", {"batch_size": 64, "lr_scaling": "linear"})) == (0.0, "none")


def _easing(config: RunConfig) -> tuple[float, str]:
    return config.warmup, config.lr_decay


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 3, "batch_per_worker": 4}, "not both"),
        ({"batch_per_worker": 0}, "batch-per-worker must be at least 1"),
        ({"lr_scaling": "linaer"}, "there is no lr-scaling 'linaer'; did you mean 'linear'"),
        ({"lr_scaling": "linear", "batch_size": "full"}, "needs a batch size that is a number"),
        ({"wrokers": 2}, "did you mean 'workers'"),
        ({"workers": 0}, "workers must be"),
    ],
)
def test_a_bad_request_is_explained(options: dict[str, object], says: str) -> None:
    with pytest.raises(UserError, match=says):
        resolve("mlp", options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"engine": "mpl"}, "there is no engine 'mpl'; did you mean 'mpi'"),
        ({"engine": "serial", "workers": 2}, "engine serial has one worker, got 2"),
        ({"engine": "threads", "workers": 2, "threads": 2}, "--threads belongs to engine hybrid"),
        ({"engine": "mpi", "workers": 2, "threads": 2}, "--threads belongs to engine hybrid"),
        ({"sync": "alreduce"}, "there is no sync 'alreduce'; did you mean 'allreduce'"),
        ({"sync": "allreduce:period=2"}, "has no options, but 'period' was given"),
        ({"engine": "threads", "workers": 98}, "98 workers cannot share 97 training samples"),
        ({"data": "synthetic:samples=9,features=5,shape=1x2x2"}, "either features or shape"),
        ({"data": "sintetic"}, "there is no data source 'sintetic'; did you mean 'synthetic'"),
        ({"image_size": 28}, "needs square images"),
    ],
)
def test_everything_is_checked_before_a_worker_starts(tiny, options: dict[str, object], says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=says):
        preflight(resolve(tiny("mlp"), options))


def test_a_model_that_does_not_fit_the_data_is_explained(tiny) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=r"does not take samples of shape \(12,\)"):
        preflight(resolve(tiny("conv"), {"data": "synthetic:samples=97,features=12,test=9"}))


def test_the_same_seed_gives_the_same_run_and_another_another(train) -> None:  # type: ignore[no-untyped-def]
    first, again, other = (train(steps=3, exact=True, seed=s) for s in (1, 1, 2))
    assert first.weights_sha256 == again.weights_sha256 != other.weights_sha256
    assert first.id != again.id


def test_a_loss_that_becomes_nan_ends_the_run_with_a_hint(train) -> None:  # type: ignore[no-untyped-def]
    from manyhands.errors import Diverged

    for engine, workers in (("serial", 1), ("threads", 3)):
        with pytest.raises(Diverged, match=r"at step \d+; try a smaller --lr"):
            train(lr=1e30, engine=engine, workers=workers, epochs=3)
