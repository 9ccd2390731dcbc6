"""Both APIs with OpenAI's Python SDK: whole, streamed, with a function and with the reasoning passed back."""

import os
from typing import Any

from openai import OpenAI

URL = os.environ.get("GPTOSS_JAX_URL", "http://127.0.0.1:8000/v1")
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SUNNY = '{"degrees":21,"sky":"sunny"}'

client = OpenAI(base_url=URL, api_key="none")
model = client.models.list().data[0].id

# Responses: an answer as a whole. The chain of thought is an item of its own.
response = client.responses.create(model=model, input="What is 2 + 3?", temperature=0)
print("reasoning:", response.output[0].content[0].text)
print("answer:", response.output_text)

# The same as it comes.
with client.responses.stream(model=model, input="What is 4 + 4?", temperature=0) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
    print(" →", stream.get_final_response().usage.output_tokens, "tokens")

# A function: the items of the answer, reasoning included, go back with the result of the call.
items: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
tools: Any = [{"type": "function", **WEATHER}]
first = client.responses.create(
    model=model, input=items, tools=tools, tool_choice="required", temperature=0, max_output_tokens=200
)
items += first.output
for item in first.output:
    if item.type == "function_call":
        print("call:", item.name, item.arguments)
        items.append({"type": "function_call_output", "call_id": item.call_id, "output": SUNNY})
print("answer:", client.responses.create(model=model, input=items, tools=tools, temperature=0).output_text)

# Chat Completions: the chain of thought is `reasoning` of messages and deltas.
messages: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
chat = client.chat.completions.create(model=model, messages=messages, temperature=0)
print("answer:", chat.choices[0].message.content)
messages += [chat.choices[0].message, {"role": "user", "content": "What is 4 + 4?"}]
for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
