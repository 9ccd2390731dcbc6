"""The errors that stop a whole batch run; errors of single rows become error rows."""

from __future__ import annotations


class BatchError(ValueError):
    """A batch run cannot start or continue. The message is one line that says why."""


def cannot(action: str, what: object, error: OSError) -> BatchError:
    """The error for a file that cannot be read or written: "cannot ACTION WHAT: the system's reason"."""
    return BatchError(f"cannot {action} {what}: {error.strerror or error}")
