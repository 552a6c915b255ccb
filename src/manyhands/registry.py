"""Find a class by the name of its module: `local-sgd` is the one class of `sync/local_sgd.py`.

A trailing `_` of a module's name, which tells it from a library of that name, is dropped: `torch` is in `torch_.py`.
"""

import importlib
import inspect
from collections.abc import Hashable
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, cast

from manyhands.errors import unknown
from manyhands.names import modules_of

T = TypeVar("T")


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
