"""What has been measured, to look up by setting; with `--quick`, by what it runs instead."""

from collections.abc import Iterable
from typing import final

import numpy as np

from manyhands.measurement import stats
from manyhands.record.papers import Taken
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import Setting, Values

LEFT_OUT = "left out with --quick"
NOT_YET = "not measured yet"


@final
class Readings:
    """The runs of each setting."""

    def __init__(self, taken: Iterable[Taken], *, quick: bool) -> None:
        self._quick = quick
        self._of: dict[str, list[Taken]] = {}
        for one in taken:
            self._of.setdefault(one.setting, []).append(one)

    def good(self, setting: Setting) -> dict[int, Values]:
        """Return the values of the runs that went well, by repeat."""
        return {one.repeat: one.values for one in self._taken(setting) if not one.failed}

    def why_none(self, setting: Setting) -> str:
        """Say why there is nothing to show; empty where there is something."""
        if self.good(setting):
            return ""
        if self.is_left_out(setting):
            return LEFT_OUT
        failed = [one.failed for one in self._taken(setting)]
        return failed[-1] if failed else NOT_YET

    def is_left_out(self, setting: Setting) -> bool:
        """Whether `--quick` does not run it."""
        return self._quick and setting.shortened() is None

    def has_failed(self, setting: Setting) -> bool:
        """Whether it was tried, and no run of it went well."""
        return bool(self._taken(setting)) and not self.good(setting)

    def cut(self, setting: Setting, *, speed: bool) -> str:
        """Say what `--quick` left out that a figure depends on, one of speed or another; empty where nothing."""
        if not self._quick:
            return ""
        return setting.smaller or ("" if speed else setting.shorter)

    def medians(self, setting: Setting) -> Values:
        """Return the medians of all values; none where nothing was measured."""
        runs = list(self.good(setting).values())
        told = set(runs[0]).intersection(*runs) if runs else set()
        return {name: float(np.median([run[name] for run in runs])) for name in sorted(told)}

    def value(self, setting: Setting, name: str, scale: float = 1.0) -> Interval:
        """Return the median of a value and its interval."""
        return stats.median([scale * run[name] for run in self.good(setting).values()])

    def speed_up(self, setting: Setting, base: Setting, name: str) -> Interval:
        """Return how many times the base's time is that of the setting, repeat by repeat."""
        own, alone = ({i: 1 / run[name] for i, run in self.good(s).items()} for s in (setting, base))
        return stats.median(stats.paired(own, alone))

    def _taken(self, setting: Setting) -> list[Taken]:
        actual = setting.shortened() if self._quick else setting
        return self._of.get(actual.key, []) if actual else []
