"""Spec strings: how people and tables name a strategy or a data source, such as `local-sgd:period=8`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar, get_type_hints

from manyhands.errors import UserError, check, unknown

T = TypeVar("T")


class Spec(NamedTuple):
    """A name and its options, still as text."""

    name: str
    options: dict[str, str]


def parse(text: str) -> Spec:
    """Cut `name:key=value,key=value` into its parts."""
    name, _, rest = text.partition(":")
    check(bool(name.strip()), f"'{text}' has no name; write name or name:key=value,key=value")
    options: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        check(bool(equals and key.strip()), f"'{item}' in '{text}' is not key=value")
        check(key.strip() not in options, f"'{key.strip()}' is given twice in '{text}'")
        options[key.strip()] = value.strip()
    return Spec(name.strip(), options)


def convert(options: Mapping[str, str], types: Mapping[str, type], owner: str) -> dict[str, Any]:
    """Turn option texts into values of the given types; unknown names and bad values are user errors."""
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in types:
            if not types:
                raise UserError(f"{owner} has no options, but '{key}' was given")
            unknown(f"option of {owner} named", key, types)
        values[key] = _value(text, types[key], f"{key} of {owner}")
    return values


def build(cls: type[T], options: Mapping[str, str], owner: str) -> T:
    """Make a dataclass from option texts; its fields are the options."""
    hints = get_type_hints(cls)
    types = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    return cls(**convert(options, types, owner))


def _value(text: str, kind: type, what: str) -> Any:
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        check(text.lower() in words, f"{what} must be yes or no, got '{text}'")
        return words[text.lower()]
    try:
        return kind(text)
    except ValueError:
        word = {int: "a whole number", float: "a number"}.get(kind, kind.__name__)
        raise UserError(f"{what} must be {word}, got '{text}'") from None
