"""The options of `gptoss-jax batch` that end rows or the run early, and its answer to SIGTERM."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from gptoss_jax.batch import Limits

DRAIN_SECONDS = 20.0
"""How long rows that are computed may go on after SIGTERM."""

LEAVE_SECONDS = 24.0
"""When the process ends after SIGTERM, whatever it does: a compilation cannot be interrupted."""

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+", re.ASCII)


def add_limit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    group = parser.add_argument_group("limits of time")
    group.add_argument(
        "--deadline",
        type=_moment,
        metavar="WHEN",
        help="end the run then: after a time such as 90s, 45m or 5h30m, or at a moment such as "
        "2026-05-01T06:00 (local time, unless it says another). Rows that are not finished are left to the "
        "next run; the exit code is 75",
    )
    group.add_argument(
        "--row-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="give a row that is computed for longer an error row (default: no limit)",
    )


def check_limits(options: argparse.Namespace) -> None:
    """Raises CommandError if the deadline has passed before the command has begun."""
    if options.deadline is not None and options.deadline <= time.time():
        raise CommandError("--deadline has passed: it must be a moment to come")


def limits_of(options: argparse.Namespace) -> Limits:
    """The limits from the options and `--max-errors`."""
    from gptoss_jax.batch import Limits

    return Limits(row_seconds=options.row_timeout, deadline=options.deadline, max_errors=options.max_errors)


@contextlib.contextmanager
def draining_on_sigterm(limits: Limits) -> Iterator[None]:
    """Drains the run when SIGTERM comes, which a machine that is about to be taken away sends.

    Python's own handlers wait for a compilation or a step to end. So a thread is told of the signal at once,
    and ends the process where the run has not come to its end in time: its rows are on the disk, as after
    any kill. Does nothing outside the main thread, which alone gets signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    woken = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(ours, ended, limits), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGTERM, before)
        theirs.close()
        thread.join()
        ours.close()


def _watch(signals: socket.socket, ended: threading.Event, limits: Limits) -> None:
    while data := signals.recv(64):
        if signal.SIGTERM in data:
            print(
                f"\ngptoss-jax: SIGTERM: rows that are computed have {DRAIN_SECONDS:.0f} seconds",
                file=sys.stderr,
            )
            limits.drain("by SIGTERM", DRAIN_SECONDS)
            if not ended.wait(LEAVE_SECONDS):
                from gptoss_jax.batch.report import STOPPED

                print(
                    "gptoss-jax: stopped by SIGTERM in the middle of a step; the same command continues",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(STOPPED)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return value


def _moment(text: str) -> float:
    """A moment as `time.time()` has it."""
    if _DURATION.fullmatch(text):
        parts = re.findall(r"([\d.]+)([smhd])", text)
        return time.time() + sum(float(number) * _UNITS[unit] for number, unit in parts)
    try:
        if len(text) <= len("2026-05-01"):
            raise ValueError("a day is no moment")
        return datetime.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"must be a time such as 90s, 45m or 5h30m, or a moment such as 2026-05-01T06:00, not {text!r}"
        ) from None
