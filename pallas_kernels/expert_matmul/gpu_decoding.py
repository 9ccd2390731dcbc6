"""MXFP4 → bfloat16 inside a Triton kernel: a few integer instructions and a multiplication for two weights.

A code s e e m (sign, exponent, mantissa) becomes a bfloat16 whose exponent field is just e e: the sign goes
to bit 15, e e m to bits 8 … 6. That number is the code's value × 2^-126, also for the code 0.5, which is
subnormal in both formats, so a multiplication by 2^(scale − 1) makes it the weight, exactly. (An exponent
addition would need a case for 0 and one for 0.5.) bfloat16 has 2^(scale − 1) for scales up to `LARGEST_NEAR`,
weights up to 12: far more than any checkpoint has. Kernels watch for larger scales, and where they meet one
they do their work again with *far* decoding: two multiplications, by 2^127 and by 2^(scale − 128), which is
exact for every code and scale, subnormal and infinite weights included, as `mxfp4.decode` is.

Triton's own operations work on single elements, which costs twice the instructions; so this is inline PTX on
four bytes at a time, two weights to a register.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.mxfp4 import BLOCK_SIZE
from pallas_kernels.mxfp4.decoding import bfloat16_bits

BYTES_PER_BLOCK = BLOCK_SIZE // 2
LARGEST_NEAR = 128
"""The largest scale that near decoding takes."""


def ptx(high: bool, far: bool) -> str:
    """The code for four bytes ($2) and their multipliers ($3, $4) → the bytes' low or high codes ($0, $1).

    A register of two bytes b0, b1 is first spread to b0 << 8 and b1 << 8 in its halves, so that a half is
    s e e m of the high code, then s e e m of the low one, then zeros.
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
    """The last multiplication's factors as bfloat16, for scales uint8."""
    scales = scales.astype(jnp.int32)
    if far:  # 2^(scale − 128): those of scales 0 and 1 are subnormal
        bits = jnp.where(scales < 2, 32 << scales, (scales - 1) << 7)
    else:  # 2^(scale − 1)
        bits = (jnp.minimum(scales, LARGEST_NEAR) + 126) << 7
    return jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)


def decode(
    blocks: jax.Array, scales: jax.Array, *, far: bool, interpret: bool
) -> tuple[jax.Array, jax.Array]:
    """The even and the odd weights, bfloat16 [N, K/2] each, of blocks [N, K/2] and scales [N, K/32], uint8.

    Unless `far`, scales above `LARGEST_NEAR` are taken for it. In interpret mode, which cannot run PTX, the
    same is done as `mxfp4.decode` does it.
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
    """[N, K/32] → [N, K/2]: each block's number beside each of its bytes."""
    return jnp.broadcast_to(scales[:, :, None], (*scales.shape, BYTES_PER_BLOCK)).reshape(shape)
