"""A run of an evaluation: every attempt is answered and graded exactly once, whenever the run is killed.

The rows are JSONL, one for each attempt, in a `gptoss_jax.batch.output.OutputFile`: it says how a run is
continued. A row's "line" is the attempt's place in the harness' order, from 1.

Where a model grades, the answers are kept in a file of their own first, and graded when all are there. So no
answer is asked for again because a grader fails.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tqdm import tqdm

from gptoss_jax.batch.output import OutputFile
from gptoss_jax.batch.rows import row_seed
from gptoss_jax.evals.samplers import AskError
from gptoss_jax.evals.types import Answer, Ask, Attempt, Evaluation, EvaluationError, Grade, GradingError

if TYPE_CHECKING:
    from harmony.json_types import Json, JsonObject

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Run:
    """The files of a run, opened and checked. Use it as a context manager.

    Args:
        evaluation: what is evaluated.
        output: the file of rows.
        attempts: how often each problem is tried.
        fields: the fields of every request's body beside "messages" and "seed", such as "temperature".
        seed: the run's seed. An attempt's seed is made of it, the problem's id and the attempt's number, so
            it does not depend on the order. None sends no seeds.
        settings: what else the answers depend on, such as the checkpoint, as JSON.
        unsettled: names in `settings` whose value a continued run takes from the earlier one. For a new run,
            `answer` gets the values that are None in `settled`.
        grading: what grades depend on beside the answers: the grader. None if no model grades.
        overwrite: True begins a new run even if `output` exists.
        retry_errors: True answers attempts again whose request failed, and grades answers without a grade.

    Raises:
        BatchError: the output cannot be written, is being written by another run, or belongs to other
            settings.
    """

    def __init__(
        self,
        evaluation: Evaluation,
        output: Path,
        *,
        attempts: int,
        fields: Mapping[str, Json],
        seed: int | None,
        settings: Mapping[str, Json],
        unsettled: Set[str] = frozenset(),
        grading: Mapping[str, Json] | None = None,
        overwrite: bool = False,
        retry_errors: bool = False,
    ) -> None:
        self._evaluation, self._fields, self._seed = evaluation, dict(fields), seed
        self._attempts = evaluation.attempts(attempts)
        self.path = output
        run: JsonObject = {
            "evaluation": evaluation.name,
            "subset": evaluation.subset,
            "problems": len(evaluation.problems),
            "attempts": attempts,
            "seed": seed,
            **settings,
        }
        self._files = contextlib.ExitStack()

        def opened(path: Path, settings: Mapping[str, Json]) -> OutputFile:
            return self._files.enter_context(
                OutputFile(
                    path, settings, overwrite=overwrite, retry_errors=retry_errors, inherited=unsettled
                )
            )

        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._files.close)
            self._rows = opened(output, run | dict(grading or {}))
            self._answers = opened(answers_path(output), run) if evaluation.graded_by_model else self._rows
            on_failure.pop_all()

    @property
    def run(self) -> Mapping[str, Json]:
        """Everything that the answers depend on, as it is stored beside the output."""
        return self._answers.run

    @property
    def is_answered(self) -> bool:
        """True if no attempt is without an answer, so that no model is needed for answers."""
        return len(self._answers.done) >= len(self._attempts)

    def answer(self, ask: Ask, *, settled: Mapping[str, Json], parallel: int, progress: bool) -> None:
        """Answers every attempt that has no answer, and grades it unless a model grades.

        Args:
            ask: answers a body.
            settled: the values of the settings that were None.
            parallel: how many threads ask at a time.
            progress: True shows a bar on standard error.

        Raises:
            BatchError: the continued run had other settings, or the disk is full or fails.
            EvaluationError: no request at all can be answered.
        """
        self._answers.begin(settled)
        missing = [place for place in self._places() if place[0] not in self._answers.done]
        grades = not self._evaluation.graded_by_model

        def row_of(place: tuple[int, Attempt]) -> JsonObject:
            attempt = place[1]
            row, body = self._asked(attempt)
            try:
                answer = ask(body)
            except AskError as error:
                return row | {"error": {"code": error.code, "message": str(error)}}
            row |= _answered(answer)
            return (
                row | _graded(self._evaluation.grade(attempt, answer.text), attempt.details)
                if grades
                else row
            )

        self._write(self._answers, missing, row_of, parallel, "answer" if progress else None)

    def grade(self, *, parallel: int, progress: bool) -> None:
        """Grades every answer that has no grade, where a model grades. The arguments are those of `answer`.

        An attempt without an answer is not graded. An answer that gets no grade has an error in its row.

        Raises:
            BatchError: the disk is full or fails.
            EvaluationError: the grader grades nothing at all.
        """
        if not self._evaluation.graded_by_model:
            return
        self._rows.begin({name: value for name, value in self.run.items() if self._rows.run[name] is None})
        attempts = dict(self._places())

        def row_of(row: JsonObject) -> JsonObject:
            line = row.pop("line")
            assert isinstance(line, int)
            if row["error"] is not None:
                return row
            try:
                attempt = attempts[line]
                return row | _graded(self._evaluation.grade(attempt, str(row["text"])), attempt.details)
            except GradingError as error:
                return row | {"error": {"code": "not_graded", "message": " ".join(str(error).split())}}

        missing = ((line, row) for line, row in self._kept_answers() if line not in self._rows.done)
        self._write(
            self._rows,
            missing,
            lambda place: row_of(place[1]),
            parallel,
            "grade" if progress else None,
        )

    def close(self) -> None:
        """Makes the rows durable and closes the files."""
        self._files.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _places(self) -> Iterator[tuple[int, Attempt]]:
        return enumerate(self._attempts, 1)

    def _kept_answers(self) -> Iterator[tuple[int, JsonObject]]:
        with open(self._answers.path, "rb") as file:
            for raw in file:
                row = json.loads(raw)
                yield row["line"], row

    def _asked(self, attempt: Attempt) -> tuple[JsonObject, JsonObject]:
        """The beginning of an attempt's row, and its request."""
        identifier = f"{attempt.problem.id}/{attempt.number}"
        seed = None if self._seed is None else row_seed(self._seed, identifier)
        messages: list[Json] = [*attempt.messages]
        row: JsonObject = {
            "id": identifier,
            "problem": attempt.problem.id,
            "attempt": attempt.number,
            "seed": seed,
            "messages": messages,
            "expected": attempt.expected,
            "reasoning": "",
            "text": "",
            "finish_reason": None,
            "usage": {"prompt_tokens": None, "completion_tokens": None, "reasoning_tokens": None},
            "harness": {"answer": None, "score": None},
            "strict": None,
            "details": dict(attempt.details),
            "error": None,
        }
        return row, {"messages": messages, **self._fields, **({} if seed is None else {"seed": seed})}

    def _write(
        self,
        file: OutputFile,
        items: Iterable[tuple[int, _Item]],
        row_of: Callable[[tuple[int, _Item]], JsonObject],
        parallel: int,
        unit: str | None,
    ) -> None:
        """Writes the row of each item when it is there. `unit`: what the bar counts; None shows none."""
        interval = 0.1 if sys.stderr.isatty() else 10.0  # a log gets a line now and then
        with tqdm(
            total=len(self._attempts),
            initial=len(file.done),
            disable=unit is None,
            unit=unit or "row",
            file=sys.stderr,
            mininterval=interval,
            dynamic_ncols=True,
        ) as bar:
            try:
                for item, row in in_threads(row_of, items, parallel):
                    file.append(item[0], row)
                    bar.update()
            except EvaluationError as error:
                raise EvaluationError(f"{error}; the same command continues from here") from error


