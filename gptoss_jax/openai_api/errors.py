"""What is wrong with a request, for programs and for people."""

from __future__ import annotations

import json
from typing import Any


class ApiError(ValueError):
    """A request that cannot be answered. The message is one line that names the field and what is allowed.

    code: for programs.
    parameter: the field at fault, where there is one.
    status: the HTTP status of the answer: 400 for a bad request, 500 for a fault of this program.
    """

    def __init__(self, code: str, message: str, parameter: str | None = None, *, status: int = 400):
        super().__init__(message)
        self.code = code
        self.parameter = parameter
        self.status = status


def error_object(error: ApiError, message: str | None = None) -> dict[str, Any]:
    """The body of an answer that is an error; `message` stands in place of the error's own."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    said = str(error) if message is None else message
    return {"error": {"message": said, "type": kind, "param": error.parameter, "code": error.code}}


def json_kind(value: object) -> str:
    """A JSON value in words: its type, or the value itself where it is short."""
    if value is None:
        return "null"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, dict):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:36] + "…" + text[-1]


def bad_value(name: str, value: object, expected: str) -> ApiError:
    """The error of a field whose value is none that is allowed."""
    return ApiError("invalid_request", f"{name} must be {expected}, not {json_kind(value)}", name)


def read_flag(value: object, name: str) -> bool:
    """A boolean of a body; null is false.

    Raises:
        ApiError: it is neither true nor false.
    """
    if value is not None and not isinstance(value, bool):
        raise bad_value(name, value, "true or false")
    return bool(value)
