"""Offline batches: answers a file of requests, and writes each answer exactly once even if the run is killed.

    from gptoss_jax.batch import run_batch

    report = run_batch("requests.jsonl", "answers.jsonl", engine=engine, encoding=encoding, seed=7)

`open_batch` is the first half of `run_batch`: it checks the files and arguments before a model is loaded, and
does not import jax. `gptoss_jax.batch.rows` describes the input, `gptoss_jax.batch.answers` the output, and
`gptoss_jax.batch.output` how rows survive a crash.
"""

from gptoss_jax.batch.errors import BatchError
from gptoss_jax.batch.limits import Limits
from gptoss_jax.batch.merging import merge
from gptoss_jax.batch.opening import OpenBatch, open_batch, run_batch
from gptoss_jax.batch.report import BatchReport
from gptoss_jax.batch.shards import Shard

__all__ = ["BatchError", "BatchReport", "Limits", "OpenBatch", "Shard", "merge", "open_batch", "run_batch"]
