"""The rules of DESIGN.md and STYLE.md that can be read off the source: who imports whom, sizes, docstrings, classes."""

import ast
import ctypes
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

import pytest
from pydantic import BaseModel

import manyhands
from manyhands import registry, sync
from manyhands.sync import Sync

ROOT = Path(manyhands.__file__).parent

LEVELS = (
    {"errors", "_lazy", "_version"},
    {"comm", "config"},
    {"replica", "spec"},
    {"record", "registry"},
    {"codec", "machine", "model", "report"},
    {"data", "sync"},
    {"tasks"},
    {"training"},
    {"launch"},
    {"request"},
    {"run"},
    {"crossval", "measurement", "verification"},
    {"calibration", "profiling", "scaling", "virtual"},
    {"simulation"},
    {"advice"},
    {"validation", "reproduction"},
    {"cli"},
    {"__init__", "__main__"},
)
"""Rooms and root modules, lowest first: each imports from lower levels alone; those of one level stand side by side."""

WITHOUT_TORCH = {"_lazy", "_version", "errors", "config", "spec", "registry", "record", "report"}
CODE_THAT_TRAVELS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
MAX_LINES = 400
MAX_LINES_OF = {"training/loop.py": 150}
MAX_LINES_OF_A_STRATEGY = 60
MAX_FILES = 15
MAX_FILES_OF = {
    "sync": 25,
    "cli": 30,
    "report": 30,
    "launch": 18,
    "model": 16,
    "replica": 18,
    "tasks": 18,
    "training": 18,
}
"""A folder with more is two; one file for each strategy and each command is as it should be."""

Node = TypeVar("Node", bound=ast.AST)


def _modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _unit(path: Path) -> str:
    """Return the module or package directly below manyhands that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _dotted(path: Path) -> str:
    parts = ["manyhands", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts).removesuffix(".__init__")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Yield every imported module, with names of `from manyhands import x` spelled out."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno} imports relatively"
            assert node.module
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node


def _own_imports(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the units of this package that a file imports."""
    for name, node in _imports(path):
        parts = name.split(".")
        if parts[0] == "manyhands":
            assert len(parts) > 1, f"{_name(path)}:{node.lineno} imports the whole package"
            yield parts[1], node.lineno


def _level(unit: str) -> int:
    return next((i for i, level in enumerate(LEVELS) if unit in level), -1)


def _at(path: Path, node: ast.AST) -> str:
    return f"{_name(path)}:{getattr(node, 'lineno', 0)}"


def _nodes(kind: type[Node]) -> Iterator[tuple[Path, Node]]:
    """Yield every node of a kind in the whole package, with the file that it is in."""
    for path in _modules():
        yield from ((path, node) for node in ast.walk(_tree(path)) if isinstance(node, kind))


def _every_import() -> Iterator[tuple[Path, str, ast.stmt]]:
    for path in _modules():
        yield from ((path, name, node) for name, node in _imports(path))


def test_there_is_something_to_read() -> None:
    assert len(_modules()) > 50


def test_every_room_has_its_level() -> None:
    units = {_unit(path) for path in _modules()}
    assert units == set().union(*LEVELS)
    assert sum(map(len, LEVELS)) == len(units), "a room stands on two levels"


