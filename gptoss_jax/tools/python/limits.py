"""What a Python session may use."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class PythonLimits:
    """What a Python session may use.

    seconds: how long a call may run; then it is interrupted, and killed if it does not end.
    memory_bytes: the memory of all processes of the session together.
    processes: how many processes the session may have, the kernel included.
    output_characters: how much of a call's output the model reads.

    Raises:
        ValueError: a limit is not above 0, or the memory is too small for a kernel.
    """

    seconds: float = 120.0
    memory_bytes: int = 2 << 30
    processes: int = 32
    output_characters: int = 10_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}: it must be above 0")
        if self.memory_bytes < 256 << 20:
            raise ValueError(f"memory_bytes is {self.memory_bytes}: a Python session needs {256 << 20}")
