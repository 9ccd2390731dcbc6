"""Offline batches: a file of requests in, a file of answers out, each row once, whatever kills the run.

    from gptoss_jax.batch import run_batch

    report = run_batch("requests.jsonl", "answers.jsonl", engine=engine, encoding=encoding, seed=7)

The forms of the input are in `gptoss_jax.batch.rows`, those of the output in `gptoss_jax.batch.answers`, and
how rows survive a crash in `gptoss_jax.batch.output`.
"""

from gptoss_jax.batch.output import BatchError
from gptoss_jax.batch.report import BatchReport
from gptoss_jax.batch.run import run_batch

__all__ = ["BatchError", "BatchReport", "run_batch"]
