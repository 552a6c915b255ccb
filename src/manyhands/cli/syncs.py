"""`manyhands syncs`: every strategy there is, its options, and the engines that can run it."""

import inspect
import json as json_module
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from manyhands import launch, spec
from manyhands.cli.options import Json
from manyhands.cli.show import print_json, results, say
from manyhands.cli.tables import print_facts, print_table
from manyhands.errors import check
from manyhands.record.texts import NOTHING, count
from manyhands.registry import check_sync
from manyhands.report.tables.table import Column, tabulate

HEAD = "<!-- Made by `manyhands syncs --markdown > docs/syncs.md`; change docstrings, not this file. -->"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The facts about one strategy that its users need."""

    name: str
    does: str
    """The first sentence of its class's docstring."""
    equals_serial: bool
    servers: int
    """Ranks beyond the workers that it has by default."""
    needs: list[str]
    """Features of the comm."""
    engines: list[str]
    """Engines whose comm has all of them."""
    options: list[dict[str, Any]]
    example: str


def syncs(
    name: Annotated[str, typer.Argument(help="Show this strategy alone, with its options and an example.")] = "",
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/syncs.md.")] = False,
) -> None:
    """Show the strategies that --sync takes: what they do, their options, and the engines that can run them.

    Example: manyhands syncs local-sgd
    """
    check(not (json and markdown), "choose --json or --markdown, not both")
    if name:
        check_sync(name)
    entries = [describe(name)] if name else describe_all()
    if json:
        print_json(json_module.dumps(asdict(entries[0]) if name else {"syncs": [asdict(e) for e in entries]}))
    elif markdown:
        typer.echo(markdown_of(entries))
    elif name:
        _show(entries[0])
    else:
        print_table(results, tabulate(COLUMNS, entries))
        say("an example of one: manyhands syncs NAME", to=results)


def describe_all() -> list[Entry]:
    """Return the facts about every strategy."""
    from manyhands import registry, sync
    from manyhands.sync import Sync

    return [describe(name) for name in registry.names(sync, Sync)]


def describe(name: str) -> Entry:
    """Return the facts about the strategy of this name."""
    from manyhands import registry, sync  # imports torch
    from manyhands.sync import Sync

    cls = registry.find(sync, Sync, name, "sync")  # type: ignore[type-abstract]
    strategy, options = sync.make(name), cls.describe_options()
    engines = [engine for engine in launch.names() if strategy.requires <= launch.make(engine).features]
    return Entry(
        name=name,
        does=first_sentence(inspect.getdoc(cls) or ""),
        equals_serial=strategy.exact,
        servers=strategy.num_servers(),
        needs=sorted(strategy.requires),
        engines=engines,
        options=[o._asdict() for o in options],
        example=_example(name, options, engines),
    )


def first_sentence(text: str) -> str:
    """Return the first sentence of a docstring, on one line."""
    return re.split(r"(?<=[.!?])\s", " ".join(text.split()), maxsplit=1)[0]


def markdown_of(entries: list[Entry]) -> str:
    """Return the text of docs/syncs.md."""
    headings = ("sync", "what it does", "options", "equals serial", "servers", "needs", "engines")
    rows = [headings, ["---"] * len(headings), *(_markdown_row(e) for e in entries)]
    table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)
    return f"{HEAD}\n\n# Strategies\n\n{table}"


def _markdown_row(e: Entry) -> list[str]:
    options = [f"`{_assignment(o)}` {o['help']}".strip() for o in e.options]
    equal, servers = _typed(e.equals_serial), str(e.servers) if e.servers else ""
    return [f"`{e.name}`", e.does, "<br>".join(options), equal, servers, ", ".join(e.needs), ", ".join(e.engines)]


def _does_and_options(e: Entry) -> str:
    return "\n".join([e.does, *(f"{_assignment(o)}: {o['help']}" for o in e.options), ""])


def _needs(e: Entry) -> str:
    servers = [count(e.servers, "server rank")] if e.servers else []
    return ", ".join([*servers, *e.needs]) or NOTHING


def _engines(e: Entry) -> str:
    return "all" if e.engines == launch.names() else ", ".join(e.engines)


COLUMNS: tuple[Column[Entry], ...] = (
    Column("sync", lambda e: e.name, left=True),
    Column("what it does, and its options", _does_and_options, left=True, folds=True),
    Column("equals\nserial", lambda e: _typed(e.equals_serial), left=True),
    Column("needs", _needs, drop=2, left=True, folds=True),
    Column("engines", _engines, drop=1, left=True, folds=True),
)


def _show(e: Entry) -> None:
    say(f"{e.name}: {e.does}", to=results)
    lines = {
        "equals serial": _typed(e.equals_serial),
        "servers": f"{e.servers} more than the workers" if e.servers else "none",
        "needs": ", ".join(e.needs) or "nothing special",
        "engines": ", ".join(e.engines) or "none",
    }
    lines |= {_assignment(o): f"{o['help']} ({o['kind']})".strip() for o in e.options}
    print_facts(results, {f"  {name}": text for name, text in lines.items()})
    say(f"example: {e.example}", to=results)


def _example(name: str, options: list[spec.Option], engines: list[str]) -> str:
    several = [engine for engine in engines if engine != "serial"]
    engine = "mpi" if "mpi" in several else several[0] if several else "serial"
    workers = "" if engine == "serial" else " --workers 4"
    first = f":{_assignment(options[0]._asdict())}" if options else ""
    return f"manyhands train mlp --engine {engine}{workers} --sync {name}{first}"


def _assignment(option: dict[str, Any]) -> str:
    return f"{option['name']}={_typed(option['default'])}"


def _typed(value: Any) -> str:
    """Write a value as one would type it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "…" if value is None else str(value)
