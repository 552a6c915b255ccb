"""Names of tasks, engines and strategies, read off their files: a mistyped one is refused before torch is imported."""

import os
import pkgutil
import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from manyhands.errors import check, unknown
from manyhands.spec import parse

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
        for _, name, _ in pkgutil.iter_modules([folder])
        if not name.startswith("_")
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
