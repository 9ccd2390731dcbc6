// Runs agents of the Agents SDK, each with one function, and prints what came of them.
// Its file has {"tools": {NAME: {"parameters", "output"}}, "runs": [{"api", "stream", "tool", "input",
// "instructions", "include"}]}; `output` null returns the arguments as text.
import { readFileSync } from "node:fs";
import {
  Agent,
  OpenAIChatCompletionsModel,
  OpenAIResponsesModel,
  Runner,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import OpenAI from "openai";

setTracingDisabled(true);
const AT_ONCE = 8;
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const { tools, runs } = JSON.parse(readFileSync(process.argv[3], "utf8"));

async function run({ api, stream, tool: name, input, instructions, include }) {
  const executed = [];
  const called = tool({
    name,
    description: `The function ${name}.`,
    parameters: tools[name].parameters,
    strict: false,
    execute: async (given) => {
      executed.push(given);
      return tools[name].output ?? JSON.stringify(given);
    },
  });
  const settings = api === "responses" ? { store: false } : {};
  if (include) settings.providerData = { include };
  const model =
    api === "responses"
      ? new OpenAIResponsesModel(client, "tiny")
      : new OpenAIChatCompletionsModel(client, "tiny");
  const runner = new Runner({ model, modelSettings: settings });
  const agent = new Agent({ name: "agent", instructions, tools: [called] });
  try {
    const result = await runner.run(agent, input, { stream, maxTurns: 10 });
    if (stream) {
      for await (const event of result) void event;
      await result.completed;
    }
    const calls = result.newItems
      .filter((item) => item.type === "tool_call_item")
      .map((item) => [item.rawItem.name, item.rawItem.arguments]);
    return { final: result.finalOutput, calls, executed };
  } catch (error) {
    return { error: `${error}`, executed };
  }
}

const done = new Array(runs.length);
let next = 0;
async function work() {
  while (next < runs.length) {
    const index = next++;
    done[index] = await run(runs[index]);
  }
}
await Promise.all(Array.from({ length: AT_ONCE }, work));
console.log(JSON.stringify(done));
