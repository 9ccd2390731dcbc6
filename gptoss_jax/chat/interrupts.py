"""Ctrl-C while an answer is awaited: it ends the answer, and never cuts the program's own work in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator, Iterator
from types import FrameType
from typing import TypeVar

_Item = TypeVar("_Item")


def until_interrupted(items: Generator[_Item]) -> Iterator[_Item]:
    """The items as they come; KeyboardInterrupt in place of the next one when Ctrl-C is pressed.

    The exception comes while an item is awaited, never while one is being used, and the generator is closed
    then. Outside the main thread, where no signal arrives, and in a process that ignores Ctrl-C, the items
    pass through as they are.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield from items
        return
    is_waiting = was_pressed = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal is_waiting, was_pressed
        was_pressed = True
        if is_waiting:
            is_waiting = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        with contextlib.closing(items):
            while True:
                is_waiting = True
                if was_pressed:
                    raise KeyboardInterrupt
                try:
                    item = next(items)
                except StopIteration:
                    return
                finally:
                    is_waiting = False
                yield item
    finally:
        signal.signal(signal.SIGINT, before)
