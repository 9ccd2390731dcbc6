"""A program that counts small kernels, whose cycles and bytes have known relations, and prints JSON.

A process of its own, because libtpu reads its flags once, when it is loaded.
"""

from __future__ import annotations

import json
import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.inspect.counting import CountError, KernelCount, count
from pallas_kernels.platform import Chip

BLOCK = (256, 512)  # float32: 512 KiB


def kernel(work: jax.Ref, schedule: jax.Ref, x: jax.Ref, out: jax.Ref, *, passes: int, trips: int) -> None:
    """Adds passes · trips multiples of x to out, in steps whose work is positive.

    work, schedule int32 [16] in scalar memory; x float32 [1, 256, 512] and out float32 [8, 128] in VMEM.
    """
    step = pl.program_id(0)

    @pl.when(work[step] > 0)
    def _() -> None:
        def trip(number: jax.Array, total: jax.Array) -> jax.Array:
            for _ in range(passes):
                total = total * total + x[0, :8, :128] * number.astype(jnp.float32)
            return total

        out[...] += jax.lax.fori_loop(0, trips, trip, jnp.zeros((8, 128), jnp.float32))


def counted(chip: Chip, work: list[int], schedule: list[int], passes: int = 4, trips: int = 6) -> KernelCount:
    def call(steps: jax.Array, work: jax.Array, schedule: jax.Array, x: jax.Array) -> jax.Array:
        return pl.pallas_call(
            lambda *refs: kernel(*refs, passes=passes, trips=trips),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(steps[0],),
                in_specs=[pl.BlockSpec((1, *BLOCK), lambda i, work, schedule: (schedule[i], 0, 0))],
                out_specs=pl.BlockSpec((8, 128), lambda i, *_: (0, 0)),
            ),
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
            name="powers",
        )(work, schedule, x)

    shapes = [((1,), jnp.int32), ((16,), jnp.int32), ((16,), jnp.int32), ((64, *BLOCK), jnp.float32)]
    padding = [0] * (16 - len(work))
    scalars = [len(work), np.array(work + padding), np.array(schedule + padding)]
    return count(call, [jax.ShapeDtypeStruct(*shape) for shape in shapes], chip, "powers", scalars)


def figures(one: KernelCount) -> dict[str, object]:
    trace = one.traces[0]
    valu = one.program.units.index("VALU")
    return {
        "compute": one.compute_cycles,
        "read": sum(trace.read for trace in one.traces),
        "written": sum(trace.written for trace in one.traces),
        "steps": [step.bundles for step in trace.iterations],
        "cycles": one.cycles,
        "memory": one.memory_cycles,
        "vmem": one.vmem_bytes,
        "valu": sum(step.use[valu] for step in trace.iterations),
        "cores": len(one.traces),
        "text": len(one.text),
    }


def refusal() -> str:
    try:
        count(lambda x: x + 1, [jax.ShapeDtypeStruct((8, 128), jnp.float32)], "v5e", "powers", [])
    except CountError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    eight, ones = list(range(8)), [1] * 8
    print(
        json.dumps(
            {
                "plain": figures(counted("v5e", ones, eight)),
                "again": figures(counted("v5e", ones, eight)),
                "idle": figures(counted("v5e", [1, 0, 0, 1, 0, 0, 0, 1], eight)),
                "same block": figures(counted("v5e", ones, [3, 3, 3, 3, 5, 5, 5, 5])),
                "more trips": figures(counted("v5e", ones, eight, trips=12)),
                "more passes": figures(counted("v5e", ones, eight, passes=8)),
                "v5p": figures(counted("v5p", ones, eight)),
                "7x": figures(counted("7x", ones, eight)),
                "refusal": refusal(),
            }
        )
    )
