"""The errors of a single request."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot run. The message is one line: the field, its value and what is allowed."""


class NotStarted(RequestError):
    """A request that was ended before the engine had begun with it."""


class RequestFailed(RuntimeError):
    """The engine's own code failed on one request, which ends. Other requests are not affected.

    The message is one line with the error's type and text. The error itself is `__cause__`, if it is known.
    """


def one_line(error: BaseException) -> str:
    """Returns an exception's type and text as one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own __str__ failed: the type must still be reported
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def ends_process(error: BaseException) -> bool:
    """True for the exceptions that end the process: Ctrl-C, `sys.exit`, a closed generator.

    Panics of extension modules are other subclasses of BaseException. They count as ordinary failures.
    """
    return isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit))
