"""Run with eight simulated CPU devices: experts spread over a mesh against one device. Prints "ok"."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pallas_kernels.expert_matmul import PackedLinear
from pallas_kernels.expert_matmul.reference import expert_mlp
from pallas_kernels.routing import Route, route, spread_experts

TOKENS, HIDDEN, INNER, EXPERTS, ACTIVE, LIMIT = 24, 64, 32, 16, 3, 7.0
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce")


def random_maps() -> tuple[PackedLinear, PackedLinear]:
    generator = np.random.default_rng(0)

    def packed(outputs: tuple[int, ...], inputs: int) -> PackedLinear:
        return PackedLinear(
            jnp.asarray(generator.integers(0, 256, (EXPERTS, *outputs, inputs // 2), dtype=np.uint8)),
            jnp.asarray(generator.integers(119, 124, (EXPERTS, *outputs, inputs // 32), dtype=np.uint8)),
            jnp.asarray(generator.standard_normal((EXPERTS, *outputs)), jnp.float32),
        )

    return packed((2, INNER), HIDDEN), packed((HIDDEN,), INNER)


run_alone = jax.jit(expert_mlp, static_argnums=4)


@functools.cache
def spread_over(gathered: int, reduced: int) -> Callable[..., jax.Array]:
    """The experts over a mesh of these sizes."""
    devices = np.array(jax.devices()[: gathered * reduced]).reshape(gathered, reduced)
    mesh = Mesh(devices, ("expert", "tensor"))
    tokens = PartitionSpec("expert")

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(tokens, Route(tokens, tokens), PartitionSpec(("expert", "tensor"))),
        out_specs=tokens,
        check_vma=False,
    )
    def spread(x: jax.Array, routed: Route, maps: tuple[PackedLinear, PackedLinear]) -> jax.Array:
        def mine(x: jax.Array, local: Route) -> jax.Array:
            return expert_mlp(x, local, *maps, LIMIT)

        return spread_experts(mine, x, routed, EXPERTS, gather_axis="expert", reduce_axis="tensor")

    return spread


def check(logits: np.ndarray, valid: np.ndarray, gathered: int, reduced: int) -> None:
    x = jnp.asarray(np.random.default_rng(1).standard_normal((TOKENS, HIDDEN)), jnp.float32)
    routed = route(logits, ACTIVE, valid)
    maps = random_maps()
    alone = np.asarray(run_alone(x, routed, *maps, LIMIT))
    assert np.abs(alone[valid]).min(axis=-1).any() and not alone[~valid].any()
    spread = spread_over(gathered, reduced)
    text = spread.lower(x, routed, maps).as_text()
    used = {name for name in COLLECTIVES if name in text}
    assert used == ({"all_gather", "reduce_scatter"} if gathered > 1 else set()) | (
        {"all_reduce"} if reduced > 1 else set()
    )
    together = np.asarray(spread(x, routed, maps))
    if gathered * reduced == 1:
        np.testing.assert_array_equal(together, alone)
    else:
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5 * np.abs(alone).max())


def main() -> None:
    assert len(jax.devices()) == 8
    generator = np.random.default_rng(2)
    logits = generator.standard_normal((TOKENS, EXPERTS)).astype(np.float32)
    everyone = np.ones(TOKENS, bool)
    for gathered, reduced in ((1, 1), (8, 1), (1, 8)):
        check(logits, everyone, gathered, reduced)
    check(logits, generator.random(TOKENS) < 0.5, 4, 2)
    # Everybody wants the last device's experts: nothing may be dropped.
    check(logits + 100.0 * (np.arange(EXPERTS) >= 13), everyone, 4, 2)
    print("ok")


if __name__ == "__main__":
    main()
