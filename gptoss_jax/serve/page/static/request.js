// The fields of the panel "Request" → the fields of a request.

import { byId } from "./dom.js";

export const EXAMPLE_TOOLS = [
  {
    type: "function",
    name: "get_weather",
    description: "Get the weather in a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
    },
  },
];

export const EXAMPLE_SCHEMA = {
  type: "object",
  properties: { answer: { type: "integer" } },
  required: ["answer"],
  additionalProperties: false,
};

class FieldError extends Error {}

export function pretty(value) {
  return JSON.stringify(value, null, 2);
}

// The request without its conversation; null if a field is wrong, which is then said below the field.
export function readRequest() {
  const request = { store: false, include: ["reasoning.encrypted_content", "code_interpreter_call.outputs"] };
  const tools = checked("tools", readTools);
  const format = checked("schema", readFormat);
  if (tools === null || format === null) return null;
  const effort = byId("effort").value;
  if (effort) request.reasoning = { effort };
  const instructions = byId("instructions").value.trim();
  if (instructions) request.instructions = instructions;
  if (tools) request.tools = tools;
  if (format) request.text = { format };
  for (const [id, name] of [["temperature", "temperature"], ["max-tokens", "max_output_tokens"]]) {
    const value = byId(id).valueAsNumber;
    if (!Number.isNaN(value)) request[name] = value;
  }
  return request;
}

// What a field says: undefined if it is empty, null if it is wrong.
function checked(id, read) {
  const field = byId(id);
  const wrong = byId(`${id}-error`);
  let value;
  let message = "";
  try {
    if (field.value.trim()) value = read(field.value);
  } catch (error) {
    if (!(error instanceof FieldError)) throw error;
    message = error.message;
    value = null;
  }
  if (wrong.textContent !== message) wrong.textContent = message;
  field.setAttribute("aria-invalid", String(message !== ""));
  return value;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new FieldError(`This is not JSON: ${error.message}`);
  }
}

// Tools, functions in the form of either API → functions in that of Responses.
function readTools(text) {
  const given = parsed(text);
  if (!Array.isArray(given)) throw new FieldError("This is JSON, but not an array of tools.");
  return given.map((tool, index) => {
    if (typeof tool?.type !== "string") throw new FieldError(`[${index}] has no type.`);
    if (tool.type !== "function") return tool; // one that the server runs, if it has it
    const { function: nested, ...own } = tool;
    const flat = nested ? { type: "function", ...nested } : own;
    if (typeof flat.name !== "string") throw new FieldError(`[${index}] has no name.`);
    return flat;
  });
}

function readFormat(text) {
  const schema = parsed(text);
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) {
    throw new FieldError("This is JSON, but a schema is an object.");
  }
  return { type: "json_schema", name: "answer", schema, strict: true };
}
