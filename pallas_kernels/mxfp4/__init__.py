"""MXFP4, the number format of gpt-oss's expert weights: 4-bit floats that share a scale in blocks of 32.

A weight is a 4-bit code (sign, two exponent bits, one mantissa bit: ±0, 0.5, 1, 1.5, 2, 3, 4, 6) times its
block's scale, an E8M0 byte s that stands for 2^(s-127): 4.25 bits a weight. Codes are packed two to a byte
(element 2i in the low nibble of byte i, 2i+1 in the high one). Layout of an array of weights [..., K], K the
contracted axis: blocks uint8 [..., K/2] and scales uint8 [..., K/32].
"""

from pallas_kernels.mxfp4.decoding import decode
from pallas_kernels.mxfp4.encoding import encode
from pallas_kernels.mxfp4.format import BLOCK_SIZE, CODE_VALUES, LAYOUT_VERSION

__all__ = ["BLOCK_SIZE", "CODE_VALUES", "LAYOUT_VERSION", "decode", "encode"]
