"""Options of the commands: those of every run, made from `RunConfig`, and those that several commands share."""

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, final

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from manyhands.calibration.engines import check_calibrated
from manyhands.config import RunConfig, check_values, read_toml
from manyhands.errors import check, unknown
from manyhands.registry import check_engine, check_sync, check_task
from manyhands.spec import cut_list

TaskName = Annotated[
    str, typer.Argument(help="softmax, mlp, mlp-sigmoid, cnn, dnn, recommender, or your own FILE.py:VARIABLE.")
]
RunsFolder = Annotated[Path, typer.Option("--out", help="Folder of all runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with settings; options given here win.")]


def default_is(text: object) -> str:
    """Return an option's default as its help shows it: escaped, since brackets alone would be taken for markup."""
    return "" if text in ("", None) else escape(f" [default: {text}]")


@final
@dataclass(frozen=True)
class CommandOption:
    """An option that a command receives only if it was given."""

    kind: type
    help: str
    default: object = ""
    """What applies without it, as its help says."""
    names: tuple[str, ...] = ()
    """How it is written, if not as the name of its parameter."""
    panel: str | None = None
    """Heading of the part of the help that it is in, if not the first one."""

    def parameter(self, name: str) -> inspect.Parameter:
        """Return the parameter of a command for this option."""
        names, text = self.names or (f"--{name.replace('_', '-')}",), f"{self.help}{default_is(self.default)}"
        option = typer.Option(*names, help=text, show_default=False, rich_help_panel=self.panel)
        annotation = Annotated[self.kind | None, option]  # type: ignore[name-defined]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


PANELS: dict[str, tuple[str, ...]] = {
    "Workers": (
        *("engine", "workers", "threads", "blas_threads", "sync", "exact", "lanes", "device"),
        *("mpiexec", "ray_address"),
    ),
    "Training": (
        *("batch_size", "batch_per_worker", "epochs", "steps", "lr", "warmup", "lr_decay", "lr_scaling"),
        *("optimizer", "weight_decay", "momentum", "clip", "ema", "init", "seed"),
    ),
    "Computing": ("dtype", "precision", "batchnorm", "micro_batch", "fuse"),
    "Data": ("data", "image_size", "replicate", "data_workers"),
    "Evaluation": ("eval_every", "eval_steps", "top", "monitor", "patience", "keep_best"),
    "What a run keeps": ("checkpoint_every", "keep", "trace"),
}
"""Settings of a run by the part of the help that they are in, in the order in which it shows them."""
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
SET_BY_TASK = ("batch_size", "lr", "epochs", "replicate", "top")


def _setting(name: str, field: FieldInfo) -> CommandOption:
    text, panel = field.description or "", PANEL_OF[name]
    if field.annotation is bool:
        dashed = name.replace("_", "-")
        return CommandOption(bool, text, names=(f"--{dashed}/--no-{dashed}",), panel=panel)
    kind = int if field.annotation is int else float if field.annotation is float else str
    return CommandOption(kind, text, "" if name in SET_BY_TASK else field.default, panel=panel)


RESOLVED = {
    "batch_per_worker": CommandOption(
        int, "Batch size of each worker; the global batch grows with the workers.", panel=PANEL_OF["batch_per_worker"]
    ),
    "lr_scaling": CommandOption(
        str,
        "Scale the learning rate with the batch: none, linear or sqrt, with warm-up and decay.",
        panel=PANEL_OF["lr_scaling"],
    ),
}
"""Options that are resolved into settings of a run."""
SETTINGS = {
    name: RESOLVED.get(name) or _setting(name, RunConfig.model_fields[name])
    for names in PANELS.values()
    for name in names
}
BATCHES = {
    "batch_size": CommandOption(
        str, "Global batch size, shared out over the workers; 'full' for all samples.", "the task's"
    ),
    "batch_per_worker": replace(RESOLVED["batch_per_worker"], panel=None),
}
DEVICE = CommandOption(str, "Where workers compute: cpu, or cuda for a GPU each.", "cpu")
CALIBRATION = CommandOption(Path, "File with the machine's calibration.", "one for each machine in your data folder")

Command = Callable[..., None]


def command_options(
    request: Mapping[str, CommandOption], settings: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command: those in `request`, and those of the named `settings`.

    The command receives the values given in two dictionaries, its parameters `request` and `options` (the settings).
    """
    others = {name: option for name, option in SETTINGS.items() if name in settings and name not in request}

    def decorate(command: Command) -> Command:
        def wrapper(**values: Any) -> None:
            for group, members in (("request", request), ("options", others)):
                if members:
                    values[group] = {name: value for name in members if (value := values.pop(name)) is not None}
            command(**values)

        signature = inspect.signature(command)
        declared = [p for name, p in signature.parameters.items() if name not in ("request", "options")]
        first, last = ([option.parameter(name) for name, option in group.items()] for group in (request, others))
        parameters = [*first, *(p.replace(kind=p.KEYWORD_ONLY) for p in declared), *last]
        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
        return wrapper

    return decorate


def read_settings(
    task: str, config: Path | None, options: Mapping[str, Any], *, example: str, further: Collection[str] = ()
) -> tuple[str, dict[str, Any]]:
    """Return the task and the settings: those of the file `config` under the options given.

    `example` is a command that names a task, for an error; `further` are settings that no run has, but the command.
    """
    settings = read_toml(config) if config else {}
    task = task or str(settings.get("task", ""))
    check(bool(task), f"which task? for example: {example}")
    settings.pop("task", None)
    if any(name in options for name in ("engine", "workers", "threads", "device", "blas_threads", "batch_size")):
        settings.pop("chosen_blas_threads", None)  # it was chosen for the file's run; this one chooses again
    allowed = (*further, *RunConfig.model_fields, *RESOLVED)
    for name in settings:
        if name not in allowed:
            unknown("setting", name, allowed)
    settings |= options
    check_early(task, {name: value for name, value in settings.items() if name not in further})
    return task, settings


def check_early(task: str, settings: Mapping[str, Any]) -> None:
    """Refuse a task or a setting that is wrong by itself, before torch is imported to check them together."""
    check_task(task)
    check_values({"task": task, **{name: value for name, value in settings.items() if name not in RESOLVED}})
    check_engine(str(settings.get("engine", "serial")))
    check_sync(str(settings.get("sync", "allreduce")))


def check_names(syncs: str | None, engines: str | None = None) -> None:
    """Refuse strategies and engines, several of each with commas between them, that do not exist."""
    for text in filter(None, cut_list(syncs or "")):
        check_sync(text)
    for name in filter(None, cut_list(engines or "")):
        check_engine(name)


def check_request(task: str, request: Mapping[str, Any], settings: Mapping[str, Any], *, example: str) -> None:
    """Refuse a bad request of simulate, validate or advise, before torch is imported; `example` is for an error."""
    check(bool(task), f"which task? for example: {example}")
    check_early(task, settings)
    check_names(request.get("syncs"))
    check_device_name(request.get("device", "cpu"))
    check_calibrated(request.get("engines") or request.get("engine") or "")


def check_device_name(device: str) -> None:
    """Refuse a device that cannot be calibrated."""
    if device not in ("cpu", "cuda"):
        unknown("device", device, ("cpu", "cuda"))
