"""Find tasks, engines, strategies and codecs by the names of their files.

`local-sgd` is the one class of `sync/local_sgd.py`. A trailing `_`, which tells a module from a library of that name,
is dropped: `torch` is in `torch_.py`. Names are taken from the files, so that a misspelt one is refused before torch
is imported.
"""

import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Hashable, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from manyhands.errors import check, unknown
from manyhands.spec import parse

T = TypeVar("T")

NOT_TASKS = ("base", "init", "load", "metrics", "optimizers", "seeding", "setup", "trial")
"""Modules of the package `tasks` that define no task."""


def modules_of(package: str) -> dict[str, Path]:
    """Return the files of a package's public modules by the names that users type, without importing them."""
    imported = sys.modules.get(package)
    spec = None if imported else find_spec(package)
    folders: Iterable[str] = imported.__path__ if imported else (spec and spec.submodule_search_locations) or ()
    return {
        name.removesuffix("_").replace("_", "-"): Path(folder) / f"{name}.py"
        for folder in folders
        for _, name, is_package in pkgutil.iter_modules([folder])
        if not name.startswith("_") and not is_package
    }


def tasks() -> list[str]:
    """Return the names of the built-in tasks."""
    return sorted(modules_of("manyhands.tasks").keys() - set(NOT_TASKS))


def check_task(text: str) -> None:
    """Raise an error for a task that is neither built in nor in an existing file."""
    path = text.rpartition(":")[0] if ".py:" in text else text
    if path.endswith(".py"):
        check(os.path.isfile(path), f"there is no task file '{path}'")
    elif text not in tasks():
        unknown("task", text, [*tasks(), "FILE.py:VARIABLE"])


def check_engine(name: str) -> None:
    """Raise an error for an engine that has no module."""
    _check_module("manyhands.launch", "Launcher", name, "engine")


def check_sync(text: str) -> None:
    """Raise an error for a spec string whose strategy has no module."""
    _check_module("manyhands.sync", "Sync", parse(text).name, "sync")


def _check_module(package: str, base: str, name: str, kind: str) -> None:
    """Raise an error for a name without a module; whether a module defines the kind is checked at its import."""
    known = modules_of(package)
    if name not in known:
        defines = re.compile(rf"^@final\n(?:@.*\n)*class \w+\([^)]*{base}\b", re.MULTILINE)
        unknown(kind, name, sorted(n for n, path in known.items() if defines.search(path.read_text())))


def find(package: ModuleType, base: type[T], name: str, kind: str) -> type[T]:
    """Return the class in the module of this name; a name without one is a user error."""
    modules = _modules(package)
    cls = _class_of(package, base, modules[name]) if name in modules else None
    if cls is None:
        unknown(kind, name, names(package, base))
    return cls


def names(package: ModuleType, base: type) -> list[str]:
    """Return every name that `find` accepts."""
    return sorted(name for name, module in _modules(package).items() if _class_of(package, base, module))


def _modules(package: ModuleType) -> dict[str, str]:
    """Return the modules that may define a class, by the names that users type."""
    return {name: path.stem for name, path in modules_of(package.__name__).items() if name != "base"}


def _class_of(package: ModuleType, base: type[T], module_name: str) -> type[T] | None:
    module, kind = importlib.import_module(f"{package.__name__}.{module_name}"), cast(Hashable, base)
    return cast(type[T] | None, _class_in(module, kind))


@cache
def _class_in(module: ModuleType, base: Any) -> Any:
    """Return the class that a module defines; cached, since a simulation looks up its strategy very often."""
    classes = (c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__)
    return next((c for c in classes if issubclass(c, base) and not inspect.isabstract(c)), None)
