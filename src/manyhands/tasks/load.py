"""Find a task: a built-in name, or a user's own file such as `my_task.py:task`."""

import importlib
import importlib.util
import sys
from contextvars import ContextVar
from pathlib import Path

from manyhands.errors import TaskFileFailed, check, kind_of, unknown
from manyhands.registry import check_task
from manyhands.tasks.base import Task
from manyhands.tasks.seeding import DATA, seeded

IMPORT_SEED = 0
"""Seed of a task file's module-level draws: the run's seed is not known yet while the file is imported."""

_importing: ContextVar[bool] = ContextVar("importing", default=False)


def load(text: str) -> Task:
    """Return the task of this name, or the one at `FILE.py:VARIABLE`."""
    check_task(text)
    path, _, variable = text.rpartition(":") if ".py:" in text else (text, "", "")
    if path.endswith(".py"):
        return _from_file(Path(path), variable or "task")
    task: Task = importlib.import_module(f"{__package__}.{text.replace('-', '_')}").task
    return task


def check_not_importing() -> None:
    """Refuse to train while a task's file is being imported: each rank would train, and import, without end."""
    check(
        not _importing.get(),
        "this file trains while it is imported; put the call under: if __name__ == '__main__'",
    )


def name_of(task: Task) -> str:
    """Return the text from which another process can load this task, or just its name where none could."""
    return spec_of(task) or task.name or "task"


def spec_of(task: Task) -> str | None:
    """Return the name or `FILE.py:VARIABLE` of a task that is a variable of a module; None where no module has it."""
    check(
        isinstance(task, Task),
        f"a task is a name such as 'mlp', 'FILE.py:VARIABLE' or a manyhands.Task, got {kind_of(task)}",
    )
    for module in list(sys.modules.values()):
        for variable, value in list(vars(module).items()) if hasattr(module, "__dict__") else []:
            if value is task:
                if module.__name__.startswith(f"{__package__}."):
                    return module.__name__.rpartition(".")[2].replace("_", "-")
                if getattr(module, "__file__", None):
                    return f"{Path(str(module.__file__)).resolve()}:{variable}"
    return None


def _from_file(path: Path, variable: str) -> Task:
    name = f"manyhands_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # the file may import its neighbours
    token = _importing.set(True)
    try:
        with seeded(IMPORT_SEED, DATA):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise TaskFileFailed(f"the task file '{path}' does not import: {str(error) or kind_of(error)}") from error
    finally:
        _importing.reset(token)
        sys.path.remove(folder)
    if not hasattr(module, variable):
        variables = [name for name, value in vars(module).items() if isinstance(value, Task)]
        unknown(f"variable of {path} named", variable, variables or ["(the file has no Task)"])
    task = getattr(module, variable)
    check(isinstance(task, Task), f"'{variable}' in {path} is {kind_of(task)}, not a manyhands.Task")
    return task  # type: ignore[no-any-return]
