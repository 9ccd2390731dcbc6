"""MXFP4 → bfloat16 inside a Triton kernel, with a few integer instructions and one multiplication per two
weights.

A code s e e m (sign, exponent, mantissa) becomes a bfloat16 with the same bits: the sign goes to bit 15, e e
m to bits 8 … 6. That number is the code's value × 2^-126, even for the code 0.5, which is subnormal in both
formats. A multiplication by 2^(scale − 1) therefore gives the weight exactly. (Adding to the exponent instead
would need special cases for 0 and 0.5.)

bfloat16 can represent 2^(scale − 1) for scales up to `LARGEST_NEAR`, that is, for weights up to 12, far
larger than those of the published checkpoints. A kernel that meets a larger scale repeats its work with *far*
decoding: two multiplications, by 2^127 and by 2^(scale − 128). They are exact for every code and scale,
subnormal and infinite weights included, like `mxfp4.decode`.

Triton's own operations work on single elements, which takes twice the instructions. So this is inline PTX,
which handles four bytes at a time and two weights per register.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.mxfp4 import BLOCK_SIZE
from pallas_kernels.mxfp4.decoding import bfloat16_bits
from pallas_kernels.platform import Interpret

BYTES_PER_BLOCK = BLOCK_SIZE // 2
LARGEST_NEAR = 128
"""The largest scale byte that near decoding handles."""


def ptx(high: bool, far: bool) -> str:
    """The PTX code that decodes four bytes ($2) with the multipliers ($3, $4) into two registers ($0, $1).

    high: True decodes the high nibbles, False the low ones. far: True for far decoding. Two bytes b0, b1 are
    first spread to b0 << 8 and b1 << 8 in the halves of a register: each half is then s e e m of the high
    code, s e e m of the low code, and zeros.
    """
    lines = [".reg .b32 wide, sign, code, first;", "mov.b32 first, 0x7F007F00;"]
    for output, multiplier, selector in (("$0", "$3", "0x1404"), ("$1", "$4", "0x3424")):
        lines.append(f"prmt.b32 wide, $2, 0, {selector};")
        if high:
            lines += ["mov.b32 sign, wide;", "shr.b32 code, wide, 6;"]
        else:
            lines += ["shl.b32 sign, wide, 4;", "shr.b32 code, wide, 2;"]
        lines += [
            "and.b32 sign, sign, 0x80008000;",
            "and.b32 code, code, 0x01C001C0;",
            "or.b32 code, code, sign;",
            *(["mul.rn.bf16x2 code, code, first;"] if far else []),
            f"mul.rn.bf16x2 {output}, code, {multiplier};",
        ]
    return "{\n" + "\n".join(lines) + "\n}"


def multipliers(scales: jax.Array, far: bool) -> jax.Array:
    """The factors of the last multiplication, bfloat16, for uint8 scales; `far` selects far decoding."""
    scales = scales.astype(jnp.int32)
    if far:  # 2^(scale − 128): those of scales 0 and 1 are subnormal
        bits = jnp.where(scales < 2, 32 << scales, (scales - 1) << 7)
    else:  # 2^(scale − 1)
        bits = (jnp.minimum(scales, LARGEST_NEAR) + 126) << 7
    return jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)


def decode(
    blocks: jax.Array, scales: jax.Array, *, far: bool, interpret: Interpret
) -> tuple[jax.Array, jax.Array]:
    """Decodes uint8 blocks [N, K/2] and scales [N, K/32] to even and odd weights, bfloat16 [N, K/2] each.

    far: True is exact for all scales; False treats scales above `LARGEST_NEAR` as `LARGEST_NEAR`. interpret:
    True computes the same in plain JAX, which cannot run PTX.
    """
    if interpret:
        wide = _spread(scales.astype(jnp.int32), blocks.shape)
        wide = wide if far else jnp.minimum(wide, LARGEST_NEAR)
        low, high = (
            bfloat16_bits(blocks.astype(jnp.int32) >> shift, wide).astype(jnp.uint16) for shift in (0, 4)
        )
        return jax.lax.bitcast_convert_type(low, jnp.bfloat16), jax.lax.bitcast_convert_type(
            high, jnp.bfloat16
        )
    factors = _spread(multipliers(scales, far), blocks.shape)
    even, odd = (
        plgpu.elementwise_inline_asm(
            ptx(high, far),
            args=[blocks, factors],
            constraints="=r,=r,r,r,r",
            pack=4,
            result_shape_dtypes=[jax.ShapeDtypeStruct(blocks.shape, jnp.bfloat16)],
        )[0]
        for high in (False, True)
    )
    return even, odd


def _spread(scales: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Repeats [N, K/32] to [N, K/2]: each block's number for each of its bytes."""
    return jnp.broadcast_to(scales[:, :, None], (*scales.shape, BYTES_PER_BLOCK)).reshape(shape)
