"""MXFP4 → float32 or bfloat16, bit-exact, in plain JAX. Kernels that decode are tested against it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.mxfp4.format import BLOCK_SIZE

_INFINITY = 0x7F80
_SMALLEST_NORMAL = 0x0080


def decode(blocks: jax.Array, scales: jax.Array, dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Decodes MXFP4 weights exactly: code value × 2^(scale − 127).

    Args:
        blocks: uint8 [..., K/2], two codes a byte.
        scales: uint8 [..., K/32].
        dtype: float32 or bfloat16. Every weight is a bfloat16 number, so both give the same values.

    Returns:
        [..., K] of `dtype`. Small scales give subnormal numbers (scale 0: multiples of 2^-128), which are not
        flushed to zero. Weights of 2^128 and more are infinite. Scale 255 stands for 2^128, because the
            published
        references decode with `torch.ldexp` (OpenAI's torch model and `convert_moe_packed_tensors` of
        transformers); the OCP specification reserves it for NaN. No published checkpoint uses it.

    Raises:
        ValueError: the shapes do not fit each other, an array is not uint8, or `dtype` is not one of the two.
    """
    blocks, scales = jnp.asarray(blocks), jnp.asarray(scales)
    dtype = jnp.dtype(dtype)
    if dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"dtype is {dtype}: MXFP4 decodes to float32 or bfloat16")
    for name, array in (("blocks", blocks), ("scales", scales)):
        if array.dtype != jnp.uint8:
            raise ValueError(f"{name} are {array.dtype}: MXFP4 is stored as uint8")
    bytes_per_block = BLOCK_SIZE // 2
    if blocks.shape != (*scales.shape[:-1], scales.shape[-1] * bytes_per_block if scales.ndim else 0):
        raise ValueError(
            f"blocks {list(blocks.shape)} do not belong to scales {list(scales.shape)}: "
            f"they must be [..., K/2] and [..., K/{BLOCK_SIZE}]"
        )
    # [..., K/32, 16 bytes, 2 nibbles]
    codes = blocks.reshape(*scales.shape, bytes_per_block, 1) >> jnp.array([0, 4], jnp.uint8)
    bits = bfloat16_bits(codes.astype(jnp.int32), scales[..., None, None].astype(jnp.int32))
    if dtype == jnp.float32:
        weights = jax.lax.bitcast_convert_type(bits << 16, jnp.float32)
    else:
        weights = jax.lax.bitcast_convert_type(bits.astype(jnp.uint16), jnp.bfloat16)
    return weights.reshape(*blocks.shape[:-1], blocks.shape[-1] * 2)


def bfloat16_bits(codes: jax.Array, scales: jax.Array) -> jax.Array:
    """The bit patterns of the bfloat16 numbers code · 2^(scale − 127), as int32.

    codes int32, of which the low four bits count; scales int32, 0 … 255, of a shape that broadcasts. Integer
    arithmetic, because XLA would flush subnormal floats to zero. One shift moves a code's magnitude
    m = 2·exponent + mantissa onto bfloat16's exponent and top mantissa bit; only 0 and 0.5 (m = 1, the
    format's subnormal number) are handled apart.
    """
    magnitude = codes & 7
    bits = (scales << 7) + ((magnitude - 2) << 6)
    bits = jnp.where(magnitude == 1, (scales << 7) - 128, bits)
    # Below bfloat16's normal range (scales 0 and 1): multiples of 2^-133, m·2^-128 being 32·m of them.
    bits = jnp.where(bits < _SMALLEST_NORMAL, magnitude << (5 + (scales & 1)), bits)
    bits = jnp.where(magnitude == 0, 0, jnp.minimum(bits, _INFINITY))
    return bits | ((codes & 8) << 12)
