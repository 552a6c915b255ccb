"""Packages that only some sources need, and what to install where they are missing."""

from importlib.util import find_spec

from manyhands.errors import check


def check_installed(module: str, package: str, extra: str, what: str) -> None:
    """Refuse a source that needs a package which is not installed."""
    check(
        find_spec(module) is not None,
        f"{what} needs the package {package}, which is not installed; "
        f"install it with: python -m pip install 'manyhands[{extra}]'",
    )
