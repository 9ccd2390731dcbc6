"""Every operation of a layer as this device runs it, against its definition in float64.

Which implementation runs is the platform's choice, as in the model: kernels on TPUs and GPUs, plain JAX on
CPUs. Shapes on accelerators are those of the published models, with fewer experts, tokens and keys.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from gptoss_jax.bench.kernels.attention import PUBLISHED, SMALL, Case, cases
from gptoss_jax.bench.kernels.inputs import ACTIVE, LIMIT, Model, random_projections, random_tokens
from gptoss_jax.bench.kernels.inputs import SMALL as SMALL_EXPERTS
from gptoss_jax.verify import oracles
from gptoss_jax.verify.rows import Check, Outcome
from pallas_kernels import attention, mxfp4
from pallas_kernels.expert_matmul import PackedLinear, code_format_for, expert_mlp, tile_experts
from pallas_kernels.platform import choose
from pallas_kernels.routing import route

_EXPERTS = Model("published", 8)
"""The published sizes of an expert; eight of them are decoded in float64 in seconds."""

_LOUD = 8
"""How many times as large as usual the tokens are, so that gates and ups meet the limit of the activation."""

_WIDE_SPAN = 30
"""Powers of two between scales of one column: more than narrow scales can represent."""


def checks(dtype: str, *, small: bool) -> list[Check]:
    """dtype: that of activations. small: True for sizes that a CPU computes at once."""
    kind = choose("expert_mlp", ("reference", "tpu", "gpu"))
    runs = {"reference": "plain JAX, no kernel", "tpu": f"TPU kernels for {kind.chip}", "gpu": "GPU kernels"}
    how = runs[kind.implementation] + (", interpreted" if kind.interpret else "")
    on_tpu = kind.implementation == "tpu"

    def check(name: str, what: str, run: Callable[[], Outcome]) -> Check:
        return Check(
            name,
            f"{what} equal to their definition in float64 ({how})",
            f"this operation ({how}) is wrong on this device: please report it; "
            "GPTOSS_JAX_KERNELS=reference may run without it, slowly",
            run,
        )

    found = [
        check("MXFP4", "all 256 bytes at all scales of normal numbers decode to the bit", _mxfp4),
        check("routing", "chosen experts and their weights are", functools.partial(_routing, small)),
        check(
            "experts",
            "gate, up, clamped SwiGLU and down are",
            lambda: _experts(dtype, small=small, wide=False, on_tpu=on_tpu),
        ),
        check("attention", "pages, rings, prompts and sinks are", lambda: _attention(dtype, small=small)),
        check("storing", "new keys and values go to their rows and nowhere else: pools are", _storing),
    ]
    if on_tpu:
        wide = functools.partial(_experts, dtype, small=small, wide=True, on_tpu=True)
        found.insert(3, check("experts, wide scales", "the same with scales far apart are", wide))
    return found


def _mxfp4() -> Outcome:
    scales = np.arange(2, 255, dtype=np.uint8)
    blocks = np.broadcast_to(np.arange(256, dtype=np.uint8), (len(scales), 256))
    grouped = np.repeat(scales[:, None], 512 // 32, axis=1)
    got = np.asarray(jax.jit(mxfp4.decode)(blocks, grouped), np.float64)
    right = oracles.mxfp4(blocks, grouped)
    right = np.where(np.abs(right) < 2.0**128, right, np.copysign(np.inf, right))
    differ = int((got != right).sum())
    return Outcome(differ == 0, f"{differ} of {got.size:,} weights differ", "0", {"differ": differ})


def _routing(small: bool) -> Outcome:
    tokens, experts = (21, 6) if small else (64, 128)
    logits = np.random.default_rng(3).standard_normal((tokens, experts)).astype(np.float32)
    found = jax.jit(functools.partial(route, experts_per_token=ACTIVE))(jnp.asarray(logits))
    chosen, shares = oracles.route(logits.astype(np.float64), ACTIVE)
    differ = int((np.asarray(found.experts) != chosen).sum())
    error = float(np.abs(np.asarray(found.weights, np.float64) - shares).max())
    return Outcome(
        differ == 0 and error <= 1e-6,
        f"{differ} of {chosen.size} choices differ, weights by {error:.2g}",
        "0, 1e-06 (8 roundings of float32)",
        {"differ": differ, "error": error, "tokens": tokens, "experts": experts},
    )


def _experts(dtype: str, *, small: bool, wide: bool, on_tpu: bool) -> Outcome:
    model = SMALL_EXPERTS if small else _EXPERTS
    maps_key, tokens_key = jax.random.split(jax.random.key(11))
    gate_up, down = jax.jit(random_projections, static_argnums=1)(maps_key, model)
    if wide:
        gate_up, down = (_spread(one) for one in (gate_up, down))
    weights = (gate_up, down)
    if on_tpu:
        tiled = tile_experts(gate_up, down, code_format_for(choose("expert_mlp", ("tpu",)).chip))
        run = jax.jit(lambda x, routed: expert_mlp(x, routed, tiled.gate_up, tiled.down, LIMIT))
    else:
        run = jax.jit(lambda x, routed: expert_mlp(x, routed, *weights, LIMIT))
    packed = [tuple(np.asarray(part) for part in one) for one in weights]
    host = [(blocks, scales, bias.astype(np.float64)) for blocks, scales, bias in packed]
    worst: dict[str, float] = {}
    for tokens in (5, 40) if small else (8, 256):
        x, routed = jax.jit(random_tokens, static_argnums=(1, 2))(tokens_key, model, tokens)
        x = (_LOUD * x).astype(dtype)
        right = oracles.experts(
            np.asarray(x, np.float64),
            np.asarray(routed.experts),
            np.asarray(routed.weights, np.float64),
            host[0],
            host[1],
            LIMIT,
        )
        got = np.asarray(run(x, routed))
        worst[f"{tokens} tokens"] = oracles.times_the_bound(got, right, dtype == "bfloat16")
    return _within(worst, f"hidden {model.hidden}, inner {model.inner}, {model.experts} experts")


def _spread(linear: PackedLinear) -> PackedLinear:
    """The same with the scale of every second block so small that a column spans too many powers of two."""
    scales = np.array(linear.scales)
    scales[..., ::2] -= _WIDE_SPAN
    return PackedLinear(linear.blocks, jnp.asarray(scales), linear.bias)


def _within(worst: dict[str, float], where: str) -> Outcome:
    figures = ", ".join(f"{name} {error:.2f}" for name, error in worst.items())
    return Outcome(
        max(worst.values()) <= 1,
        f"error over what rounding explains: {figures}; {where}",
        "1",
        {"times_the_bound": worst},
    )


def _attention(dtype: str, *, small: bool) -> Outcome:
    heads = SMALL if small else PUBLISHED
    found = cases(heads, (3,), context=40, chunk=24) if small else cases(heads, (4,), context=600, chunk=160)
    worst = {}
    for case in found:
        rights, got = attention_of(case, dtype)
        worst[case.name] = oracles.times_the_bound(got, rights, dtype == "bfloat16")
    return _within(worst, f"{heads.query} query and {heads.kv} KV heads of {heads.size}")


def attention_of(case: Case, dtype: str) -> tuple[oracles.Expected, np.ndarray]:
    """What is right, and what this device computes, [B, T, H, h]."""
    inputs = tuple(
        each.astype(dtype) if jnp.issubdtype(each.dtype, jnp.floating) else each
        for each in jax.jit(case.inputs)(jax.random.key(5))
    )
    options = {} if case.operation.endswith("pages") else {"window": case.window}
    got = np.asarray(jax.jit(functools.partial(getattr(attention, case.operation), **options))(*inputs))
    q, sinks = np.asarray(inputs[0], np.float64), np.asarray(inputs[4], np.float64)
    k, v, queries, keys = (np.asarray(each) for each in _seen(case, inputs))
    if q.ndim == 3:
        q, got = q[:, None], got[:, None]
    distance = queries[:, :, None] - keys[:, None, :]
    visible = (distance >= 0) & (keys >= 0)[:, None, :]
    if case.window is not None:
        visible &= distance < case.window
    right = oracles.attention(q, k.astype(np.float64), v.astype(np.float64), sinks, visible)
    return right, got


def _seen(case: Case, inputs: tuple[jax.Array, ...]) -> Iterator[jax.Array]:
    """Keys and values [B, S, K, h], the queries' positions [B, T], and the keys' [B, S]."""
    size, _, second, third = case.heads.size, *inputs[1:4]
    if case.operation == "prefill":
        yield from (inputs[1], second, third, third)
    elif case.operation == "decode_ring":
        yield from attention.unpack(jnp.moveaxis(inputs[1], 3, 1), size)
        yield from (third[:, None], second)
    else:
        pages = jnp.moveaxis(inputs[1][second], 4, 2)
        batch, columns, rows = pages.shape[:3]
        yield from attention.unpack(pages.reshape(batch, columns * rows, *pages.shape[3:]), size)
        yield third[:, None] - 1 if case.operation == "decode_pages" else third
        yield jnp.broadcast_to(jnp.arange(columns * rows), (batch, columns * rows))


def _storing() -> Outcome:
    generator = np.random.default_rng(4)
    units, parts, lanes = attention.entry_layout(PUBLISHED.kv, PUBLISHED.size)
    pool = generator.standard_normal((6, units, parts, 64, lanes)).astype(jnp.bfloat16)
    entries = generator.standard_normal((4, units, parts, lanes)).astype(jnp.bfloat16)
    pages, rows = np.array([4, 0, -1, 2], np.int32), np.array([63, 0, 5, 17], np.int32)
    right = pool.copy()
    for entry, page, row in zip(entries, pages, rows, strict=True):
        if page >= 0:
            right[page, :, :, row] = entry
    got = np.asarray(jax.jit(attention.store_entries)(*map(jnp.asarray, (pool, entries, pages, rows))))
    differ = int((got.view(np.uint16) != right.view(np.uint16)).sum())
    return Outcome(differ == 0, f"{differ} of {got.size:,} numbers differ", "0", {"differ": differ})
