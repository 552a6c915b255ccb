"""The entry point: a bad request gets one sentence and exit status 2; a failed run says who failed, and 1."""

import difflib
import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from typing import Any

import typer

from manyhands.config import plain_words
from manyhands.errors import ManyhandsError, UserError
from manyhands.launch.environment import outer_world
from manyhands.tasks.load import TaskFileFailed

# typer carries a click of its own, or uses the one installed; either way this is its error for a bad command line.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def make_app() -> typer.Typer:
    """Gather the commands."""
    from manyhands.cli import (
        advise,
        calibrate,
        crossval,
        doctor,
        profile,
        report,
        reproduce,
        runs,
        scale,
        simulate,
        syncs,
        train,
        validate,
        verify,
    )

    app = typer.Typer(
        name="manyhands",
        help="Train neural networks on many workers, with the answer one worker would give.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    commands = (
        train.train,
        verify.verify,
        crossval.crossval,
        scale.scale,
        report.report,
        profile.profile,
        reproduce.reproduce,
        calibrate.calibrate,
        simulate.simulate,
        validate.validate,
        advise.advise,
    )
    for command in commands:
        app.command(command.__name__)(_stoppable(command))
    app.add_typer(runs.app, name="runs")
    app.command("syncs")(_stoppable(syncs.syncs))
    app.command("doctor")(_stoppable(doctor.doctor))
    return app


def _stoppable(command: Callable[..., None]) -> Callable[..., None]:
    """Pass Ctrl-C on to `main`: typer would end the command without a word."""

    @wraps(command)
    def run(*given: Any, **options: Any) -> None:
        try:
            command(*given, **options)
        except KeyboardInterrupt:
            raise typer.Abort from None

    return run


def main() -> None:
    """Run a command and turn what it raises into an exit status."""
    try:
        status = make_app()(standalone_mode=False)
    except typer.Exit as error:
        status = error.exit_code
    except UsageError as error:
        status = _say(_usage_sentence(error), 2)
    except UserError as error:
        if isinstance(error, TaskFileFailed) and _leads():
            traceback.print_exception(error.__cause__)
        status = _say(str(error), 2)
    except ManyhandsError as error:
        status = _say(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        status = _say("stopped", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status if isinstance(status, int) else 0)


def _say(sentence: str, status: int) -> int:
    if _leads():
        print(f"manyhands: {sentence}", file=sys.stderr)
    return status


def _leads() -> bool:
    """Whether this process speaks for all that mpiexec started."""
    outer = outer_world()
    return outer is None or outer.rank == 0


def _usage_sentence(error: Exception) -> str:
    """Put the command line parser's message in one sentence, with the nearest name where it knows of none."""
    text = " ".join(str(getattr(error, "message", error)).split())
    missing = re.match(r"No such (option|command):? '?(?P<name>[\w-]+)'?", text)
    context = getattr(error, "ctx", None)
    if missing and context is not None:
        given = missing["name"]
        if missing[1] == "command":
            allowed = list(context.command.commands)
        else:
            allowed = [o for p in context.command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")]
        nearest = difflib.get_close_matches(given, allowed, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else f"'{context.command_path} --help' lists them"
        return f"there is no {missing[1]} {given}; {hint}"
    says = plain_words(text)
    option = getattr(getattr(error, "param", None), "name", None)
    if option and says.startswith("must be"):
        return f"{option.replace('_', '-')} {says}"
    return says[:1].lower() + says[1:] if says else "bad command line"


if __name__ == "__main__":
    main()
