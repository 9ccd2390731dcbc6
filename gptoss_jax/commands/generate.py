"""`gptoss-jax generate`: answers one prompt."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sys
from pathlib import Path
from typing import Any

from gptoss_jax.commands.options import (
    add_header_guard_option,
    add_model_options,
    add_sampling_options,
    check_checkpoint,
    load_engine,
    sampling_of,
)
from gptoss_jax.commands.parsing import CommandError


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command and its options."""
    parser = commands.add_parser(
        "generate",
        help="answer one prompt",
        description="Answer one prompt. On a terminal the reasoning is shown dimmed above the answer; "
        "elsewhere only the answer is printed.",
        allow_abbrev=False,
    )
    parser.add_argument("text", help="the user's message; - to read it from standard input")
    parser.add_argument("--instructions", metavar="TEXT", help="instructions of the developer message")
    parser.add_argument(
        "--schema",
        type=Path,
        metavar="FILE.json",
        help="a JSON Schema for the answer: the model sees it, and a grammar enforces it",
    )
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    add_model_options(parser)
    add_sampling_options(parser)
    add_header_guard_option(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Runs the command."""
    text = _read_text() if options.text == "-" else options.text
    if not text.strip():
        raise CommandError("the text is empty: give the user's message")
    messages = [{"role": "user", "content": text}]
    if options.instructions:
        messages.insert(0, {"role": "developer", "content": options.instructions})
    body: dict[str, Any] = {"messages": messages, "seed": options.seed}
    if options.schema:
        form = {"name": "answer", "strict": True, "schema": _read_schema(options.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    check_checkpoint(options.checkpoint)
    sampling = sampling_of(options)

    from gptoss_jax.answers import read_sample
    from gptoss_jax.batch.answers import answer_row
    from gptoss_jax.batch.rows import Envelope, RowContext, prepare

    engine, encoding, _ = load_engine(options, slots=1)
    with engine:
        if not engine.is_leader:
            engine.follow()
            return 0
        context = RowContext(
            engine=engine,
            encoding=encoding,
            sampling=sampling,
            seed=options.seed,
            effort=options.effort,
            date=options.date or datetime.date.today().isoformat(),
            header_guard=options.header_guard,
        )
        envelope = Envelope(line=1, id="prompt", shape="plain")
        prepared = prepare(body, envelope, context)
        samples = [read_sample(completion, encoding) for completion in engine.run([prepared.request])]
    row: dict[str, Any] = answer_row(
        envelope, prepared, samples, encoding, model=options.checkpoint, run="generate"
    )
    if options.json:
        del row["id"], row["error"]
        print(json.dumps(row, ensure_ascii=False, indent=2))
    else:
        _show(row)
    if row["finish_reason"] == "length":
        generated = row["usage"]["completion_tokens"]
        print(f"gptoss-jax: the answer was cut after {generated} tokens", file=sys.stderr)
    return 0 if row["text"] or row["tool_calls"] else 1


def _read_text() -> str:
    """Reads all of standard input."""
    if sys.stdin is None:
        raise CommandError("cannot read standard input: it is closed")
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"standard input is not UTF-8: {error.reason} at byte {error.start + 1}") from None


def _read_schema(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not valid JSON: {error}") from None


def _show(row: dict[str, Any]) -> None:
    if sys.stdout.isatty() and row["reasoning"]:
        dim, plain = ("", "") if os.environ.get("NO_COLOR") else ("\x1b[2m", "\x1b[0m")
        print(f"{dim}{row['reasoning']}{plain}\n")
    if row["text"]:
        print(row["text"])
