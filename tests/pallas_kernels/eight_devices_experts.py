"""Run with eight simulated CPU devices: experts spread over a mesh axis against one device. Prints "ok"."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pallas_kernels.expert_matmul import PackedLinear
from pallas_kernels.expert_matmul.reference import expert_mlp
from pallas_kernels.routing import Route, gathered_experts, reduced_experts, route

TOKENS, HIDDEN, INNER, EXPERTS, ACTIVE, LIMIT = 24, 64, 32, 16, 3, 7.0


def random_maps() -> tuple[PackedLinear, PackedLinear]:
    generator = np.random.default_rng(0)

    def packed(outputs: tuple[int, ...], inputs: int) -> PackedLinear:
        return PackedLinear(
            jnp.asarray(generator.integers(0, 256, (EXPERTS, *outputs, inputs // 2), dtype=np.uint8)),
            jnp.asarray(generator.integers(119, 124, (EXPERTS, *outputs, inputs // 32), dtype=np.uint8)),
            jnp.asarray(generator.standard_normal((EXPERTS, *outputs)), jnp.float32),
        )

    return packed((2, INNER), HIDDEN), packed((HIDDEN,), INNER)


def check(logits: np.ndarray, valid: np.ndarray) -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "expert"))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((TOKENS, HIDDEN)), jnp.float32)
    routed = route(logits, ACTIVE, valid)
    maps = random_maps()
    alone = np.asarray(jax.jit(expert_mlp, static_argnums=4)(x, routed, *maps, LIMIT))
    assert np.abs(alone[valid]).min(axis=-1).any() and not alone[~valid].any()

    for form, tokens in [(reduced_experts, PartitionSpec()), (gathered_experts, PartitionSpec("expert"))]:

        @jax.jit
        @functools.partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(tokens, Route(tokens, tokens), PartitionSpec("expert")),
            out_specs=tokens,
            check_vma=False,
        )
        def spread(x, routed, maps, form=form):
            def mine(x: jax.Array, local: Route) -> jax.Array:
                return expert_mlp(x, local, *maps, LIMIT)

            return form(mine, x, routed, EXPERTS, "expert")

        together = np.asarray(spread(x, routed, maps))
        np.testing.assert_allclose(together, alone, rtol=0, atol=1e-5 * np.abs(alone).max())


def main() -> None:
    assert len(jax.devices()) == 8
    generator = np.random.default_rng(2)
    logits = generator.standard_normal((TOKENS, EXPERTS)).astype(np.float32)
    check(logits, np.ones(TOKENS, bool))
    check(logits, generator.random(TOKENS) < 0.5)
    # Everybody wants the last device's experts: nothing may be dropped.
    check(logits + 100.0 * (np.arange(EXPERTS) >= 13), np.ones(TOKENS, bool))
    print("ok")


if __name__ == "__main__":
    main()
