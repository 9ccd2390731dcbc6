#!/usr/bin/env bash
# Both APIs with curl: whole, and streamed as server-sent events.
set -euo pipefail
url=${GPTOSS_JAX_URL:-http://127.0.0.1:8000/v1}

# post ADDRESS BODY: sends JSON and writes the answer as it comes.
post() {
    curl --fail-with-body --silent --show-error --no-buffer "$url/$1" -H 'Content-Type: application/json' -d "$2"
    echo
}

curl --fail-with-body --silent --show-error "$url/models"
echo
post responses '{"input": "What is 2 + 3?", "temperature": 0}'
post responses '{"input": "What is 2 + 3?", "temperature": 0, "stream": true}'
post chat/completions '{"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0}'
post chat/completions '{"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0,
    "stream": true, "stream_options": {"include_usage": true}}'
# Without the chain of thought, and with a schema that the answer follows.
post chat/completions '{"messages": [{"role": "user", "content": "What is 2 + 3?"}], "temperature": 0,
    "reasoning": {"exclude": true}, "response_format": {"type": "json_schema", "json_schema": {"name": "sum", "strict": true,
    "schema": {"type": "object", "properties": {"answer": {"type": "integer", "enum": [5, 6]}},
    "required": ["answer"], "additionalProperties": false}}}}'
