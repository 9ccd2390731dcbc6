"""`/v1/files` and `/v1/batches`: batch runs behind HTTP, beside the server's other requests.

    from gptoss_jax.batch_api import BatchApi, BatchSettings

    app = create_app(engine, encoding, settings, extensions=[BatchApi(BatchSettings(folder), settings, {})])

Everything that a client was told is in the folder: a process that is killed at any moment, and started again,
goes on where it was. The rows of a batch in progress are the output file of a batch run
(`gptoss_jax.batch.output`), so each is there once; when the batch ends, they become the output file and the
error file that clients download.
"""

from gptoss_jax.batch_api.api import BatchApi
from gptoss_jax.batch_api.records import RecordsError
from gptoss_jax.batch_api.settings import BatchSettings

__all__ = ["BatchApi", "BatchSettings", "RecordsError"]
