// An agent of OpenAI's Agents SDK for Node that calls a function, through both APIs.
// Needs `npm install @openai/agents openai zod`.
import {
  Agent,
  OpenAIChatCompletionsModel,
  OpenAIResponsesModel,
  run,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";

setTracingDisabled(true);
const baseURL = process.env.GPTOSS_JAX_URL ?? "http://127.0.0.1:8000/v1";
const client = new OpenAI({ baseURL, apiKey: "none" });
const name = (await client.models.list()).data[0].id;

const getWeather = tool({
  name: "get_weather",
  description: "Get the weather.",
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    console.log("get_weather was called for", city);
    return { degrees: 21, sky: "sunny" };
  },
});

for (const Model of [OpenAIResponsesModel, OpenAIChatCompletionsModel]) {
  const agent = new Agent({
    name: "forecaster",
    tools: [getWeather],
    model: new Model(client, name),
    modelSettings: { toolChoice: "required", temperature: 0, maxTokens: 200 },
  });
  const result = await run(agent, "What is the weather in Oslo?");
  console.log("answer:", result.finalOutput);
}
