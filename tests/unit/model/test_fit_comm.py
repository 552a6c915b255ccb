"""The fit gives back the α, β and γ that made-up calls were made with, noise or not."""

import numpy as np
import pytest
from made_up_calibration import CALLS, GAMMA, LINK, SIZES

from manyhands.model.collectives import best_s
from manyhands.model.fit_comm import CommModel, TimedCall, cost_s, fit_comm
from manyhands.model.links import Link

MODELS: tuple[CommModel, ...] = ("messages", "slices")


def points(
    model: CommModel, ranks: tuple[int, ...], link: Link = LINK, gamma: float = GAMMA, spread: float = 0.0
) -> list[TimedCall]:
    random = np.random.default_rng(7)
    wanted = [(call, p, n) for call in CALLS for p in ranks for n in SIZES] + [("barrier", p, 0) for p in ranks]
    return [
        TimedCall(*each, cost_s(model, *each, link, gamma) * float(np.exp(spread * random.standard_normal())))
        for each in wanted
    ]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", [(2,), (2, 4), (2, 3, 8)])
def test_what_the_formulas_made_is_found_again(model: CommModel, ranks: tuple[int, ...]) -> None:
    fit = fit_comm(model, points(model, ranks))
    assert fit.link.alpha_s == pytest.approx(LINK.alpha_s, rel=1e-6)
    assert fit.link.beta_s_per_byte == pytest.approx(LINK.beta_s_per_byte, rel=1e-6)
    assert fit.gamma_s_per_byte == pytest.approx(GAMMA, rel=1e-6)
    assert fit.error < 1e-6


@pytest.mark.parametrize("model", MODELS)
def test_noise_of_a_tenth_moves_them_by_little(model: CommModel) -> None:
    fit = fit_comm(model, points(model, (2, 4), spread=0.1))
    assert fit.link.alpha_s == pytest.approx(LINK.alpha_s, rel=0.1)
    assert fit.link.beta_s_per_byte == pytest.approx(LINK.beta_s_per_byte, rel=0.1)
    assert fit.gamma_s_per_byte == pytest.approx(GAMMA, rel=0.25)
    assert 0.02 < fit.error < 0.15, "the error is about the noise"


def test_ports_of_one_direction_at_a_time_are_told_from_others() -> None:
    half = Link(LINK.alpha_s, LINK.beta_s_per_byte, full_duplex=False)
    assert not fit_comm("messages", points("messages", (2, 4), half, spread=0.02)).link.full_duplex
    assert fit_comm("messages", points("messages", (2, 4), spread=0.02)).link.full_duplex


def test_nothing_becomes_negative() -> None:
    """Calls that get shorter with their size fit no formula; what comes out can still be used."""
    falling = [TimedCall(call, 2, n, 1e-3 / (1 + n)) for call in CALLS for n in SIZES]
    fit = fit_comm("messages", falling)
    assert min(fit.link.alpha_s, fit.link.beta_s_per_byte, fit.gamma_s_per_byte) >= 0
    assert fit.error > 0.1


def test_the_messages_are_those_of_the_clusters_formulas() -> None:
    for call in CALLS:
        for p in (2, 3, 8):
            assert cost_s("messages", call, p, 1e6, LINK, GAMMA) == pytest.approx(
                float(best_s(call, p, 1e6, LINK, GAMMA))
            )


def test_slices() -> None:
    """Four threads sum 4 MB: two barriers, three additions and three copies each, and three quarters of the bytes."""
    expected = (2 * 3 + 4 * 6 / 2) * LINK.alpha_s + 0.75 * 4e6 * (GAMMA + LINK.beta_s_per_byte)
    assert cost_s("slices", "all-reduce", 4, 4e6, LINK, GAMMA) == pytest.approx(expected)
    assert cost_s("slices", "all-reduce", 1, 4e6, LINK, GAMMA) == 0
