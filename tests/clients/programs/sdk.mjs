// Sends each body of a file with OpenAI's Node SDK, whole and streamed, and prints what came of it.
// A case is {"api": "chat" | "responses", "body": {…}}.
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });

async function chat(body) {
  const whole = await client.chat.completions.create(body);
  const chunks = [];
  const stream = client.chat.completions.stream({ ...body, stream_options: { include_usage: true } });
  stream.on("chunk", (chunk) => chunks.push(chunk));
  return { whole, events: chunks, final: await stream.finalChatCompletion() };
}

async function responses(body) {
  const whole = await client.responses.create(body);
  const events = [];
  const snapshots = {};
  const stream = client.responses.stream(body);
  stream.on("event", (event) => events.push(structuredClone(event)));
  stream.on("response.output_text.delta", (event) => {
    snapshots[event.output_index] = event.snapshot;
  });
  stream.on("response.function_call_arguments.delta", (event) => {
    snapshots[event.output_index] = event.snapshot;
  });
  return { whole, events, final: await stream.finalResponse(), snapshots };
}

const cases = JSON.parse(readFileSync(process.argv[3], "utf8"));
const done = [];
for (const { api, body } of cases) done.push(await { chat, responses }[api](body));
console.log(JSON.stringify(done));
