"""Compare a paper's tables with measurements: published figures, ours beside them, and verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from manyhands.measurement import stats
from manyhands.record.papers import PaperFigure, Prediction, ReproducedPaper, ReproducedRow, ReproducedTable, Verdict
from manyhands.record.sweep import Interval
from manyhands.reproduction.base import Claim, Paper, PaperColumn, PaperRow, PaperTable, Published, Setting, Values
from manyhands.reproduction.predicted import predicted_figure, with_schedule
from manyhands.reproduction.readings import Readings
from manyhands.reproduction.verdict import SPEEDS, crowded, judge, row_verdict, row_why

CLAIMS = "what the text says"
WORDS = {
    "comm_ms": "to communication",
    "wait_ms": "to waiting for the slowest worker",
    "serial_ms": "to the optimiser's step and the loop around it, which every worker repeats",
    "compute_ms": "to computing slower than one worker alone, beside the others",
}
IN_SMALLER_BATCHES = " and in smaller batches"

Judged = tuple[Verdict, str]
"""A verdict and its reason."""


Predictions = Mapping[str, Prediction]
"""By the key of the setting."""


def compare(paper: Paper, readings: Readings, cores: int, predictions: Sequence[Prediction] = ()) -> ReproducedPaper:
    """Compare all tables of a paper with measurements on a machine of `cores` cores, and with predictions for more."""
    by_key = {prediction.setting: prediction for prediction in predictions}
    tables = [_table(table, readings, cores, by_key) for table in paper.tables]
    if paper.claims:
        rows = [_claim(claim, readings, cores) for claim in paper.claims]
        tables.append(ReproducedTable(name=CLAIMS, title="", headings=["sentence"], rows=rows))
    return ReproducedPaper(number=paper.number, title=paper.title, tables=tables, left_out=paper.left_out)


def _table(table: PaperTable, readings: Readings, cores: int, predictions: Predictions) -> ReproducedTable:
    rows = [_row(table, row, readings, cores, predictions) for row in table.rows]
    ways = dict.fromkeys(figure.predicted.how for row in rows for figure in row.figures if figure.predicted)
    return ReproducedTable(
        name=table.name,
        title=table.title,
        headings=list(table.headings),
        rows=rows,
        notes=[*table.notes, *(f"Predicted: {how}." for how in ways), *_not_predicted(table, predictions)],
    )


def _not_predicted(table: PaperTable, predictions: Predictions) -> list[str]:
    """Say for which rows there is no prediction, and why."""
    rows: dict[str, list[str]] = {}
    for row in table.rows:
        prediction = predictions.get(row.timed.key) if row.timed else None
        if prediction is not None and prediction.failed:
            rows.setdefault(prediction.failed, []).append(" ".join(row.labels))
    return [f"Not predicted: {', '.join(labels)}: {why}." for why, labels in rows.items()]


def _row(table: PaperTable, row: PaperRow, readings: Readings, cores: int, predictions: Predictions) -> ReproducedRow:
    figures = [
        _figure(column, row, readings, cores).model_copy(
            update={"predicted": predicted_figure(column, row, readings, predictions, cores)}
        )
        for column in table.columns
    ]
    verdict = row_verdict(figures)
    return _reproduced(row.labels, figures, (verdict, row_why(figures, verdict)), list(row.settings), cores)


def _claim(claim: Claim, readings: Readings, cores: int) -> ReproducedRow:
    return _reproduced((claim.text,), [], _judge_claim(claim, readings, cores), claim.settings, cores)


def _reproduced(
    labels: Sequence[str], figures: list[PaperFigure], judged: Judged, settings: Sequence[Setting], cores: int
) -> ReproducedRow:
    workers = max((setting.workers for setting in settings), default=1)
    return ReproducedRow(
        labels=list(labels),
        figures=figures,
        verdict=judged[0],
        why=judged[1],
        workers=workers,
        oversubscribed=workers > cores,
        settings=list(dict.fromkeys(setting.key for setting in settings)),
    )


def _judge_claim(claim: Claim, readings: Readings, cores: int) -> Judged:
    for setting in claim.settings:
        if missing := readings.missing(setting):
            return missing[0], f"{setting.name}: {missing[1]}"
        if cut := readings.cut(setting, speed=claim.speed):
            return "not judged", f"with --quick: {cut}"
    holds, why = claim.holds([readings.medians(setting) for setting in claim.settings])
    too_many = next((setting for setting in claim.settings if setting.workers > cores), None)
    if claim.speed and too_many:
        judged = f"{crowded(too_many, cores)} ({why})"
        if any(setting.command == "crossval" for setting in claim.settings):
            agrees, by = claim.holds([with_schedule(setting, readings, cores) for setting in claim.settings])
            judged += f"; predicted: {'agrees' if agrees else 'disagrees'}, {by} if all nodes trained at once"
        return "oversubscribed", judged
    return "reproduced" if holds else claim.otherwise, why


def _figure(column: PaperColumn, row: PaperRow, readings: Readings, cores: int) -> PaperFigure:
    published = row.published.get(column.name)
    setting = row.whole if column.whole else row.timed
    ours, faster = None, None
    judged: Judged
    if setting is None:
        judged = ("not judged", row.left) if row.left else ("shown", "")
    elif missing := _missing(column, row, setting, readings):
        judged = missing
    else:
        cut = "" if column.kind == "count" else readings.cut(setting, speed=column.kind in SPEEDS)
        measured = _OurFigure(column, row, setting, cut, readings, cores)
        ours = measured.value()
        judged = measured.judge(published, ours)
        if published and column.kind == "time" and ours.value > 0 and setting.workers <= cores and not cut:
            faster = published.low / ours.value
    return PaperFigure(
        column=column.name,
        kind=column.kind,
        published=published.text if published else "",
        published_low=published.low if published else None,
        published_high=published.high if published else None,
        ours=ours,
        decimals=column.decimals,
        faster=faster,
        verdict=judged[0],
        why=judged[1],
    )


def _missing(column: PaperColumn, row: PaperRow, setting: Setting, readings: Readings) -> Judged | None:
    """Say why there is nothing to compare, if so."""
    name = column.of.format(row.part)
    for needed in (setting, row.base if column.kind in SPEEDS and row.base else setting):
        if missing := readings.missing(needed):
            return missing
        if name not in readings.medians(needed):
            return "not judged", f"no run has a value '{name}'"
    return None


@final
@dataclass(frozen=True)
class _OurFigure:
    """A figure of ours, to be compared with the published one."""

    column: PaperColumn
    row: PaperRow
    setting: Setting
    cut: str
    """What `--quick` left out that the figure depends on."""
    readings: Readings
    cores: int

    def value(self) -> Interval:
        """Return the median over the repeats, with its interval."""
        name, kind = self.column.of.format(self.row.part), self.column.kind
        if kind not in SPEEDS:
            return self.readings.value(self.setting, name, self.column.scale)
        speed_up = self.readings.speed_up(self.setting, self.row.base or self.setting, name)
        return stats.through(stats.improvement_pct, speed_up) if kind == "improvement" else speed_up

    def judge(self, published: Published | None, ours: Interval) -> Judged:
        """Compare our value with the published one; return verdict and reason."""
        column, row = self.column, self.row
        if column.kind in SPEEDS and (row.base is None or row.base.key == self.setting.key):
            return "baseline", ""
        if column.kind in SPEEDS and self.setting.workers > self.cores:
            return "oversubscribed", crowded(self.setting, self.cores)
        if self.cut:
            return "not judged", f"with --quick: {self.cut}"
        if published is None:
            return "shown", ""
        if column.unjudged:
            return "not judged", column.unjudged
        verdict = judge(column.kind, published, ours)
        if verdict == "not judged":
            return verdict, f"repeats lie between {ours.low:.2f} and {ours.high:.2f}"
        if verdict not in ("not", "better"):
            return verdict, ""
        reasons = [f"{ours.value:,.{column.decimals}f} against {published.text}"]
        if verdict == "not":
            reasons += [self._why_slower(published), row.note]
        return verdict, ", ".join(filter(None, reasons))

    def _why_slower(self, published: Published) -> str:
        """Say why ours is slower: too few workers for what is published, else where the time went."""
        kind, base, workers = self.column.kind, self.row.base, self.setting.workers
        if kind not in SPEEDS or base is None:
            return ""
        if kind == "speed-up" and "device" not in self.setting.options and published.low > workers:
            return f"which {workers} workers on {self.cores} cores cannot reach"
        return where_time_went(self.readings.medians(self.setting), self.readings.medians(base), workers)


def where_time_went(values: Values, alone: Values, workers: int) -> str:
    """Name the largest part of a step beyond an even share of one worker's; empty if unknown or nothing was lost."""
    if any(name not in run for name in (*WORDS, "step_ms", "batch_size") for run in (values, alone)):
        return ""
    share = values["batch_size"] / workers / alone["batch_size"]
    lost = {name: 100 * (values[name] - alone[name] * share) / values["step_ms"] for name in WORDS}
    most = max(lost, key=lambda name: lost[name])
    smaller = IN_SMALLER_BATCHES if most == "compute_ms" and share < 1 else ""
    return f"{lost[most]:.0f} % of a step went {WORDS[most]}{smaller}" if lost[most] > 0 else ""
