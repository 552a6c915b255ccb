"""What the runs of a sweep say together: the rows of its table, the fitted laws, and where the time went."""

from typing import NamedTuple

from manyhands.record.sweep import Cell, Finding, Fit, Kind, Measure, Row
from manyhands.scaling.analysis.explain import explain
from manyhands.scaling.analysis.fits import fits
from manyhands.scaling.analysis.rows import rows


class Analysis(NamedTuple):
    """What a sweep's runs say."""

    rows: list[Row]
    fits: list[Fit]
    findings: list[Finding]


def analyse(kind: Kind, cells: list[Cell], measures: list[Measure], cores: int) -> Analysis:
    """Work out rows, fits and findings of a sweep on a machine of so many cores."""
    table = rows(kind, cells, measures, cores)
    laws = fits(kind, cells, measures, cores)
    return Analysis(table, laws, explain(kind, cells, measures, cores, table, laws))
