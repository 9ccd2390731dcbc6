"""The numbers in a checkpoint: NaN, infinities, empty tensors; and which experts need wide scales on TPUs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from checkpoints import Checkpoint
from checkpoints.config import MXFP4_BLOCK
from checkpoints.parameters import BFLOAT16, ParameterSpec, parameter_specs
from gptoss_jax.verify.rows import Check, Outcome, reading
from pallas_kernels.mxfp4 import tiled

_CHUNK_ELEMENTS = 1 << 24
"""Numbers that are in memory at the same time."""

NAN_SCALE = 255
"""The scale that MXFP4 reserves for NaN."""

Progress = Callable[[int], object]
"""Is told how many bytes were read."""


def bytes_of(checkpoint: Checkpoint) -> int:
    """The size of all weights."""
    return sum(spec.num_bytes for spec in parameter_specs(checkpoint.config).values())


def numbers_check(checkpoint: Checkpoint) -> Check:
    """All weights outside the experts' matrices, and the experts' biases."""
    return Check(
        "weights",
        "every weight outside the experts is a finite number, and no tensor is empty",
        "the weights are damaged: download them again, and compare their hashes with the source's",
        lambda: _numbers(checkpoint),
    )


def _numbers(checkpoint: Checkpoint) -> Outcome:
    specs = {n: spec for n, spec in parameter_specs(checkpoint.config).items() if spec.dtype == BFLOAT16}
    with reading("weights", sum(spec.num_bytes for spec in specs.values())) as bar:
        return _numbers_of(checkpoint, specs, bar.update)


def _numbers_of(checkpoint: Checkpoint, specs: Mapping[str, ParameterSpec], progress: Progress) -> Outcome:
    bad: list[str] = []
    largest, largest_name, count = 0.0, "", len(specs)
    for name, spec in specs.items():
        top = 0.0
        for part in _parts(checkpoint, name, spec.shape):
            # Their bits are ordered as the numbers that they are.
            magnitudes: np.ndarray = np.bitwise_and(part.view(np.uint16), 0x7FFF)
            highest = int(magnitudes.max())
            if highest >= 0x7F80:
                wrong = int((magnitudes >= 0x7F80).sum())
                bad.append(f"{name} has {wrong:,} NaN or infinite of {part.size:,}")
                break
            top = max(top, float(np.uint16(highest).reshape(1).view(BFLOAT16)[0]))
            progress(part.nbytes)
        else:
            if top == 0 and not name.endswith(("bias", "sinks")):
                bad.append(f"{name} is zero throughout")
            if top > largest:
                largest, largest_name = top, name
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        return Outcome(False, "; ".join(bad[:3]) + more, "finite, not all zero", {"wrong": bad})
    return Outcome(
        True,
        f"{count} tensors are finite; the largest magnitude is {largest:.4g}, in {largest_name}",
        "finite, not all zero",
        {"tensors": count, "largest": largest, "largest_in": largest_name},
    )


def _parts(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    rows = max(1, _CHUNK_ELEMENTS // max(1, int(np.prod(shape[1:]))))
    for start in range(0, shape[0], rows):
        yield checkpoint.read(name, slice(start, start + rows))


@dataclasses.dataclass(frozen=True)
class LayerScales:
    """The scales of one layer's experts, gate_up and down together.

    lowest, highest: the smallest and the largest scale byte. span: the largest difference between two scales
    of a column; of columns that decide nothing, blocks of zeros count too. wide, negative_zero: expert maps
    (one expert's gate_up or down) that need wide scales in every form; that need the form `fp4-` on 7x.
    wide_projections: projections, of 2, that a TPU stores with wide scales: one such map is enough.
    nan: scale bytes of 255.
    """

    lowest: int
    highest: int
    span: int
    wide: int
    negative_zero: int
    wide_projections: int
    nan: int


def scales_check(checkpoint: Checkpoint) -> Check:
    """How many expert maps need the wide form of scales."""
    return Check(
        "expert scales",
        "scales are in MXFP4's range; the count says how many expert maps TPU kernels read in the slow form",
        "a scale byte is 255, which MXFP4 reserves for NaN: the experts' weights are damaged",
        lambda: _scales(checkpoint),
    )


def _scales(checkpoint: Checkpoint) -> Outcome:
    config, specs = checkpoint.config, parameter_specs(checkpoint.config)
    total = sum(spec.num_bytes for name, spec in specs.items() if name.endswith(".scales"))
    with reading("expert scales", total) as bar:
        layers = [layer_scales(checkpoint, layer, bar.update) for layer in range(config.num_layers)]
    maps = 2 * config.num_experts * config.num_layers
    wide, slow = sum(one.wide for one in layers), sum(one.wide_projections for one in layers)
    negative, nan = sum(one.negative_zero for one in layers), sum(one.nan for one in layers)
    measured = (
        f"{wide} of {maps:,} expert maps need wide scales, which makes {slow} of {2 * len(layers)} "
        f"projections wide; {negative} need fp4- on 7x; scales {min(one.lowest for one in layers)} to "
        f"{max(one.highest for one in layers)}, largest span of a column {max(one.span for one in layers)}"
    )
    if nan:
        measured = f"{nan:,} scale bytes are {NAN_SCALE}; {measured}"
    details = {
        "expert_maps": maps,
        "wide": wide,
        "wide_projections": slow,
        "negative_zero": negative,
        "layers": [dataclasses.asdict(one) for one in layers],
    }
    return Outcome(nan == 0, measured, f"no scale of {NAN_SCALE}", details, _by_layer(layers))


def _by_layer(layers: list[LayerScales]) -> list[str]:
    """A line for each run of equal layers."""
    lines = []
    for one, run in itertools.groupby(enumerate(layers), lambda numbered: numbered[1]):
        numbers = [number for number, _ in run]
        where = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        lines.append(
            f"layer {where}: scales {one.lowest} to {one.highest}, span {one.span}, wide maps {one.wide}, "
            f"fp4- maps {one.negative_zero}"
        )
    return lines


def layer_scales(checkpoint: Checkpoint, layer: int, progress: Progress = lambda _: None) -> LayerScales:
    """Reads a layer's scales, and the codes only of experts that may need the wide form."""
    lowest, highest, span, wide, negative, projections, nan = 255, 0, 0, 0, 0, 0, 0
    for projection in ("gate_up", "down"):
        name = f"layers.{layer}.moe.experts.{projection}"
        scales = checkpoint.read(f"{name}.scales")
        progress(scales.nbytes)
        lowest, highest = min(lowest, int(scales.min())), max(highest, int(scales.max()))
        nan += int((scales == NAN_SCALE).sum())
        spans = (scales.max(axis=-1).astype(np.int32) - scales.min(axis=-1)).reshape(len(scales), -1)
        in_projection = 0
        for expert, widest in enumerate(spans.max(axis=-1).tolist()):
            one = scales[expert]
            safe = one.min() >= _SAFE_LOWEST and one.max() < NAN_SCALE
            if safe and widest <= tiled.WIDEST_SPANS["fp4"]:
                span = max(span, widest)
                continue  # narrow in every form, whatever the codes are
            blocks = checkpoint.read(f"{name}.blocks", slice(expert, expert + 1))[0]
            span = max(span, _used_span(blocks, one))
            if not bool(tiled.fits_narrow(blocks, one, "e5m2")):
                in_projection += 1
            elif not bool(tiled.fits_narrow(blocks, one, "fp4")):
                negative += 1
        wide += in_projection
        projections += in_projection > 0
    return LayerScales(lowest, highest, span, wide, negative, projections, nan)


_SAFE_LOWEST = 32
"""A scale from which on no column is too small for narrow scales; those of trained weights are far above."""


def _used_span(blocks: np.ndarray, scales: np.ndarray) -> int:
    """The largest difference between two scales of a column [..., N], blocks of zeros left out."""
    used = (blocks.reshape(*scales.shape, MXFP4_BLOCK // 2) & 0x77 != 0).any(axis=-1)
    wide = scales.astype(np.int32)
    spans = np.where(used, wide, -1).max(axis=-1) - np.where(used, wide, 256).min(axis=-1)
    return max(0, int(spans.max(initial=0)))
