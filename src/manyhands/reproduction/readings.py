"""Look up measured values by setting; with `--quick`, by the setting that is run instead."""

from collections.abc import Iterable
from typing import final

import numpy as np

from manyhands.measurement import stats
from manyhands.record.papers import Taken, Verdict
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import Setting, Values

LEFT_OUT = "left out with --quick"
NOT_YET = "not measured yet"


@final
class Readings:
    """The runs of each setting."""

    def __init__(self, taken: Iterable[Taken], *, quick: bool) -> None:
        self._quick = quick
        self._runs: dict[str, list[Taken]] = {}
        for run in taken:
            self._runs.setdefault(run.setting, []).append(run)

    def missing(self, setting: Setting) -> tuple[Verdict, str] | None:
        """Return verdict and reason where no run of the setting succeeded, else None."""
        if self._good(setting):
            return None
        if self._quick and setting.shortened() is None:
            return "not judged", LEFT_OUT
        runs = self._all(setting)
        return ("failed", runs[-1].failed) if runs else ("not judged", NOT_YET)

    def cut(self, setting: Setting, *, speed: bool) -> str:
        """Say what `--quick` left out that a figure, one of speed or another, depends on; empty if nothing."""
        if not self._quick:
            return ""
        return setting.smaller or ("" if speed else setting.shorter)

    def medians(self, setting: Setting) -> Values:
        """Return the medians of the values that all successful runs have; empty where there are none."""
        runs = list(self._good(setting).values())
        names = set(runs[0]).intersection(*runs) if runs else set()
        return {name: float(np.median([run[name] for run in runs])) for name in sorted(names)}

    def value(self, setting: Setting, name: str, scale: float) -> Interval:
        """Return the median of a value, times `scale`, with its interval."""
        return stats.median([scale * run[name] for run in self._good(setting).values()])

    def speed_up(self, setting: Setting, base: Setting, name: str) -> Interval:
        """Return the ratio of a time of the base to that of the setting, repeat by repeat."""
        ours, alone = ({i: 1 / run[name] for i, run in self._good(s).items()} for s in (setting, base))
        return stats.ratio(ours, alone)

    def _good(self, setting: Setting) -> dict[int, Values]:
        return {run.repeat: run.values for run in self._all(setting) if not run.failed}

    def _all(self, setting: Setting) -> list[Taken]:
        actual = setting.shortened() if self._quick else setting
        return self._runs.get(actual.key, []) if actual else []
