"""A set of line numbers, with one bit for each line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet

_BITS = [[bit for bit in range(8) if byte >> bit & 1] for byte in range(256)]
"""Byte → its bits that are set."""


class LineSet(MutableSet[int]):
    """A set of whole numbers from 0. A million of them take 125 kB, whichever they are."""

    def __init__(self, lines: Iterable[int] = ()) -> None:
        self._bits = bytearray()
        self._count = 0
        for line in lines:
            self.add(line)

    def add(self, value: int) -> None:
        """Adds a number."""
        byte, bit = divmod(value, 8)
        if byte >= len(self._bits):
            self._bits.extend(bytes(max(byte + 1 - len(self._bits), len(self._bits))))
        if not self._bits[byte] >> bit & 1:
            self._bits[byte] |= 1 << bit
            self._count += 1

    def discard(self, value: int) -> None:
        """Removes a number, if it is there."""
        if value in self:
            self._bits[value // 8] &= ~(1 << value % 8)
            self._count -= 1

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int) or not 0 <= value < 8 * len(self._bits):
            return False
        return bool(self._bits[value // 8] >> value % 8 & 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for place, byte in enumerate(self._bits):
            for bit in _BITS[byte]:
                yield 8 * place + bit

    def __repr__(self) -> str:
        shown = ", ".join(str(line) for line, _ in zip(self, range(8), strict=False))
        return f"LineSet({{{shown}{', …' if len(self) > 8 else ''}}})"
