"""MXFP4, the number format of gpt-oss's expert weights: 4-bit floats that share a scale in blocks of 32.

A weight is a 4-bit code (sign, two exponent bits, one mantissa bit: ±0, 0.5, 1, 1.5, 2, 3, 4, 6) times its
block's scale, an E8M0 byte s with the value 2^(s-127): 4.25 bits per weight. A byte holds two codes: byte i
has element 2i in its low nibble and element 2i+1 in its high one. Weights [..., K], where K is the contracted
axis, are stored as blocks uint8 [..., K/2] and scales uint8 [..., K/32].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_kernels.mxfp4.encoding import encode
from pallas_kernels.mxfp4.format import BLOCK_SIZE, CODE_VALUES, LAYOUT_VERSION

__all__ = ["BLOCK_SIZE", "CODE_VALUES", "LAYOUT_VERSION", "decode", "encode"]

if TYPE_CHECKING:
    from pallas_kernels.mxfp4.decoding import decode
else:

    def __getattr__(name: str) -> object:
        """Imports `decode` on first use, so that code which only reads the format does not import jax."""
        if name != "decode":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pallas_kernels.mxfp4.decoding import decode

        globals()[name] = decode
        return decode
