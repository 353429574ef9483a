"""Calls a function in a process forked from the server, so that the caller need not import the modules of the
function."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, TypeVar

from lit_transformers.training.loader_processes import loader_death
from sweeps.process.child import LaunchError, start
from sweeps.process.parent import die_with_parent

__all__ = ["call_forked"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def call_forked(
    runner: str, function: Callable[Parameters, Result], *arguments: Parameters.args, **options: Parameters.kwargs
) -> Result:
    """Returns the result of the function, or raises its error, with the traceback of its process as a note.

    runner: the runner that the server imports if the server does not run yet. The function can be imported by its name;
    it, its arguments and its result can be pickled. Raises LaunchError where the process ends without a result.
    """
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, function, arguments, options), name=function.__name__)
    try:
        start(process, runner)
    except LaunchError:
        receiver.close()
        raise
    finally:
        sender.close()
    try:
        result, error = receiver.recv()
    except EOFError:
        process.join()
        raise LaunchError(
            f"the process that was to {function.__name__} ended with status {process.exitcode}; run it again"
        ) from None
    finally:
        receiver.close()
        process.kill()  # it ignores the signal that may have interrupted this one
        process.join()
    if error is not None:
        raise error
    return result


def _send_result(
    sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    die_with_parent()
    try:
        sender.send((function(*arguments, **options), None))
    except Exception as error:
        error.add_note(traceback.format_exc())
        death = loader_death(error)
        with suppress(BrokenPipeError):  # the caller is gone
            sender.send((None, error if death is None else LaunchError(f"{death}; nothing is lost, run again")))
