"""Import the names of a package on first use, so that neither `--help` nor reading a record waits for torch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing is slow to import, and the command line begins here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__` and `__dir__`; `homes` maps each name to the module below that defines it."""

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        from importlib import import_module

        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted(sys.modules[package].__all__)
