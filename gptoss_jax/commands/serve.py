"""`gptoss-jax serve`: the engine behind OpenAI's two APIs."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import os
import socket
import sys
from pathlib import Path

from gptoss_jax.commands.batch import HISTORIES
from gptoss_jax.commands.data_options import add_data_options, batch_settings_of, engine_settings_of
from gptoss_jax.commands.options import (
    add_header_guard_option,
    add_model_options,
    add_sampling_options,
    add_tool_options,
    check_checkpoint,
    load_engine,
    sampling_of,
    tools_of,
    whole_number,
)
from gptoss_jax.commands.parsing import CommandError

KEY_VARIABLE = "GPTOSS_JAX_API_KEY"
ENCRYPTION_VARIABLE = "GPTOSS_JAX_ENCRYPTION_KEY"
REASONING_SHARE = 0.75
"""The part of what fits behind a prompt that reasoning may take: an answer always has room."""
TOOL_GRACE_SECONDS = 30
"""How long a tool may take beyond its own limit, to start and to end."""
REASONING_FIELDS = ("reasoning", "reasoning_content")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "serve",
        help="answer requests over HTTP",
        description="Answer requests of OpenAI's Responses and Chat Completions APIs over HTTP, until "
        "SIGTERM or Ctrl-C.",
        allow_abbrev=False,
    )
    http = parser.add_argument_group("HTTP")
    http.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="where to listen (default: 127.0.0.1, which only this machine reaches)",
    )
    http.add_argument(
        "--port", type=whole_number(0), default=8000, metavar="N", help="default: 8000; 0 is any free one"
    )
    http.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="API keys, one on each line, of which a request must carry one (default: that of "
        f"${KEY_VARIABLE}; without either, everybody is let in)",
    )
    http.add_argument(
        "--max-body-mib",
        type=whole_number(1),
        default=16,
        metavar="N",
        help="the longest body of a request, in MiB (default: 16)",
    )
    http.add_argument(
        "--max-samples",
        type=whole_number(1),
        default=2048,
        metavar="N",
        help="answers that are at work or wait at the same time; what comes beyond is told to try again "
        "later (default: 2048)",
    )
    http.add_argument(
        "--max-seconds",
        type=whole_number(1),
        metavar="N",
        help="how long a request may wait and run; then its answer ends as it is (default: no limit)",
    )
    http.add_argument(
        "--drain-seconds",
        type=whole_number(0),
        default=30,
        metavar="N",
        help="how long requests at work may go on after SIGTERM (default: 30)",
    )
    http.add_argument(
        "--no-page", dest="page", action="store_false", help="have no page at / to chat with in a browser"
    )
    answers = parser.add_argument_group("answers")
    answers.add_argument(
        "--model-name", metavar="NAME", help="what the model is called (default: its folder)"
    )
    answers.add_argument(
        "--hide-cot",
        action="store_true",
        help="the chain of thought never leaves the server as text, whatever requests say",
    )
    answers.add_argument(
        "--reasoning-field",
        choices=REASONING_FIELDS,
        default="reasoning",
        metavar="FIELD",
        help="the field of chat messages that has the chain of thought: reasoning (default) or "
        "reasoning_content",
    )
    answers.add_argument(
        "--reasoning-budget",
        type=whole_number(0),
        metavar="N",
        help="the most tokens of reasoning where a request does not say; 0 for no limit (default: three "
        "quarters of what fits behind the prompt)",
    )
    answers.add_argument(
        "--summarizer",
        metavar="WHAT",
        help="what makes summaries of the chain of thought for requests that ask for them: module:function, "
        "which is called with the text and gives its summary; or model, the model itself (default: no "
        "summaries)",
    )
    answers.add_argument(
        "--summarizer-seconds",
        type=whole_number(1),
        default=30,
        metavar="N",
        help="the most that making a summary may take, in seconds; it stays empty then (default: 30)",
    )
    add_header_guard_option(answers)
    answers.add_argument(
        "--history",
        choices=HISTORIES,
        default="guide",
        metavar="WHAT",
        help="how much earlier reasoning stays in prompts: guide, what the model was trained on (default); "
        "compatible, what openai-harmony does; or all",
    )
    kept = parser.add_argument_group("stored responses")
    kept.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="keep responses in this SQLite file, made if it is not there, so that requests can go on from "
        "them (default: nothing is kept)",
    )
    kept.add_argument(
        "--store-max-mib",
        type=whole_number(1),
        default=1024,
        metavar="N",
        help="the most that is kept, in MiB; the oldest responses make room (default: 1024)",
    )
    kept.add_argument(
        "--store-days",
        type=whole_number(1),
        default=30,
        metavar="N",
        help="how long a response is kept, in days (default: 30)",
    )
    add_data_options(parser)
    add_model_options(parser, slots=True)
    add_sampling_options(parser, seed=False)
    add_tool_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    try:
        from gptoss_jax.batch_api import BatchApi
        from gptoss_jax.serve import ServerSettings, create_app, run_server
        from gptoss_jax.serve.sealing import Sealer
        from gptoss_jax.serve.store import ResponseStore
        from gptoss_jax.serve.summaries import load_summarizer
        from gptoss_jax.serve.tool_loop import DEFAULT_LIMITS, ToolLimits
    except ImportError as error:
        raise CommandError(f"serve needs the package {error.name}: pip install 'gptoss-jax[serve]'") from None
    if options.port > 65535:
        raise CommandError(f"--port is {options.port}: it must be from 0 to 65535")
    keys = _keys(options.api_key_file)
    try:
        sealer = Sealer(os.environ.get(ENCRYPTION_VARIABLE) or None)
    except ValueError as error:
        raise CommandError(f"{ENCRYPTION_VARIABLE} is no key: {error}") from None
    tools = tools_of(options)
    checkpoint = check_checkpoint(options.checkpoint)
    name = options.model_name or (
        options.checkpoint if options.checkpoint == "tiny" else checkpoint.path.name
    )
    summarizer = options.summarizer
    if summarizer not in (None, "model"):
        try:
            summarizer = load_summarizer(summarizer)
        except ValueError as error:
            raise CommandError(f"--summarizer is {error}") from None
    settings = ServerSettings(
        model=name,
        sampling=dataclasses.replace(sampling_of(options), reasoning_budget=options.reasoning_budget or None),
        reasoning_share=REASONING_SHARE if options.reasoning_budget is None else None,
        effort=options.effort,
        date=options.date,
        history=options.history,
        header_guard=options.header_guard,
        hide_reasoning=options.hide_cot,
        reasoning_field=options.reasoning_field,
        api_keys=keys,
        page=options.page,
        summarizer=summarizer,
        summary_seconds=options.summarizer_seconds,
        max_body_bytes=options.max_body_mib << 20,
        max_samples=options.max_samples,
        max_seconds=options.max_seconds,
        tool_limits=ToolLimits(
            calls=options.tool_rounds,
            seconds=max(DEFAULT_LIMITS.seconds, TOOL_GRACE_SECONDS + (options.python_seconds or 0)),
        ),
    )
    store = None
    if options.store is not None:
        store = ResponseStore(
            options.store,
            max_bytes=options.store_max_mib << 20,
            max_age_seconds=options.store_days * 86400.0,
        )

    def open_batches() -> BatchApi:
        return BatchApi(batch_settings_of(options), settings, engine_settings_of(options, checkpoint))

    listening = batches = None
    if options.distributed is None:  # else only the first process listens, which is known later
        batches = open_batches()
        listening = _listen(options)
    engine, encoding, _ = load_engine(options, options.slots, announce=True)
    if not engine.is_leader:
        with engine:
            engine.follow()
        return 0
    if listening is None or batches is None:
        batches = open_batches()
        listening = _listen(options)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    app = create_app(
        engine,
        encoding,
        settings,
        statistics=engine.statistics,
        occupancy=engine.occupancy,
        store=store,
        sealer=sealer,
        tools=tools,
        extensions=[batches],
    )
    print(f"gptoss-jax: {name} on http://{shown}:{port}/v1", file=sys.stderr, flush=True)
    if options.page:
        print(f"gptoss-jax: a page to chat with it: http://{shown}:{port}/", file=sys.stderr, flush=True)
    if not keys and not _is_loopback(host):
        print(
            f"gptoss-jax: {host} is reached from other machines, and everybody is let in: give an API key",
            file=sys.stderr,
        )
    failure = run_server(app, listening, drain_seconds=options.drain_seconds)
    if failure is not None:
        print(f"gptoss-jax: {failure}", file=sys.stderr)
        return 1
    return 0


def _listen(options: argparse.Namespace) -> socket.socket:
    from gptoss_jax.serve.server import listen

    try:
        return listen(options.host, options.port)
    except OSError as error:
        reason = error.strerror or error
        raise CommandError(f"cannot listen on {options.host} port {options.port}: {reason}") from None


def _keys(path: Path | None) -> tuple[str, ...]:
    """The API keys of the file, or else of the environment."""
    if path is None:
        key = os.environ.get(KEY_VARIABLE, "").strip()
        return (key,) if key else ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise CommandError(f"{path} is not UTF-8: it must have API keys, one on each line") from None
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise CommandError(f"{path} is empty: it must have API keys, one on each line")
    return keys


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
