"""Command-line options that several commands share."""

from __future__ import annotations

import argparse
import datetime
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gptoss_jax.commands.parsing import CommandError

if TYPE_CHECKING:
    from checkpoints import Checkpoint
    from gptoss_jax.engine import Engine, SamplingParams
    from gptoss_jax.tools import Tool
    from harmony import HarmonyEncoding

EFFORTS = ("low", "medium", "high")
DTYPES = ("float32", "bfloat16")
KV_DTYPES = ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""The same as in `gptoss_jax.engine.options`, which is slow to import."""

AXES = ("data", "expert", "tensor")


def add_model_options(
    parser: argparse.ArgumentParser, *, slots: bool = False, checkpoint: bool = True
) -> None:
    """Adds the options for the model and the engine; `--slots` and `--checkpoint` only if they are True."""
    group = parser.add_argument_group("model")
    if checkpoint:
        group.add_argument(
            "--checkpoint",
            default="tiny",
            metavar="DIR",
            help='a checkpoint folder, or "tiny" for the one in the package (default)',
        )
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        metavar="DTYPE",
        help="what the model computes in: float32 (default on a CPU) or bfloat16 (default elsewhere)",
    )
    group.add_argument(
        "--max-length",
        type=whole_number(2),
        metavar="N",
        help="the longest sequence, prompt and completion together, in tokens (default: as long as memory "
        "allows, at most the model's context; on a CPU at most 8192)",
    )
    group.add_argument(
        "--kv-dtype",
        choices=KV_DTYPES,
        metavar="DTYPE",
        help=f"the dtype of cached keys and values: {', '.join(KV_DTYPES)} (default: as --dtype); 8 bits "
        "need less memory and are less exact",
    )
    group.add_argument(
        "--memory",
        type=_number("a number of GiB above 0", lambda value: 0 < value < 2**20),
        metavar="GIB",
        help="how much of each device's memory may be used, in GiB (default: all of it)",
    )
    group.add_argument(
        "--mesh",
        type=_mesh,
        metavar="AXES",
        help="how the model is split over the devices, such as data=1,expert=2,tensor=4 (default: chosen for "
        "the model and the number of devices)",
    )
    group.add_argument(
        "--distributed",
        type=_processes,
        metavar="WHERE",
        help="run the model together with other processes, which are started with the same command: "
        'COORDINATOR:PORT,COUNT,INDEX, or "auto" if the cluster tells each process its place',
    )
    if slots:
        group.add_argument(
            "--slots",
            type=whole_number(1),
            metavar="N",
            help="sequences that decode at the same time (default: 32)",
        )


def add_sampling_options(parser: argparse.ArgumentParser, *, seed: bool = True) -> None:
    """Adds the options for sampling, which a request can override, and `--date`.

    `seed` says whether there is a `--seed`. Without one, no two runs draw the same.
    """
    group = parser.add_argument_group("sampling, unless a request sets it")
    group.add_argument(
        "--temperature",
        type=_number("a number from 0 to 2", lambda value: 0 <= value <= 2),
        default=1.0,
        metavar="T",
        help="divides the logits; 0 always takes the likeliest token (default: 1)",
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
    group.add_argument(
        "--effort",
        choices=EFFORTS,
        metavar="EFFORT",
        help="how much the model reasons: low, medium or high (default: medium)",
    )
    if seed:
        group.add_argument(
            "--seed", type=int, default=0, metavar="N", help="seed of the random numbers (default: 0)"
        )
    parser.add_argument(
        "--date",
        type=_date,
        metavar="YYYY-MM-DD",
        help="the current date in the system message (default: today)",
    )


def add_header_guard_option(parser: argparse._ActionsContainer) -> None:
    """Adds the option that leaves headers free, to a parser or to a group of its options."""
    parser.add_argument(
        "--no-header-guard",
        dest="header_guard",
        action="store_false",
        help="let the model write any header (default: it can name only the tools and channels that the "
        "request declares)",
    )


TOOL_FORMS = "python, browser=FOLDER or browser=brave"
"""The forms of a tool's specification. Here, so that help loads no tools."""


