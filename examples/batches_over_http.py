"""A file of requests for a server that was started with `--data FOLDER`, with OpenAI's Python SDK."""

import json
import os
import time

from openai import OpenAI

URL = os.environ.get("GPTOSS_JAX_URL", "http://127.0.0.1:8000/v1")
client = OpenAI(base_url=URL, api_key="none")

questions = {"sum": "What is 214 + 387?", "name": "Who are you?"}
lines = [
    {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": question}], "temperature": 0},
    }
    for name, question in questions.items()
]
content = "".join(json.dumps(line) + "\n" for line in lines).encode()

file = client.files.create(file=("questions.jsonl", content), purpose="batch")
batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
while batch.status in ("validating", "in_progress", "finalizing", "cancelling"):
    time.sleep(0.5)
    batch = client.batches.retrieve(batch.id)
print(f"{batch.id} is {batch.status}: {batch.request_counts}")

for id in (batch.output_file_id, batch.error_file_id):
    for line in client.files.content(id).text.splitlines() if id else ():
        row = json.loads(line)
        if row["response"] is None or row["response"]["status_code"] != 200:
            print(f"{row['custom_id']}: {row}")
        else:
            print(f"{row['custom_id']}: {row['response']['body']['choices'][0]['message']['content']}")
