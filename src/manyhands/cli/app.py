"""All commands: a bad request gets one sentence and exit status 2, a failed run says which rank failed and gets 1."""

import os
import re
import sys
import traceback
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any

import typer

from manyhands._version import __version__
from manyhands.cli.streams import ReaderGone
from manyhands.config import plain_words
from manyhands.errors import ManyhandsError, TaskFileFailed, UserError, exit_status, nearest
from manyhands.launch.environment import outer_world
from manyhands.launch.guard.state import FailureKnown, own_state

# typer carries a click of its own, or uses the one installed; either way this is its error for a bad command line.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


COMMANDS = {
    "train": "Train a task on one worker or many.",
    "verify": "Prove that parallel equals serial, or say where they part.",
    "crossval": "Cross-validate a task, folds and data both in parallel.",
    "scale": "Measure how a task scales over workers, and draw a report.",
    "report": "Draw reports from what was stored.",
    "profile": "Tell which functions took the time, on every rank.",
    "reproduce": "Rebuild a paper's tables beside its published figures.",
    "calibrate": "Measure this machine, for simulate, validate and advise.",
    "simulate": "Predict step time, speed-up and cost on many nodes.",
    "validate": "Predict, then run, then say how far off that was.",
    "advise": "Say how a task reaches an accuracy soonest.",
    "syncs": "Show the strategies that --sync takes, and their options.",
    "doctor": "Show what is installed, what works, and how to mend the rest.",
    "runs": "List, show, compare and delete stored runs.",
}
"""Every command, with its line in `manyhands --help`: only the module of the command that is called is imported."""


def make_app(called: str = "") -> typer.Typer:
    """Return the command line; commands other than the one called have only their name and their line of help."""
    app = typer.Typer(
        name="manyhands",
        help="Train neural networks on many workers, with the answer one worker would give.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_global_options)
    for name, line in COMMANDS.items():
        if name != called:
            app.command(name, help=line)(lambda: None)
            continue
        module = import_module(f"manyhands.cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(_stoppable(getattr(module, name)))
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"manyhands {__version__}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def _stoppable(command: Callable[..., None]) -> Callable[..., None]:
    """Pass Ctrl-C on to `main`: typer would end the command without a message."""

    @wraps(command)
    def run(*given: Any, **options: Any) -> None:
        try:
            command(*given, **options)
        except KeyboardInterrupt:
            raise typer.Abort from None

    return run


def run() -> int:
    """Run the command and return its exit status; errors are printed on stderr."""
    try:
        status = make_app(_called())(standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as error:
        status = error.exit_code
    except UsageError as error:
        return _say(error, _usage_sentence(error), 2)
    except ManyhandsError as error:
        # A name that the user gave may hold line breaks.
        sentence = " ".join(str(error).splitlines()) if isinstance(error, UserError) else str(error)
        return _say(error, sentence, exit_status(error))
    except ReaderGone:
        status = 0
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if outer_world() is None:
            raise
        return _say(error, "".join(traceback.format_exception(error)).rstrip(), 1)
    own_state().known = FailureKnown.RANKS
    return status if isinstance(status, int) else 0


def _called() -> str:
    """Return the name of the command that is called, or whose options a shell wants to complete."""
    words = sys.argv
    if "_MANYHANDS_COMPLETE" in os.environ:
        words = (os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")).split()
    return next((word for word in words[1:] if not word.startswith("-")), "")


def _say(error: Exception, sentence: str, status: int) -> int:
    """Print why the command fails and return `status`; of ranks started from outside, one prints it for all."""
    outer, name = outer_world(), ""
    if outer is not None:
        from manyhands.launch.failures import OthersFailed, name_to_say  # with torch, to meet the others

        if isinstance(error, OthersFailed):
            return error.status
        speaker = name_to_say(error, outer, sentence, status)
        if speaker is None:
            return status
        name = speaker
    if isinstance(error, TaskFileFailed) and error.__cause__ is not None:  # which data workers do not send along
        traceback.print_exception(error.__cause__)
    print(f"manyhands: {name}{sentence}", file=sys.stderr)
    return status


def _usage_sentence(error: Exception) -> str:
    """Return the command line parser's message as one sentence, with the nearest name for one that does not exist."""
    text = " ".join(str(getattr(error, "message", error)).split())
    missing = re.match(r"No such (option|command):? '?(?P<name>[\w-]+)'?", text)
    context = getattr(error, "ctx", None)
    if missing and context is not None:
        given = missing["name"]
        if missing[1] == "command":
            allowed = list(context.command.commands)
        else:
            allowed = [o for p in context.command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")]
        meant = nearest(given, allowed)
        hint = f"did you mean {meant}?" if meant else f"'{context.command_path} --help' lists them"
        return f"there is no {missing[1]} {given}; {hint}"
    says = plain_words(text)
    option = getattr(getattr(error, "param", None), "name", None)
    if option and says.startswith("must be"):
        return f"{option.replace('_', '-')} {says}"
    return says[:1].lower() + says[1:] if says else "which command? for example: manyhands train mlp"