def test_imports_point_downwards() -> None:
    upwards = [
        f"{_name(path)}:{line} imports '{unit}'"
        for path in _modules()
        for unit, line in _own_imports(path)
        if unit != _unit(path) and _level(unit) >= _level(_unit(path))
    ]
    assert not upwards


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Packages re-export from their `__init__`, so a package counts as the modules that its names come from."""
    known = {_dotted(path) for path in _modules()}
    graph: dict[str, set[str]] = {}
    for path in _modules():
        if path.name == "__init__.py":
            continue
        imported = set()
        for name, _ in _imports(path):
            module = name if name in known else name.rpartition(".")[0]
            if module in known and (ROOT.parent / module.replace(".", "/")).with_suffix(".py").is_file():
                imported.add(module)
        graph[_dotted(path)] = imported - {_dotted(path)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


def test_report_reads_records_alone() -> None:
    allowed = {"report", "record", "errors"}
    reports = [path for path in _modules() if _unit(path) == "report"]
    assert reports
    assert not [(_name(path), unit) for path in reports for unit, _ in _own_imports(path) if unit not in allowed]


def test_what_describes_a_run_needs_no_torch() -> None:
    heavy = {"torch", "numpy", "mpi4py", "psutil"}
    light = [path for path in _modules() if _unit(path) in WITHOUT_TORCH]
    assert not [_at(path, node) for path in light for name, node in _imports(path) if name.partition(".")[0] in heavy]
    assert not [(_name(path), unit) for path in light for unit, _ in _own_imports(path) if unit not in WITHOUT_TORCH]


@pytest.mark.parametrize(("library", "home"), [("mpi4py", "comm/mpi.py"), ("ray", "launch/ray_.py launch/on_ray/")])
def test_optional_libraries_are_imported_at_home_and_late(library: str, home: str) -> None:
    places = [(path, node) for path, name, node in _every_import() if name.partition(".")[0] == library]
    assert places
    assert not [_at(path, node) for path, node in places if not _name(path).startswith(tuple(home.split()))]
    assert not [_at(path, node) for path, node in places if node in _tree(path).body], "imported at the top"


def test_no_code_travels() -> None:
    pickles = {"torch.load", "torch.save"}
    assert not [
        _at(path, node)
        for path, name, node in _every_import()
        if name.partition(".")[0] in CODE_THAT_TRAVELS or name in pickles
    ]
    assert not [
        _at(path, node)
        for path, node in _nodes(ast.Attribute)
        if isinstance(node.value, ast.Name) and f"{node.value.id}.{node.attr}" in pickles
    ]
    assert not [
        _at(path, node.value)
        for path, node in _nodes(ast.keyword)
        if node.arg == "allow_pickle" and not (isinstance(node.value, ast.Constant) and node.value.value is False)
    ]
    assert not [
        _at(path, node)
        for path, node in _nodes(ast.Call)
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec")
    ]


def test_the_environment_is_read_by_launchers_and_commands_alone() -> None:
    names = ("environ", "getenv", "putenv", "environb")
    readers = [_at(path, node) for path, node in _nodes(ast.Attribute) if node.attr in names and not _may_read(path)]
    importers = [_at(path, node) for path, name, node in _every_import() if name in {f"os.{n}" for n in names}]
    assert not readers + importers


def _may_read(path: Path) -> bool:
    return _unit(path) in ("launch", "cli")


UNSAFE_WRITES = {"write_text", "write_bytes", "save_file", "rename"}


def test_whole_files_are_written_by_one_helper_alone() -> None:
    """It writes beside, flushes, renames and flushes the folder; files that grow are opened to append."""
    unsafe = []
    for path, node in _nodes(ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        modes = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if _name(path) != "record/files.py" and (
            name in UNSAFE_WRITES or (name == "open" and any("w" in mode for mode in modes))
        ):
            unsafe.append(f"{_at(path, node)} calls {name}, use write_atomically")
    assert not unsafe


def test_modules_are_short() -> None:
    strategies = {name.replace("-", "_") for name in registry.names(sync, Sync)}
    assert strategies
    long = []
    for path in _modules():
        lines, limit = len(path.read_text().splitlines()), MAX_LINES_OF.get(_name(path), MAX_LINES)
        if _unit(path) == "sync" and path.stem in strategies:
            limit = MAX_LINES_OF_A_STRATEGY
        if lines > limit:
            long.append(f"{_name(path)} has {lines} lines, at most {limit} are good")
    assert not long


def test_folders_are_small() -> None:
    sizes = Counter(path.parent for path in _modules() if path.parent != ROOT)
    wide = {folder.name: size for folder, size in sizes.items() if size > MAX_FILES_OF.get(folder.name, MAX_FILES)}
    assert not wide


def test_what_is_public_is_documented() -> None:
    """A method that overrides one says what it does where that one is documented."""
    missing = [_name(path) for path in _modules() if not ast.get_docstring(_tree(path))]
    inherited = {
        f"{cls.__name__}.{name}"
        for path in _modules()
        for cls in _classes(path)
        for name in vars(cls)
        if any(getattr(vars(base).get(name), "__doc__", None) for base in cls.__mro__[1:])
    }
    missing += [
        f"{_at(path, node)} {name}"
        for path in _modules()
        for name, node in _public(_tree(path))
        if not ast.get_docstring(node) and name not in inherited
    ]
    assert not missing


def _public(tree: ast.Module) -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """Yield public functions and classes, and the public methods of these, with their names."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
            if isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                        yield f"{node.name}.{method.name}", method


VAGUE_NAMES = {"found", "each", "own", "asked", "got"}
"""Names of variables and arguments that do not say what they hold."""
FEWEST_WORDS = 4


def test_variables_name_the_thing() -> None:
    stored = {node.target for _, cls in _nodes(ast.ClassDef) for node in cls.body if isinstance(node, ast.AnnAssign)}
    vague = [
        f"{_at(path, node)} {node.id}"
        for path, node in _nodes(ast.Name)
        if isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES and node not in stored
    ]
    vague += [f"{_at(path, node)} {node.arg}" for path, node in _nodes(ast.arg) if node.arg in VAGUE_NAMES]
    assert not vague


def test_docstrings_say_something() -> None:
    """One that only repeats the name is left out, where the rule above allows it; "so many" names its argument."""
    thin = []
    for path in _modules():
        for node in ast.walk(_tree(path)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node)
                if text is not None and (len(text.split()) < FEWEST_WORDS or "so many" in text):
                    thin.append(f"{_at(path, node)} {text!r}")
    assert not thin


def test_a_class_name_means_one_thing() -> None:
    homes: dict[str, list[str]] = {}
    for path, node in _nodes(ast.ClassDef):
        homes.setdefault(node.name, []).append(_at(path, node))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_classes_are_abstract_or_final() -> None:
    classes = [(path, cls) for path in _modules() for cls in _classes(path)]
    assert len(classes) > 100
    loose = [(path, cls) for path, cls in classes if not _may_be_loose(cls) and "__final__" not in vars(cls)]
    assert not [f"{_name(path)}: {cls.__name__} should be abstract or @final" for path, cls in loose]
    assert not [
        f"{_name(path)}: {cls.__name__} derives from a final class"
        for path, cls in classes
        if any("__final__" in vars(base) for base in cls.__bases__)
    ]


def _classes(path: Path) -> list[type]:
    """Return the classes that a module defines."""
    if path.name == "__main__.py":
        return []
    module = importlib.import_module(_dotted(path))
    return [c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__]


def _may_be_loose(cls: type) -> bool:
    """Abstract classes, and those that only hold values or name a kind."""
    holds_values = is_dataclass(cls) or issubclass(cls, BaseModel | ctypes.Structure) or hasattr(cls, "_fields")
    is_kind = issubclass(cls, Exception) or getattr(cls, "_is_protocol", False)
    return inspect.isabstract(cls) or holds_values or is_kind
