"""Find tasks, engines, strategies and codecs by the names of their files.

`local-sgd` is the one class of `sync/local_sgd.py`. A trailing `_` of a module's name, which tells it from a library of
that name, is dropped: `torch` is in `torch_.py`. Names are read off the files, so that a mistyped one is refused before
torch is imported.
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

NOT_TASKS = ("base", "load", "seeding", "setup", "trial")
"""Modules of the package `tasks` that define none."""


def modules_of(package: str) -> dict[str, Path]:
    """Return the public modules of a package by the names that users know them by, without importing it."""
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
    """List the built-in tasks."""
    return sorted(modules_of("manyhands.tasks").keys() - set(NOT_TASKS))


def check_task(text: str) -> None:
    """Refuse a task that is neither built in nor in a file that exists."""
    path = text.rpartition(":")[0] if ".py:" in text else text
    if path.endswith(".py"):
        check(os.path.isfile(path), f"there is no task file '{path}'")
    elif text not in tasks():
        unknown("task", text, [*tasks(), "FILE.py:VARIABLE"])


def check_engine(name: str) -> None:
    """Refuse an engine that has no module."""
    _check_module("manyhands.launch", "Launcher", name, "engine")


def check_sync(text: str) -> None:
    """Refuse a spec string whose strategy has no module."""
    _check_module("manyhands.sync", "Sync", parse(text).name, "sync")


def _check_module(package: str, base: str, name: str, kind: str) -> None:
    """Refuse what cannot be there; a module that defines none of the kind is found out when it is imported."""
    known = modules_of(package)
    if name not in known:
        defines = re.compile(rf"^@final\n(?:@.*\n)*class \w+\([^)]*{base}\b", re.MULTILINE)
        unknown(kind, name, sorted(n for n, path in known.items() if defines.search(path.read_text())))


def find(package: ModuleType, base: type[T], name: str, kind: str) -> type[T]:
    """Return the class of the module that bears this name."""
    modules = _modules(package)
    found = _class_of(package, base, modules[name]) if name in modules else None
    if found is None:
        unknown(kind, name, names(package, base))
    return found


def names(package: ModuleType, base: type) -> list[str]:
    """List every name that `find` accepts."""
    return sorted(name for name, module in _modules(package).items() if _class_of(package, base, module))


def _modules(package: ModuleType) -> dict[str, str]:
    """Return the modules that may define a class, by its name."""
    return {name: path.stem for name, path in modules_of(package.__name__).items() if name != "base"}


def _class_of(package: ModuleType, base: type[T], module_name: str) -> type[T] | None:
    module, kind = importlib.import_module(f"{package.__name__}.{module_name}"), cast(Hashable, base)
    return cast(type[T] | None, _class_in(module, kind))


@cache
def _class_in(module: ModuleType, base: Any) -> Any:
    """Look through a module; once, since a simulation asks for its strategy again and again."""
    own = [
        c
        for _, c in inspect.getmembers(module, inspect.isclass)
        if c.__module__ == module.__name__ and issubclass(c, base) and not inspect.isabstract(c)
    ]
    return own[0] if own else None
