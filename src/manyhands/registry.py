"""Find a class by the name of its module: `local-sgd` is the one class of `sync/local_sgd.py`.

A trailing `_` of a module's name, which tells it from a library of that name, is dropped: `torch` is in `torch_.py`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Hashable
from functools import cache
from types import ModuleType
from typing import Any, TypeVar, cast

from manyhands.errors import unknown

T = TypeVar("T")


def find(package: ModuleType, base: type[T], name: str, kind: str) -> type[T]:
    """Return the class of the module that bears this name."""
    known = _known(package, base)
    if name not in known:
        unknown(kind, name, known)
    return known[name]


def names(package: ModuleType, base: type) -> list[str]:
    """List every name that `find` accepts."""
    return list(_known(package, base))


def _known(package: ModuleType, base: type[T]) -> dict[str, type[T]]:
    modules = [m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_")]
    classes = {m.removesuffix("_").replace("_", "-"): _class_of(package, base, m) for m in modules if m != "base"}
    return {name: found for name, found in sorted(classes.items()) if found}


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