def add_tool_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the built-in tools, which run beside the model."""
    group = parser.add_argument_group("built-in tools", "off unless given; docs/tools.md says what they risk")
    group.add_argument(
        "--tool",
        action="append",
        default=[],
        metavar="TOOL",
        help=f"a tool that the model may use: {TOOL_FORMS}; may be given several times",
    )
    group.add_argument(
        "--tool-rounds",
        type=whole_number(1),
        default=50,
        metavar="N",
        help="how often the model may use the tools for one answer (default: 50)",
    )
    group.add_argument(
        "--python-seconds",
        type=_number("a number of seconds above 0", lambda value: 0 < value < 2**20),
        metavar="S",
        help="how long a call of Python may run (default: 120)",
    )
    group.add_argument(
        "--python-memory-mib",
        type=whole_number(256),
        metavar="N",
        help="the memory that a Python session may use, in MiB (default: 2048)",
    )


def tools_of(options: argparse.Namespace) -> list[Tool]:
    """The tools from the options of `add_tool_options`; nothing of them is started yet.

    Raises:
        CommandError: a tool is unknown, given twice, or cannot be made; or a package is missing.
    """
    from gptoss_jax.tools.registry import ToolSettings, ToolSetupError, open_tool
    from harmony.errors import shown

    mib = options.python_memory_mib
    settings = ToolSettings(options.python_seconds, None if mib is None else mib << 20)
    tools: dict[str, Tool] = {}
    for given in options.tool:
        try:
            tool = open_tool(given, settings)
        except ToolSetupError as error:
            raise CommandError(f"--tool: {error}") from None
        except KeyError:
            raise CommandError(f"--tool: there is no tool {shown(given)}: it must be {TOOL_FORMS}") from None
        except ImportError as error:
            raise CommandError(
                f"--tool {given} needs the package {error.name}: pip install 'gptoss-jax[tools]'"
            ) from None
        if tool.name in tools:
            raise CommandError(f"--tool {given}: there is a {tool.name} already, and can be only one")
        tools[tool.name] = tool
    return list(tools.values())


def sampling_of(options: argparse.Namespace) -> SamplingParams:
    """The sampling parameters from the options of `add_sampling_options`, without the seed."""
    from gptoss_jax.engine.request import SamplingParams

    return SamplingParams(temperature=options.temperature, top_p=options.top_p, max_tokens=options.max_tokens)


def dtype_name(options: argparse.Namespace) -> str:
    """The name given with `--dtype`; else float32 on CPUs and bfloat16 on other devices."""
    import jax

    name: str | None = options.dtype
    return name or ("float32" if jax.default_backend() == "cpu" else "bfloat16")


def check_checkpoint(path: str) -> Checkpoint:
    """Opens a checkpoint without loading its weights, and without importing jax.

    Raises:
        checkpoints.config.CheckpointError: the checkpoint is missing or broken.
    """
    from checkpoints import open_checkpoint

    return open_checkpoint(path)


_HEARTBEAT_SECONDS = 40
"""How long a process of several may be silent before jax ends the others: a host is lost within a minute."""


def start_jax(distributed: Mapping[str, Any] | None = None) -> None:
    """Initialises jax: other processes, compilation cache, devices. Call it before anything else of jax.

    `distributed`: the arguments of `jax.distributed.initialize`; None for a single process.

    Raises:
        CommandError: jax has no device of the requested platform, or the other processes cannot be reached.
    """
    import jax

    from gptoss_jax.compilation_cache import keep_compiled

    if distributed is not None:
        try:
            jax.distributed.initialize(**distributed, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
        except (RuntimeError, ValueError) as error:
            raise CommandError(f"--distributed: cannot connect to the other processes: {error}") from None
    keep_compiled()
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # jax asserts that one of the named platforms exists
        platforms = os.environ.get("JAX_PLATFORMS") or jax.config.jax_platforms
        reason = f": {error}" if str(error) else ""
        raise CommandError(f"JAX_PLATFORMS is {platforms!r}: jax finds no such device here{reason}") from None


def load_engine(
    options: argparse.Namespace, slots: int | None = None, *, announce: bool = False
) -> tuple[Engine, HarmonyEncoding, Checkpoint]:
    """Loads the model by the options of `add_model_options`. Returns engine, encoding and checkpoint.

    Args:
        options: the parsed options.
        slots: sequences that decode at the same time; None for the default.
        announce: True prints the mesh and the memory plan on standard error, in the first process only.

    Raises:
        CommandError: jax finds no device, or cannot reach the other processes.
        checkpoints.config.CheckpointError: the checkpoint is missing or broken, or does not fit its
            vocabulary.
        gptoss_jax.sizes.ShardingError: the mesh does not fit the devices or the model.
        gptoss_jax.engine.RequestError: options contradict each other.
        gptoss_jax.engine.memory.EngineMemoryError: the engine does not fit in the devices' memory.
    """
    from checkpoints import open_checkpoint
    from gptoss_jax.llm.loading import load_engine as load
    from gptoss_jax.sharding import make_mesh, shape_of
    from gptoss_jax.sizes import MeshShape

    start_jax(options.distributed)
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
    if announce and engine.is_leader:
        kind = mesh.devices.flat[0].device_kind
        devices = f"{mesh.size} device{'s' if mesh.size > 1 else ''} ({kind})"
        print(f"gptoss-jax: {devices}, mesh: {shape_of(mesh)}. {engine.plan}", file=sys.stderr)
    return engine, encoding, checkpoint


def whole_number(lowest: int) -> Callable[[str], int]:
    """Returns an argparse type: a whole number, at least `lowest`."""

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
    """Parses `--distributed` into the arguments of `jax.distributed.initialize`."""
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
