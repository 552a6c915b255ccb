"""The rules of DESIGN.md and STYLE.md that can be read off the source: who imports whom, sizes, docstrings, classes."""

import ast
import ctypes
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from pydantic import BaseModel

import manyhands
from manyhands import registry, sync
from manyhands.sync import Sync

ROOT = Path(manyhands.__file__).parent

LAYERS = (
    {
        "errors",
        "lazy",
        "syntax",
        "spec",
        "names",
        "registry",
        "version",
        "config",
        "record",
        "facts",
        "others",
        "watch",
        "spans",
    },
    {"comm"},
    {"replica", "codec"},
    {"sync", "data", "tasks"},
    {"agreement", "checkpoint", "plan", "beat", "evaluate", "journal", "summary", "timeline", "serving", "training"},
    {"launch"},
    {"request", "promise", "roundoff", "run", "thread_trial", "verify", "crossval", "model", "lab", "report"},
    {"cli"},
    {"__init__", "__main__"},
)
"""Units, lowest first: a module or package imports from its own layer and those below."""

WITHOUT_TORCH = {
    "record",
    "config",
    "errors",
    "lazy",
    "syntax",
    "names",
    "spec",
    "registry",
    "watch",
    "spans",
    "report",
}
CODE_THAT_TRAVELS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
MAX_LINES = 400
MAX_LINES_OF = {"training.py": 150}
MAX_LINES_OF_A_STRATEGY = 60


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


def _layer(unit: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if unit in layer)


EVERY_MODULE = pytest.mark.parametrize("path", _modules(), ids=_name)


def test_there_is_something_to_read() -> None:
    assert len(_modules()) > 50


@EVERY_MODULE
def test_every_module_has_its_layer(path: Path) -> None:
    assert any(_unit(path) in layer for layer in LAYERS), f"put '{_unit(path)}' into a layer of this test"


@EVERY_MODULE
def test_imports_point_downwards(path: Path) -> None:
    known = set().union(*LAYERS)
    for unit, line in _own_imports(path):
        assert unit in known, f"{_name(path)}:{line} imports '{unit}', which is no module of the package"
        assert _layer(unit) <= _layer(_unit(path)), f"{_name(path)}:{line} imports '{unit}', which is above it"


def test_units_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in _modules():
        graph.setdefault(_unit(path), set()).update({unit for unit, _ in _own_imports(path)} - {_unit(path)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    """Packages re-export from their `__init__`, so a package counts as the modules that its names come from."""
    known = {_dotted(path) for path in _modules()}
    graph: dict[str, set[str]] = {}
    for path in _modules():
        if path.name == "__init__.py":
            continue
        found = set()
        for name, _ in _imports(path):
            module = name if name in known else name.rpartition(".")[0]
            if module in known and (ROOT.parent / module.replace(".", "/")).with_suffix(".py").is_file():
                found.add(module)
        graph[_dotted(path)] = found - {_dotted(path)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


@EVERY_MODULE
def test_report_reads_records_alone(path: Path) -> None:
    if _unit(path) == "report":
        assert {unit for unit, _ in _own_imports(path)} <= {"report", "record", "errors"}


@EVERY_MODULE
def test_what_describes_a_run_needs_no_torch(path: Path) -> None:
    if _unit(path) not in WITHOUT_TORCH:
        return
    for name, node in _imports(path):
        assert name.split(".")[0] not in ("torch", "numpy", "mpi4py", "psutil"), f"{_name(path)}:{node.lineno}"
    heavy = {unit for unit, _ in _own_imports(path)} - WITHOUT_TORCH
    assert not heavy, f"{_name(path)} imports {heavy}"


@EVERY_MODULE
def test_mpi_is_imported_in_its_own_module_and_late(path: Path) -> None:
    for name, node in _imports(path):
        if name.split(".")[0] == "mpi4py":
            assert _name(path) == "comm/mpi.py", f"{_name(path)}:{node.lineno}"
            assert node not in _tree(path).body, f"{_name(path)}:{node.lineno} imports mpi4py at the top"


@EVERY_MODULE
def test_ray_is_imported_by_its_launcher_and_late(path: Path) -> None:
    for name, node in _imports(path):
        if name.split(".")[0] == "ray":
            assert _name(path).startswith("launch/ray_"), f"{_name(path)}:{node.lineno}"
            assert node not in _tree(path).body, f"{_name(path)}:{node.lineno} imports ray at the top"


@EVERY_MODULE
def test_no_code_travels(path: Path) -> None:
    for name, node in _imports(path):
        assert name.split(".")[0] not in CODE_THAT_TRAVELS, f"{_name(path)}:{node.lineno} imports {name}"
        assert name not in ("torch.load", "torch.save"), f"{_name(path)}:{node.lineno} imports {name}"
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {("torch", "load"), ("torch", "save")}, (
                f"{_name(path)}:{node.lineno} uses torch.{node.attr}, which pickles"
            )
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant), f"{_name(path)}:{node.value.lineno}"
            assert node.value.value is False, f"{_name(path)}:{node.value.lineno}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec"), f"{_name(path)}:{node.lineno} calls {node.func.id}"


@EVERY_MODULE
def test_the_environment_is_read_by_launchers_and_commands_alone(path: Path) -> None:
    if _unit(path) in ("launch", "cli"):
        return
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv", "environb"):
            pytest.fail(f"{_name(path)}:{node.lineno} reads the environment")
    for name, node in _imports(path):
        assert name not in ("os.environ", "os.getenv"), f"{_name(path)}:{node.lineno}"


UNSAFE_WRITES = {"write_text", "write_bytes", "save_file", "rename"}


@EVERY_MODULE
def test_whole_files_are_written_by_one_helper_alone(path: Path) -> None:
    """It writes beside, flushes, renames and flushes the folder; files that grow are opened to append."""
    if _name(path) == "record/files.py":
        return
    for node in ast.walk(_tree(path)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        assert name not in UNSAFE_WRITES, f"{_name(path)}:{node.lineno} calls {name}, use write_atomically"
        modes = [a.value for a in node.args[1:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        assert name != "open" or not any("w" in mode for mode in modes), f"{_name(path)}:{node.lineno}"


@EVERY_MODULE
def test_modules_are_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    limit = MAX_LINES_OF.get(_name(path), MAX_LINES)
    if _unit(path) == "sync" and path.stem.replace("_", "-") in registry.names(sync, Sync):
        limit = MAX_LINES_OF_A_STRATEGY
    assert lines <= limit, f"{_name(path)} has {lines} lines, at most {limit} are good"


@EVERY_MODULE
def test_what_is_public_is_documented(path: Path) -> None:
    tree = _tree(path)
    assert ast.get_docstring(tree), f"{_name(path)} has no docstring"
    missing = [f"{_name(path)}:{node.lineno} {node.name}" for node in _public(tree) if not ast.get_docstring(node)]
    assert not missing, ", ".join(missing)


def _public(tree: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Yield public functions and classes, and the public methods of these."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_"))


@EVERY_MODULE
def test_classes_are_abstract_or_final(path: Path) -> None:
    loose = [cls.__name__ for cls in _classes(path) if not _may_be_loose(cls) and "__final__" not in vars(cls)]
    assert not loose, f"{_name(path)}: {', '.join(loose)} should be abstract or @final"


@EVERY_MODULE
def test_nobody_derives_from_a_final_class(path: Path) -> None:
    for cls in _classes(path):
        assert not any("__final__" in vars(base) for base in cls.__bases__), f"{_name(path)}: {cls.__name__}"


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
