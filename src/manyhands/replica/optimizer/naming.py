"""The groups that a task makes of a network's parameters: each trained one is in one of them, by its name."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.errors import ManyhandsError, TaskFileFailed, UserError, check, kind_of
from manyhands.replica.optimizer.groups import NamedGroup

GroupMaker = Callable[[nn.Module], list[dict[str, Any]]]

WRITE = "write [{'params': [...], 'weight_decay': 0.1}, {'params': [...]}]"


def named_groups(make: GroupMaker | None, task: str, module: nn.Module) -> tuple[NamedGroup, ...]:
    """Return the groups that `make` makes of a network's parameters; none without it. `task` is for messages.

    Frozen parameters may be in a group or in none: they are left out.
    """
    if make is None:
        return ()
    says = f"param_groups of '{task}'"
    try:
        made = make(module)
    except ManyhandsError:
        raise
    except Exception as error:
        kind = TaskFileFailed if ".py" in task else UserError
        raise kind(f"{says} failed: {str(error).strip().split(chr(10))[0] or type(error).__name__}") from error
    check(
        isinstance(made, list | tuple) and bool(made) and all(isinstance(group, dict) for group in made),
        f"{says} returned {kind_of(made)}, not a list of groups; {WRITE}",
    )
    names = {id(p): name for name, p in module.named_parameters()}
    members = [list(_members(group, f"group {i} of {says}", names)) for i, group in enumerate(made)]
    _check_each_once(members, says, module)
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    return tuple(
        NamedGroup(
            tuple(name for name in of_group if name in trained),
            {key: value for key, value in group.items() if key not in ("params", "from_epoch")},
            _first_epoch(group, f"group {i} of {says}"),
        )
        for i, (group, of_group) in enumerate(zip(made, members, strict=True))
    )


def _members(group: dict[str, Any], where: str, names: dict[int, str]) -> Iterator[str]:
    check("params" in group, f"{where} has no 'params', only {', '.join(map(repr, group)) or 'nothing'}; {WRITE}")
    given = group["params"]
    params = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, Iterable) else None
    check(params is not None, f"the 'params' of {where} are {kind_of(given)}, not parameters of the model")
    check(bool(params), f"{where} is empty: its 'params' hold no parameter")
    for i, p in enumerate(params or ()):
        if isinstance(p, tuple) and len(p) == 2 and isinstance(p[1], Tensor):
            p = p[1]  # of named_parameters()
        what = f"a tensor of shape {tuple(p.shape)}" if isinstance(p, torch.Tensor) else kind_of(p)
        check(id(p) in names, f"{where} holds {what} as its parameter {i}, which is no parameter of the model")
        yield names[id(p)]


def _check_each_once(members: list[list[str]], says: str, module: nn.Module) -> None:
    places: dict[str, int] = {}
    for i, of_group in enumerate(members):
        for name in of_group:
            twice = f"twice in group {i}" if places.get(name) == i else f"in group {places.get(name)} and in group {i}"
            check(name not in places, f"{says} has the parameter '{name}' {twice}; it must be in one")
            places[name] = i
    for name, p in module.named_parameters():
        check(
            name in places or not p.requires_grad,
            f"{says} leaves out the parameter '{name}'; put it into a group, or freeze it with requires_grad_(False)",
        )


def _first_epoch(group: dict[str, Any], where: str) -> int:
    first = group.get("from_epoch", 0)
    whole = isinstance(first, int) and not isinstance(first, bool) and first >= 0
    check(whole, f"from_epoch of {where} must be a whole number from 0, got {first!r}")
    return int(first)
