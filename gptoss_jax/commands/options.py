"""Options that several commands share, and what they mean."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoints import Checkpoint
    from gptoss_jax.engine import Engine, SamplingParams
    from harmony import HarmonyEncoding

EFFORTS = ("low", "medium", "high")
KV_DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""As in `gptoss_jax.engine.options`, which takes long to import."""

AXES = ("data", "expert", "tensor")


def add_model_options(parser: argparse.ArgumentParser, *, slots: bool = False) -> None:
    """Which model, and how it is run; with `slots` also how many requests side by side."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "--checkpoint",
        default="tiny",
        metavar="DIR",
        help='a checkpoint folder, or "tiny" for the one in the package (default)',
    )
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="what the model computes in (default: float32 on a CPU, bfloat16 elsewhere)",
    )
    group.add_argument(
        "--max-length",
        type=whole_number(2),
        metavar="N",
        help="the longest sequence, prompt and completion together, in tokens (default: 2048)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=KV_DTYPES,
        help="what keys and values are kept in (default: as --dtype); 8 bits hold more, less exactly",
    )
    group.add_argument(
        "--memory",
        type=_number("a number of GiB above 0", lambda value: 0 < value < 2**20),
        metavar="GIB",
        help="what may be used of each device's memory, in GiB (default: what it has)",
    )
    group.add_argument(
        "--mesh",
        type=_mesh,
        metavar="AXES",
        help="how the model lies on the devices, such as data=1,expert=2,tensor=4 (default: what suits it)",
    )
    group.add_argument(
        "--distributed",
        type=_processes,
        metavar="WHERE",
        help="this is one of several processes that run the model together, all started with the same "
        'command: "auto" where the cluster says which, else COORDINATOR:PORT,COUNT,INDEX',
    )
    if slots:
        group.add_argument(
            "--slots",
            type=whole_number(1),
            metavar="N",
            help="requests that decode side by side (default: 32)",
        )


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen where the request does not say."""
    group = parser.add_argument_group("sampling, where a request does not say")
    group.add_argument(
        "--temperature",
        type=_number("a number from 0 to 2", lambda value: 0 <= value <= 2),
        default=1.0,
        metavar="T",
        help="0 takes the likeliest token every time (default: 1)",
    )
    group.add_argument(
        "--top-p",
        type=_number("a number above 0 and at most 1", lambda value: 0 < value <= 1),
        default=1.0,
        metavar="P",
        help="sample among the likeliest tokens that together reach this probability (default: 1)",
    )
    group.add_argument(
        "--max-tokens",
        type=whole_number(1),
        metavar="N",
        help="the most tokens to generate (default: as many as fit)",
    )
    group.add_argument("--effort", choices=EFFORTS, help="how much the model reasons (default: medium)")
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default: 0)")
    parser.add_argument(
        "--date",
        type=_date,
        metavar="YYYY-MM-DD",
        help="the current date that the model is told (default: today)",
    )


def sampling_of(options: argparse.Namespace) -> SamplingParams:
    """The sampling that the options of `add_sampling_options` ask for, without a seed."""
    from gptoss_jax.engine import SamplingParams

    return SamplingParams(temperature=options.temperature, top_p=options.top_p, max_tokens=options.max_tokens)


def dtype_name(options: argparse.Namespace) -> str:
    """`--dtype`, or what suits the device."""
    import jax

    name: str | None = options.dtype
    return name or ("float32" if jax.default_backend() == "cpu" else "bfloat16")


def load_engine(
    options: argparse.Namespace, slots: int | None = None, *, announce: bool = False
) -> tuple[Engine, HarmonyEncoding, Checkpoint]:
    """The engine that the options of `add_model_options` ask for, its encoding and its checkpoint.

    With `announce`, the process that speaks says on standard error where the model lies, and what each device
    keeps in memory.

    Raises:
        checkpoints.config.CheckpointError: the checkpoint is none, or does not fit its vocabulary.
        gptoss_jax.sharding.ShardingError: the mesh does not fit the devices or the model.
        gptoss_jax.engine.RequestError: an option does not fit the others.
        gptoss_jax.engine.memory.EngineMemoryError: it does not fit in the devices' memory.
    """
    import jax

    from checkpoints import open_checkpoint
    from gptoss_jax.compilation_cache import keep_compiled
    from gptoss_jax.llm.loading import load_engine as load
    from gptoss_jax.sharding import MeshShape, make_mesh, shape_of

    if options.distributed is not None:
        jax.distributed.initialize(**options.distributed)
    keep_compiled()
    config = open_checkpoint(options.checkpoint).config
    mesh = make_mesh(config, MeshShape(**options.mesh) if options.mesh else None)
    engine, encoding, checkpoint = load(
        options.checkpoint,
        dtype=dtype_name(options),
        mesh=mesh,
        slots=slots,
        max_length=options.max_length,
        kv_dtype=options.kv_dtype,
        memory=None if options.memory is None else max(1, int(options.memory * 2**30)),
    )
    if announce and engine.speaks:
        kind = mesh.devices.flat[0].device_kind
        devices = f"{mesh.size} device{'s' if mesh.size > 1 else ''} ({kind})"
        print(f"gptoss-jax: {devices}, mesh: {shape_of(mesh)}. {engine.plan}", file=sys.stderr)
    return engine, encoding, checkpoint


def whole_number(lowest: int) -> Callable[[str], int]:
    """An argparse type: a whole number from `lowest`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be a whole number from {lowest}, not {text!r}")
        return value

    return parse


def _number(expected: str, allowed: Callable[[float], bool]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not allowed(value):
            raise argparse.ArgumentTypeError(f"must be {expected}, not {text!r}")
        return value

    return parse


def _mesh(text: str) -> dict[str, int]:
    sizes = {}
    for part in text.split(","):
        name, _, size = part.strip().partition("=")
        if name not in AXES or name in sizes or not re.fullmatch("[1-9][0-9]{0,5}", size):
            raise argparse.ArgumentTypeError(f"must be like data=1,expert=2,tensor=4, not {text!r}")
        sizes[name] = int(size)
    return sizes


def _processes(text: str) -> dict[str, Any]:
    """The arguments of `jax.distributed.initialize`."""
    if text == "auto":
        return {}
    found = re.fullmatch(r"([^,]+:[0-9]+),([1-9][0-9]*),([0-9]+)", text)
    if found is None or int(found[3]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"must be auto or COORDINATOR:PORT,COUNT,INDEX, not {text!r}")
    return {"coordinator_address": found[1], "num_processes": int(found[2]), "process_id": int(found[3])}


def _date(text: str) -> str:
    try:
        return datetime.datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day as YYYY-MM-DD, not {text!r}") from None
