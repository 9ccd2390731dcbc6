"""The inspector's figures as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from pallas_kernels.inspect.figures import Row, Step

_HEADINGS = (
    ("case", ""),
    ("steps", ""),
    ("bundles", "/step"),
    ("KiB", "/step"),
    ("compute", "÷memory"),
    ("of band-", "width"),
    ("overlap-", "ped"),
    ("bytes", "÷floor"),
    ("weights", "/cycle"),
    ("matrix", "peak"),
    ("busiest", "unit"),
    ("stall-", "ed"),
    ("VMEM", "MiB"),
    ("µs", "/call"),
)
_SLOTS = ("VLOAD:FILL", "VSTORE:SPILL")  # parts of other units, not units


def report(rows: Sequence[Row], sums: Sequence[Step], label: str) -> str:
    """All tables: a kernel table per chip, then the decode steps."""
    parts = [f"All figures: {label}."]
    for chip in dict.fromkeys(one.chip for one in rows):
        mine = [one for one in rows if one.chip == chip]
        parts.append(f"{chip}\n{_table(mine)}")
        if any(one.idle_cores for one in mine):
            parts.append("* one of the device's two cores has nothing to do")
    if sums:
        parts.append(_step_table(sums, label))
    return "\n\n".join(parts)


def _table(rows: Sequence[Row]) -> str:
    cells = [[top for top, _ in _HEADINGS], [below for _, below in _HEADINGS]]
    for one in rows:
        units = {unit: share for unit, share in one.use.items() if unit not in _SLOTS}
        busiest = max(units, key=lambda unit: units[unit], default="")
        cells.append(
            [
                f"{one.operation} {one.model} {one.case}{'*' if one.idle_cores else ''}",
                f"{one.grid_steps}",
                f"{one.bundles_per_step:,.0f}",
                f"{one.bytes_per_step / 1024:,.0f}",
                "" if one.compute_over_memory is None else f"{one.compute_over_memory:.2f}",
                f"{one.bandwidth_fraction:.2f}",
                f"{one.overlapped_fraction:.2f}",
                "" if one.bytes_over_floor is None else f"{one.bytes_over_floor:.3f}",
                f"{one.weights_per_cycle:,.0f}" if one.weights_per_cycle else "",
                f"{one.matrix_fraction:.2f}",
                f"{busiest} {units[busiest]:.2f}" if busiest else "",
                f"{one.stalled_fraction:.2f}",
                f"{one.vmem_bytes / 2**20:.1f}",
                f"{one.microseconds:,.1f}",
            ]
        )
    return _aligned(cells)


def _step_table(sums: Sequence[Step], label: str) -> str:
    names = list(dict.fromkeys(name for one in sums for name in one.parts))
    cells = [["decode step", *names, "sum", "bytes alone", "devices", "÷ devices", "tokens/s"]]
    for one in sums:
        cells.append(
            [
                f"{one.chip} {one.model} batch {one.batch}",
                *(f"{one.parts[name] / 1e3:.3f}" if name in one.parts else "" for name in names),
                f"{one.milliseconds:.2f}",
                f"{one.floor_milliseconds:.2f}",
                f"{one.devices}",
                f"{one.best_milliseconds:.2f}",
                f"{one.tokens_per_second:,.0f}",
            ]
        )
    lines = [
        f"Decode steps with {sums[0].context:,} keys of context, ms ({label})",
        _aligned(cells),
        "matmuls: attention's projections, router and unembedding in bf16, at full bandwidth by assumption",
        "others: plain operations around the kernels, by the compiler's own estimate; embedding, norms and "
        "sampling are not counted",
        "sum: on one device, whether or not the model fits; ÷ devices: at best, spread evenly over as many "
        "as hold weights and cache, without communication; tokens/s: of these",
    ]
    missing = sorted({name for one in sums for name in one.missing})
    return "\n".join([*lines, *(f"not counted, for lack of cases: {name}" for name in missing)])


def _aligned(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )
