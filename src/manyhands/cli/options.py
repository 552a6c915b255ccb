"""Command-line options made from `RunConfig`, so that names and help stand in one place."""

import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from manyhands.config import RunConfig, check_values, read_toml
from manyhands.errors import unknown
from manyhands.registry import check_engine, check_sync, check_task
from manyhands.spec import cut_list

EXTRA: dict[str, tuple[type, str]] = {
    "batch_per_worker": (int, "Batch size of each worker; the global batch grows with the workers."),
    "lr_scaling": (str, "Scale the learning rate with the batch: none, linear or sqrt, with warm-up and decay."),
}
"""Requests that are resolved into fields of the config."""

TASK_ARGUMENT = Annotated[
    str, typer.Argument(help="softmax, mlp, mlp-sigmoid, cnn, dnn, recommender, or your own FILE.py:VARIABLE.")
]
OUT_OPTION = Annotated[Path, typer.Option("--out", help="Folder of all runs.")]
JSON_OPTION = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
CONFIG_OPTION = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings; options given here win.")
]


def config_options(command: Callable[..., None], *, without: Collection[str] = ()) -> Callable[..., None]:
    """Add an option for every setting of a run; the command gets those given as `options`.

    Settings in `without`, which the command sets itself, are left out, and those it declares in words of its own.
    """
    own = inspect.signature(command)
    fixed = [p for name, p in own.parameters.items() if name != "options"]
    left_out = {"task", "chosen_blas_threads", *without, *(p.name for p in fixed)}
    settings = [_parameter(name) for name in RunConfig.model_fields if name not in left_out]
    extras = [_option(name, kind, text) for name, (kind, text) in EXTRA.items() if name not in left_out]
    names = [p.name for p in (*settings, *extras)]

    def wrapper(**values: Any) -> None:
        options = {name: values.pop(name) for name in names}
        command(**values, options={k: v for k, v in options.items() if v is not None})

    wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
    everything = sorted((*fixed, *settings, *extras), key=lambda p: p.default is not inspect.Parameter.empty)
    wrapper.__signature__ = own.replace(parameters=everything)  # type: ignore[attr-defined]
    return wrapper


def with_config_file(config: Path | None, options: dict[str, Any], own: Iterable[str] = ()) -> dict[str, Any]:
    """Put a file's settings, and a command's `own`, under the options given; its task is left to the caller."""
    settings = read_toml(config) if config else {}
    settings.pop("task", None)
    if any(name in options for name in ("engine", "workers", "threads", "device", "blas_threads", "batch_size")):
        settings.pop("chosen_blas_threads", None)  # of a run's own file: chosen again, for what is asked now
    allowed = (*own, *RunConfig.model_fields, *EXTRA)
    for name in settings:
        if name not in allowed:
            unknown("setting", name, allowed)
    return {**settings, **options}


def check_early(task: str, settings: Mapping[str, Any]) -> None:
    """Refuse what is wrong by itself, in a moment: what the settings mean together is known once torch is there."""
    check_task(task)
    check_values({"task": task, **{name: value for name, value in settings.items() if name not in EXTRA}})
    check_engine(str(settings.get("engine", "serial")))
    check_sync(str(settings.get("sync", "allreduce")))


def check_names(syncs: str | None, engines: str | None = None) -> None:
    """Refuse strategies and engines, several of each with commas between them, that do not exist."""
    for text in filter(None, cut_list(syncs or "")):
        check_sync(text)
    for name in filter(None, cut_list(engines or "")):
        check_engine(name)


def _parameter(name: str) -> inspect.Parameter:
    field = RunConfig.model_fields[name]
    kind = field.annotation
    if kind is bool:
        return _option(name, bool, field.description or "", flag=True)
    simple = kind if kind in (int, float, str) else str
    default = "" if name in ("batch_size", "lr", "epochs", "replicate", "top") else _shown(field.default)
    return _option(name, typing.cast(type, simple), f"{field.description}{default}")


def _shown(default: Any) -> str:
    return default_is(default) if default not in ("", None) else ""


def default_is(text: Any) -> str:
    """Say an option's default in its help, where brackets alone would be taken for markup."""
    return escape(f" [default: {text}]")


def _option(name: str, kind: type, text: str, *, flag: bool = False) -> inspect.Parameter:
    dashed = name.replace("_", "-")
    words = f"--{dashed}/--no-{dashed}" if flag else f"--{dashed}"
    annotation = Annotated[kind | None, typer.Option(words, help=text, show_default=False)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
