// Ties the parts of the page together.

import * as api from "./api.js";
import { Conversation } from "./conversation.js";
import { byId, counted, element } from "./dom.js";
import { openTab, pollRates, startPanel } from "./panel.js";
import { EXAMPLE_SCHEMA, EXAMPLE_TOOLS, pretty, readRequest } from "./request.js";
import * as thread from "./thread.js";

const EXAMPLES = [
  { text: "What is 214 + 387?" },
  { text: "Who are you?" },
  { text: "What is the weather in Oslo?", tools: EXAMPLE_TOOLS },
];

let conversation = new Conversation();
const message = byId("message");
const refreshPanel = startPanel(() => {
  const request = readRequest();
  return request && conversation.body(request);
});

async function start() {
  byId("key").value = api.getKey();
  for (const example of EXAMPLES) {
    byId("examples").append(element("button", { type: "button", onclick: () => tryExample(example) }, example.text));
  }
  update();
  await showModel();
}

async function showModel() {
  try {
    byId("model").textContent = (await api.models()).map((model) => model.id).join(", ");
    byId("key-error").textContent = "";
    pollRates();
  } catch (error) {
    if (error.status === 401) askKey();
    else byId("model").textContent = error.message;
  }
}

function askKey() {
  byId("model").textContent = "";
  byId("key-error").textContent = api.getKey()
    ? "The server does not know this key."
    : "This server asks for an API key.";
  openTab("request");
  byId("key").focus();
}

function useKey() {
  api.setKey(byId("key").value.trim());
  showModel();
}

function tryExample(example) {
  if (example.tools) byId("tools").value = pretty(example.tools);
  message.value = example.text;
  send();
}

function send() {
  const text = message.value.trim();
  if (!text || conversation.isBusy || conversation.pending.size) return;
  if (readRequest() === null) {
    openTab("request");
    byId("view-request").querySelector("[aria-invalid=true]").focus();
    return;
  }
  message.value = "";
  conversation.addUser(text);
  thread.addUser(text);
  next();
}

// Asks for the next turn of the assistant.
async function next() {
  const request = readRequest();
  const mine = conversation; // "New chat" may replace it meanwhile
  if (request === null || mine.isBusy) return;
  const turn = new thread.AssistantTurn();
  const begin = performance.now();
  const running = mine.run(request, turn);
  update();
  try {
    const { calls, response } = await running;
    if (mine !== conversation) return;
    turn.end(noteOf(response, (performance.now() - begin) / 1000));
    for (const call of calls.reverse()) {
      turn.askResult(call, (output) => {
        mine.addResult(call, output);
        if (!mine.pending.size) next();
        else update();
      });
    }
  } catch (error) {
    if (mine !== conversation) return;
    turn.remove();
    if (!(error instanceof api.ServerError)) throw error;
    thread.addError(error.message, next);
    if (error.status === 401) askKey();
  } finally {
    update();
    if (!conversation.pending.size && document.activeElement === document.body) message.focus();
  }
}

function noteOf(response, seconds) {
  if (response === null) return "Stopped";
  const usage = response.usage;
  const reasoning = usage.output_tokens_details.reasoning_tokens;
  const cached = usage.input_tokens_details.cached_tokens;
  const parts = [
    `${counted(usage.input_tokens, "token")} in${cached ? ` (${cached.toLocaleString("en")} cached)` : ""}`,
    `${usage.output_tokens.toLocaleString("en")} out${reasoning ? ` (${reasoning.toLocaleString("en")} reasoning)` : ""}`,
    `${seconds.toFixed(1)} s`,
  ];
  if (response.status === "incomplete") parts.unshift("Cut off");
  else if (!response.output.some((item) => item.type !== "reasoning")) parts.unshift("No answer");
  // Lines break between the parts only.
  return parts.map((part) => part.replaceAll(" ", "\u00a0")).join(" · ");
}

// Shows what can be done now.
function update() {
  const request = readRequest();
  const waiting = conversation.pending.size;
  byId("stop").hidden = !conversation.isBusy;
  byId("send").hidden = conversation.isBusy;
  byId("send").disabled = waiting > 0;
  const notes = [];
  if (waiting) notes.push("waits for a result");
  if (request === null) notes.push("a field of the request is wrong");
  if (request?.tools) notes.push(counted(request.tools.length, "tool"));
  if (request?.text) notes.push("schema");
  byId("request-note").textContent = notes.join(" · ");
  refreshPanel();
}

function newChat() {
  conversation.stop();
  conversation = new Conversation();
  thread.clear();
  update();
  message.focus();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
message.addEventListener("keydown", (event) => {
  if (thread.isSend(event)) {
    event.preventDefault();
    send();
  }
});
byId("stop").addEventListener("click", () => {
  conversation.stop();
  message.focus();
});
byId("new-chat").addEventListener("click", newChat);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.isComposing) conversation.stop();
});
for (const id of ["effort", "instructions", "tools", "schema", "temperature", "max-tokens"]) {
  byId(id).addEventListener("input", update);
}
for (const [id, example] of [["tools", EXAMPLE_TOOLS], ["schema", EXAMPLE_SCHEMA]]) {
  byId(`${id}-example`).addEventListener("click", () => {
    byId(id).value = pretty(example);
    update();
  });
}
byId("key").addEventListener("change", useKey);
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey();
});

start();
