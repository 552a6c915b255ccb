"""From a paper and what was measured to its tables: published figures, ours beside them, and verdicts."""

from dataclasses import dataclass
from typing import NamedTuple, final

from manyhands.measurement import stats
from manyhands.record.papers import PaperFigure, ReproducedPaper, ReproducedRow, ReproducedTable, Verdict
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import Claim, Paper, PaperColumn, PaperRow, PaperTable, Published, Setting
from manyhands.reproduction.lost import where_time_went
from manyhands.reproduction.readings import Readings
from manyhands.reproduction.verdict import SPEEDS, crowded, judge, row_verdict, row_why

CLAIMS = "what the text says"


class Judged(NamedTuple):
    """A verdict, and what led to it."""

    verdict: Verdict
    why: str = ""


def compare(paper: Paper, readings: Readings, cores: int) -> ReproducedPaper:
    """Hold all tables of a paper against what was measured on a machine of so many cores."""
    tables = [
        ReproducedTable(
            name=table.name,
            title=table.title,
            headings=list(table.headings),
            rows=[_row(table, row, readings, cores) for row in table.rows],
            notes=list(table.notes),
        )
        for table in paper.tables
    ]
    if paper.claims:
        rows = [_claim(claim, readings, cores) for claim in paper.claims]
        tables.append(ReproducedTable(name=CLAIMS, title="", headings=["sentence"], rows=rows))
    return ReproducedPaper(number=paper.number, title=paper.title, tables=tables)


def _row(table: PaperTable, row: PaperRow, readings: Readings, cores: int) -> ReproducedRow:
    figures = [_Figure(column, row, readings, cores).result() for column in table.columns]
    verdict = row_verdict(figures)
    workers = max((setting.workers for setting in row.settings), default=1)
    return ReproducedRow(
        labels=list(row.labels),
        figures=figures,
        verdict=verdict,
        why=row_why(figures, verdict),
        workers=workers,
        oversubscribed=workers > cores,
        settings=list(dict.fromkeys(setting.key for setting in row.settings)),
    )


def _claim(claim: Claim, readings: Readings, cores: int) -> ReproducedRow:
    judged = _judge_claim(claim, readings, cores)
    workers = max(setting.workers for setting in claim.settings)
    return ReproducedRow(
        labels=[claim.text],
        figures=[],
        verdict=judged.verdict,
        why=judged.why,
        workers=workers,
        oversubscribed=workers > cores,
        settings=[setting.key for setting in claim.settings],
    )


def _judge_claim(claim: Claim, readings: Readings, cores: int) -> Judged:
    for setting in claim.settings:
        if missing := readings.why_none(setting):
            return Judged("failed" if readings.has_failed(setting) else "not judged", f"{setting.name}: {missing}")
        if cut := readings.cut(setting, speed=claim.speed):
            return Judged("not judged", f"with --quick: {cut}")
    holds, why = claim.holds([readings.medians(setting) for setting in claim.settings])
    crowd = next((s for s in claim.settings if s.workers > cores), None)
    if claim.speed and crowd:
        return Judged("oversubscribed", f"{crowded(crowd.workers, cores, in_turn='nodes' in crowd.options)} ({why})")
    return Judged("reproduced" if holds else claim.otherwise, why)


@final
@dataclass(frozen=True)
class _Figure:
    """One figure of a row."""

    column: PaperColumn
    row: PaperRow
    readings: Readings
    cores: int

    def result(self) -> PaperFigure:
        """Return it with its verdict."""
        published, ours = self._published, None
        judged = self._missing()
        if judged is None:
            ours = self._ours()
            judged = self._judge(ours)
        return PaperFigure(
            column=self.column.name,
            kind=self.column.kind,
            published=published.text if published else "",
            published_low=published.low if published else None,
            published_high=published.high if published else None,
            ours=ours,
            decimals=self.column.decimals,
            faster=self._faster(ours),
            verdict=judged.verdict,
            why=judged.why,
        )

    @property
    def _published(self) -> Published | None:
        return self.row.published.get(self.column.name)

    @property
    def _setting(self) -> Setting | None:
        return self.row.whole if self.column.whole else self.row.timed

    @property
    def _needed(self) -> list[Setting]:
        own = [self._setting] if self._setting else []
        return own + ([self.row.base] if self.column.kind in SPEEDS and self.row.base else [])

    @property
    def _of(self) -> str:
        return self.column.of.format(self.row.part)

    @property
    def _is_baseline(self) -> bool:
        base = self.row.base
        return self.column.kind in SPEEDS and (base is None or base.key == self._needed[0].key)

    @property
    def _crowded(self) -> bool:
        return self._needed[0].workers > self.cores

    @property
    def _cut(self) -> str:
        kind = self.column.kind
        return "" if kind == "count" else self.readings.cut(self._needed[0], speed=kind in SPEEDS)

    def _missing(self) -> Judged | None:
        """Say why there is nothing to compare, if so."""
        if self._setting is None:
            return Judged("not judged", self.row.left) if self.row.left else Judged("shown")
        for setting in self._needed:
            if why := self.readings.why_none(setting):
                return Judged("failed" if self.readings.has_failed(setting) else "not judged", why)
            if self._of not in self.readings.medians(setting):
                return Judged("not judged", f"no run told '{self._of}'")
        return None

    def _ours(self) -> Interval:
        setting, column = self._needed[0], self.column
        if column.kind not in SPEEDS:
            return self.readings.value(setting, self._of, column.scale)
        speed_up = self.readings.speed_up(setting, self.row.base or setting, self._of)
        return stats.through(stats.improvement_pct, speed_up) if column.kind == "improvement" else speed_up

    def _judge(self, ours: Interval) -> Judged:
        if self._is_baseline:
            return Judged("baseline")
        if self.column.kind in SPEEDS and self._crowded:
            setting = self._needed[0]
            return Judged("oversubscribed", crowded(setting.workers, self.cores, in_turn="nodes" in setting.options))
        if cut := self._cut:
            return Judged("not judged", f"with --quick: {cut}")
        if self._published is None:
            return Judged("shown")
        if self.column.unjudged:
            return Judged("not judged", self.column.unjudged)
        verdict = judge(self.column.kind, self._published, ours)
        return Judged(verdict, self._why(verdict, self._published, ours))

    def _why(self, verdict: Verdict, published: Published, ours: Interval) -> str:
        if verdict == "not judged":
            return f"repeats lie between {ours.low:.2f} and {ours.high:.2f}"
        if verdict not in ("not", "better"):
            return ""
        beside = f"{ours.value:,.{self.column.decimals}f} against {published.text}"
        reasons = [self._cause(published) if verdict == "not" else "", self.row.note if verdict == "not" else ""]
        return ", ".join([beside, *filter(None, reasons)])

    def _cause(self, published: Published) -> str:
        """Say why ours is slower: too few cores for what is published, else where the time went."""
        if self.column.kind not in SPEEDS or self.row.base is None:
            return ""
        own = self._needed[0]
        on_cores = "device" not in own.options
        if self.column.kind == "speed-up" and on_cores and published.low > own.workers:
            return f"which {own.workers} workers on {self.cores} cores cannot reach"
        medians = [self.readings.medians(setting) for setting in (own, self.row.base)]
        return where_time_went(medians[0], medians[1], own.workers)

    def _faster(self, ours: Interval | None) -> float | None:
        """Return how many times as long the paper's machine took, where both did the same."""
        if self.column.kind != "time" or not (ours and self._published) or self._crowded or self._cut:
            return None
        return self._published.low / ours.value if ours.value > 0 else None
