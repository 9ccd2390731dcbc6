// Both APIs with OpenAI's Node SDK: whole and streamed. Needs `npm install openai`.
import OpenAI from "openai";

const baseURL = process.env.GPTOSS_JAX_URL ?? "http://127.0.0.1:8000/v1";
const client = new OpenAI({ baseURL, apiKey: "none" });
const model = (await client.models.list()).data[0].id;

// Responses: an answer as a whole. The chain of thought is an item of its own.
const response = await client.responses.create({ model, input: "What is 2 + 3?", temperature: 0 });
console.log("reasoning:", response.output[0].content[0].text);
console.log("answer:", response.output_text);

// The same as it comes.
const stream = client.responses.stream({ model, input: "What is 4 + 4?", temperature: 0 });
for await (const event of stream) {
  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
}
console.log(" →", (await stream.finalResponse()).usage.output_tokens, "tokens");

// Chat Completions: the chain of thought is `reasoning` of messages and deltas.
const messages = [{ role: "user", content: "What is 2 + 3?" }];
const chat = await client.chat.completions.create({ model, messages, temperature: 0 });
console.log("answer:", chat.choices[0].message.content);
messages.push(chat.choices[0].message, { role: "user", content: "What is 4 + 4?" });
const chunks = await client.chat.completions.create({ model, messages, temperature: 0, stream: true });
for await (const chunk of chunks) process.stdout.write(chunk.choices[0]?.delta.content ?? "");
console.log();