def answers_path(output: Path) -> Path:
    """The file of ungraded answers beside an output: OUT.answers.jsonl for OUT.jsonl."""
    return output.with_name(f"{output.name.removesuffix('.jsonl')}.answers.jsonl")


def _answered(answer: Answer) -> JsonObject:
    return {
        "reasoning": answer.reasoning,
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "usage": answer.usage,
    }


def _graded(grade: Grade, details: JsonObject) -> JsonObject:
    strict: JsonObject | None = None
    if grade.strict_score is not None:
        strict = {"answer": grade.strict_answer, "score": grade.strict_score}
    return {
        "harness": {"answer": grade.answer, "score": grade.score},
        "strict": strict,
        "details": details | grade.details,
    }


def in_threads(
    function: Callable[[_Item], _Result], items: Iterable[_Item], parallel: int
) -> Iterator[tuple[_Item, _Result]]:
    """Calls a function on items in `parallel` threads. Yields each item with its result as they come.

    Items are taken when a thread is free. The first exception ends it, and is raised here. Threads that wait
    for an answer then do not keep the process from ending.
    """
    source, taking, results = iter(items), threading.Lock(), queue.SimpleQueue[object]()
    ended = threading.Event()
    done = object()

    def work() -> None:
        try:
            while not ended.is_set():
                with taking:
                    item = next(source, done)
                if item is done:
                    break
                results.put((item, function(item)))  # type: ignore[arg-type]
        except BaseException as error:  # of any kind: the caller gets it
            results.put(error)
        results.put(done)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(parallel)]
    try:
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            result = results.get()
            if result is done:
                running -= 1
            elif isinstance(result, BaseException):
                raise result
            else:
                yield result  # type: ignore[misc]
    finally:
        ended.set()
