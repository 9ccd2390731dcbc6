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
                f"{one.compute_over_memory:.2f}",
                f"{one.bandwidth_fraction:.2f}",
                f"{one.overlapped_fraction:.2f}",
                f"{one.bytes_over_floor:.3f}",
                f"{one.weights_per_cycle:,.0f}" if one.weights_per_cycle else "",
                f"{one.matrix_fraction:.2f}",
                f"{busiest} {units[busiest]:.2f}" if busiest else "",
                f"{one.vmem_bytes / 2**20:.1f}",
                f"{one.microseconds:,.1f}",
            ]
        )
    return _aligned(cells)


def _step_table(sums: Sequence[Step], label: str) -> str:
    lines = [f"Decode steps, {sums[0].context:,} keys of context ({label})"]
    for one in sums:
        spread = (
            "" if one.devices == 1 else f", on {one.devices} devices at best {one.best_milliseconds:.2f} ms"
        )
        lines.append(
            f"{one.chip} {one.model} batch {one.batch}: {one.milliseconds:.2f} ms on one device{spread}, "
            f"{one.tokens_per_second:,.0f} tokens/s; bytes alone {one.floor_milliseconds:.2f} ms"
        )
        lines += [f"    {micros / 1e3:8.3f} ms  {name}" for name, micros in one.parts.items()]
        lines += [f"    not counted: {name}" for name in one.missing]
    return "\n".join(lines)


def _aligned(cells: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )
