"""Analyse the runs of a sweep: the rows of its table, the fitted laws, and where the time went."""

from typing import NamedTuple

from manyhands.record.sweep import Cell, Finding, Fit, Kind, Measure, Row
from manyhands.scaling.analysis.explain import explain
from manyhands.scaling.analysis.fits import fits
from manyhands.scaling.analysis.measured import Measured
from manyhands.scaling.analysis.rows import rows


class Analysis(NamedTuple):
    """The results of a sweep's runs taken together."""

    rows: list[Row]
    fits: list[Fit]
    findings: list[Finding]


def analyse(kind: Kind, cells: list[Cell], measures: list[Measure], cores: int) -> Analysis:
    """Return rows, fits and findings of a sweep on a machine of `cores` cores."""
    measured = Measured(kind, cells, measures, cores)
    table, laws = rows(measured), fits(measured)
    return Analysis(table, laws, explain(measured, table, laws))
