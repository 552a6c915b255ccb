"""Spec strings, which name a strategy or a data source with its options, such as `local-sgd:period=8`."""

import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from manyhands.errors import LARGEST, UserError, check, shown, unknown

T = TypeVar("T")


class Spec(NamedTuple):
    """A name and its options as text."""

    name: str
    options: dict[str, str]


class Option(NamedTuple):
    """The description of one option for users."""

    name: str
    kind: str
    """Its type, in words."""
    default: Any
    """Its default; None where it must be given."""
    help: str
    """The docstring under its field, on one line."""


def parse(text: str) -> Spec:
    """Split `name:key=value,key=value` into its parts."""
    name, _, rest = text.partition(":")
    check(bool(name.strip()), f"'{text}' has no name; write name or name:key=value,key=value")
    options: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        check(bool(equals and key.strip()), f"'{item}' in '{text}' is not key=value")
        check(key.strip() not in options, f"'{key.strip()}' is given twice in '{text}'")
        options[key.strip()] = value.strip()
    return Spec(name.strip(), options)


def convert(options: Mapping[str, str], types: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Convert option texts to values of the given types; unknown names and bad values are user errors."""
    values: dict[str, Any] = {}
    for key, text in options.items():
        if key not in types:
            if not types:
                raise UserError(f"{owner} has no options, but '{key}' was given")
            unknown(f"option of {owner} named", key, types)
        values[key] = _value(text, types[key], f"{key} of {owner}")
    return values


def build(cls: type[T], options: Mapping[str, str], owner: str) -> T:
    """Return a dataclass made from option texts; its fields are the options."""
    types = {f.name: hint for f, hint in _fields(cls)}
    return cls(**convert(options, types, owner))


def describe(cls: type) -> list[Option]:
    """Return the options of a dataclass, with the docstring under each field as its help."""
    docs = _field_docs(cls)
    return [Option(f.name, _words(hint), _default(f), docs.get(f.name, "")) for f, hint in _fields(cls)]


def with_field_docs(cls: type[T]) -> type[T]:
    """Add the docstrings under a class's fields to its own docstring, where `help()` shows them."""
    models = {name: field.description for name, field in getattr(cls, "model_fields", {}).items()}
    try:
        docs = models or _field_docs(cls)
    except OSError:  # the source was not installed
        docs = {}
    lines = [textwrap.fill(f"{name}: {text}", 100, subsequent_indent="    ") for name, text in docs.items() if text]
    cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Fields:", *lines])
    return cls


def _fields(cls: type) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields that are options, with their types; an overriding field is listed where it is written."""
    hints, names = get_type_hints(cls), (name for c in reversed(cls.__mro__) for name in inspect.get_annotations(c))
    place = {name: i for i, name in enumerate(names)}
    return [(f, hints[f.name]) for f in sorted(dataclasses.fields(cls), key=lambda f: place[f.name]) if f.init]


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default_factory is not dataclasses.MISSING:
        return f.default_factory()
    return None if f.default is dataclasses.MISSING else f.default


def _field_docs(cls: type) -> dict[str, str]:
    """Parse the docstrings under the fields of a class and its bases from the source; Python drops them."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(node, ast.ClassDef)
        for pair in itertools.pairwise(node.body):
            match pair:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
    return docs


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    words = {int: "a whole number", float: "a number", bool: "yes or no", str: "a text"}
    return words.get(kind) or str(getattr(kind, "__name__", kind))


def _value(text: str, kind: Any, what: str) -> Any:
    if kind is bool:
        words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        check(text.lower() in words, f"{what} must be yes or no, got '{text}'")
        return words[text.lower()]
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        if text not in choices:
            unknown(f"{what} named", text, choices)
        return choices[text]
    try:
        value = kind(text)
    except ValueError:
        raise UserError(f"{what} must be {_words(kind)}, got {shown(text)}") from None
    check(kind is not int or abs(value) < LARGEST, f"{what} must have at most 1,000 digits, got {shown(text)}")
    return value


def cut_list(text: str) -> list[str]:
    """Split a list of specs at its commas; a part such as `ratio=0.01` is an option of the spec before it."""
    parts: list[str] = []
    for part in text.split(","):
        if parts and "=" in part.partition(":")[0]:
            parts[-1] += f",{part.strip()}"
        else:
            parts.append(part.strip())
    return parts
