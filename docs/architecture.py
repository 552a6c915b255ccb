"""Draw who imports whom into docs/architecture.md, and list every file in docs/files.md: python docs/architecture.py

Prints the longest chain of imports between modules. Every import counts, also one inside a function; a name that a
package hands on counts as an import of the module that defines it.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "manyhands"
DOCUMENT, FILES = ROOT / "docs" / "architecture.md", ROOT / "docs" / "files.md"
RULES = ROOT / "tests" / "test_architecture.py"
BEGIN, END = "<!-- made by docs/architecture.py -->\n", "<!-- end -->\n"
NOT_ROOMS = {"__init__", "__main__", "_lazy", "_version"}

Graph = Mapping[str, set[str]]


def module_name(path: Path) -> str:
    """Return the dotted name of a module below `manyhands`; a package is named by its `__init__`."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def read_trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every module."""
    return {module_name(path): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield every name that is imported from this package, as (module it is imported from, name)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "manyhands":
            source = node.module.removeprefix("manyhands").lstrip(".")
            yield from ((source, alias.name) for alias in node.names)


def imports_of_modules(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the modules that each module imports; packages are followed to the modules that their names come from."""
    handed_on = {
        module.removesuffix(".__init__"): {name: source for source, name in imported_names(tree)}
        for module, tree in trees.items()
        if module.endswith(".__init__")
    }

    def defines(source: str, name: str) -> str:
        inner = f"{source}.{name}".lstrip(".")
        if inner in trees:
            return inner
        if source in handed_on and name in handed_on[source]:
            return defines(handed_on[source][name], name)
        return source if source in trees else f"{source}.__init__"

    return {
        module: {defines(source, name) for source, name in imported_names(tree)} & trees.keys() - {module}
        for module, tree in trees.items()
        if module.rpartition(".")[2] != "__init__" or module.startswith("data.mnist")
    }


def longest_chain(graph: Graph) -> list[str]:
    """Return the longest chain of modules of which each imports the next."""
    chain: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        below = max((chain[m] for m in sorted(graph.get(module, ()))), key=len, default=[])
        chain[module] = [module, *below]
    return max((chain[module] for module in sorted(chain)), key=len)


def imports_of_rooms(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Return the rooms, which are packages and root modules, that each room imports."""
    graph = defaultdict[str, set[str]](set)
    for module, tree in trees.items():
        room = module.partition(".")[0]
        for source, name in imported_names(tree):
            graph[room].add((source or name).partition(".")[0])
    return {room: graph[room] - {room} - NOT_ROOMS for room in graph.keys() - NOT_ROOMS}


def without_shortcuts(graph: Graph) -> dict[str, set[str]]:
    """Leave out what follows from the other arrows: a room that one imports anyway through another."""
    reached: dict[str, set[str]] = {}
    for room in TopologicalSorter(graph).static_order():
        reached[room] = set().union(*({below} | reached[below] for below in graph.get(room, ())))
    return {
        room: {one for one in below if not any(one in reached[other] for other in below)}
        for room, below in graph.items()
    }


def levels() -> list[list[str]]:
    """Return the levels that the architecture test allows, lowest first."""
    for node in ast.parse(RULES.read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "LEVELS":
            allowed = [sorted(level - NOT_ROOMS) for level in ast.literal_eval(node.value)]
            return [level for level in allowed if level]
    raise LookupError(f"there are no LEVELS in {RULES}")


def sentence(module: str, trees: Mapping[str, ast.Module]) -> str:
    """Return the first sentence of a module's docstring, or of a package's."""
    tree = trees.get(f"{module}.__init__") or trees[module]
    paragraph = " ".join((ast.get_docstring(tree) or "").partition("\n\n")[0].split())
    first = re.split(r"(?<!et al)\. ", paragraph)[0]
    return f"{first.removesuffix('.')}.".replace("|", "\\|")


def drawing(graph: Graph) -> Iterable[str]:
    """Yield the lines of a Mermaid graph, the lowest level at the bottom."""
    yield from ("```mermaid", "flowchart TD")
    for level in reversed(levels()):
        for room in level:
            yield from (f"    {room} --> {below}" for below in sorted(graph.get(room, ())))
    yield "```"


def drawn() -> str:
    """Return the part of the document that is made from the source."""
    trees = read_trees()
    modules, rooms = imports_of_modules(trees), imports_of_rooms(trees)
    chain = longest_chain(modules)
    sizes = {room: sum(module.partition(".")[0] == room for module in trees) for level in levels() for room in level}
    rows = [
        f"| {number} | `{room}{'/' if sizes[room] > 1 else '.py'}` | {sentence(room, trees)} |"
        for number, level in enumerate(levels())
        for room in level
    ]
    return "\n".join(
        (
            "| level | room | what is in it |",
            "| ---: | --- | --- |",
            *rows,
            "",
            *drawing(without_shortcuts(rooms)),
            "",
            f"{len(modules)} modules; the longest chain of imports has {len(chain)}:",
            " → ".join(f"`{module}`" for module in chain),
            "",
        )
    )


def files() -> str:
    """Return the document that says of every file what it does, room after room."""
    trees = read_trees()
    page = ["<!-- Made by `python docs/architecture.py`; change docstrings, not this file. -->", "", "# Every file", ""]
    page += [f"`{room}.py`: {sentence(room, trees)}" + "\n" for level in levels() for room in level if room in trees]
    for room in (room for level in levels() for room in level if room not in trees):
        page += [f"## {room}/", sentence(room, trees), "", "| file | what is in it |", "| --- | --- |"]
        inside = [module for module in trees if module.startswith(f"{room}.") and not module.endswith("__init__")]
        page += [f"| `{module.replace('.', '/')}.py` | {sentence(module, trees)} |" for module in inside]
        page.append("")
    return "\n".join(page).rstrip() + "\n"


def renewed(text: str) -> str:
    """Return the document with the part that is made from the source made again."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{drawn()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    DOCUMENT.write_text(renewed(DOCUMENT.read_text()))
    FILES.write_text(files())
    modules = longest_chain(imports_of_modules(read_trees()))
    print(f"longest chain of imports: {len(modules)} modules", *modules, sep="\n  ")
