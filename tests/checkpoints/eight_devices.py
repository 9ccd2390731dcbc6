"""Run with eight simulated CPU devices: loads checkpoints sharded, compares each shard with a plain load.

Arguments: checkpoint folders. Prints "ok".
"""

import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkpoints import open_checkpoint
from checkpoints.parameters import parameter_specs


def main() -> None:
    devices = jax.devices()
    assert len(devices) == 8, devices
    mesh = Mesh(np.array(devices).reshape(2, 4), ("data", "tensor"))
    for folder in sys.argv[1:]:
        checkpoint = open_checkpoint(folder)
        specs = parameter_specs(checkpoint.config)

        def sharding(name: str, specs=specs) -> NamedSharding:
            """A sharding of the axes after the first, alternating over both mesh axes, if those divide
            them.
            """
            shape = specs[name].shape
            axes = [
                axis if size % mesh.shape[axis] == 0 else None
                for size, axis in zip(reversed(shape), ("tensor", "data", None, None), strict=False)
                if axis is not None
            ]
            return NamedSharding(mesh, PartitionSpec(*[None] * (len(shape) - len(axes)), *reversed(axes)))

        whole = {name: np.asarray(array) for name, array in checkpoint.load().items()}
        parts = checkpoint.load(sharding)
        cut = 0
        for name, array in parts.items():
            assert array.sharding == sharding(name), name
            for shard in array.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), whole[name][shard.index], err_msg=name)
            cut += array.addressable_shards[0].data.size < array.size
        assert cut > len(parts) // 2, cut
    print("ok")


if __name__ == "__main__":
    main()
