// The conversation as it is shown: an entry for each turn, and in it a block for each item.

import { byId, counted, element } from "./dom.js";

const NEAR = 80; // within so many pixels of its end the thread follows what is written

const thread = byId("thread");
const scroller = byId("scroller");

let follows = true;
scroller.addEventListener("scroll", () => {
  follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
});

let scheduled = false;

// Scrolls to the end, once for all that comes before the next frame.
export function follow(always = false) {
  if (always) follows = true;
  if (!follows || scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    scroller.scrollTop = scroller.scrollHeight;
  });
}

export function clear() {
  thread.replaceChildren();
  thread.setAttribute("aria-busy", "false");
  byId("welcome").hidden = false;
}

function addEntry(kind, who, ...children) {
  byId("welcome").hidden = true;
  const entry = element("article", { class: `turn ${kind}`, "aria-label": who }, ...children);
  thread.append(entry);
  return entry;
}

export function addUser(text) {
  thread.querySelectorAll(".failed").forEach((entry) => entry.remove()); // the new message is the new attempt
  addEntry("user", "You", element("div", { class: "said", dir: "auto" }, text));
  follow(true);
}

// An error, and how to go on.
export function addError(message, again) {
  const entry = addEntry("failed", "Error", element("p", { role: "alert", dir: "auto" }, message));
  const retry = () => {
    entry.remove();
    again();
  };
  entry.append(element("button", { type: "button", onclick: retry }, "Try again"));
  follow();
}

// A turn of the assistant, while it is written and afterwards.
export class AssistantTurn {
  constructor() {
    this.blocks = new Map();
    this.waiting = element("p", { class: "waiting quiet", "aria-hidden": "true" }, "…"); // stays last
    this.entry = addEntry("assistant", "Assistant", this.waiting);
    thread.setAttribute("aria-busy", "true");
    follow();
  }

  // An item has begun.
  begin(item) {
    const block = blockOf(item);
    if (!block) return;
    this.blocks.set(item.id, block);
    this.waiting.before(block.root);
    follow();
  }

  // Text of an item has come.
  add(id, text) {
    this.blocks.get(id)?.text.append(text);
    follow();
  }

  // An item has ended: it is what it says now.
  finish(item) {
    const block = this.blocks.get(item.id);
    block?.finish?.(item);
    block?.text.normalize(); // each piece of a stream was a node
    follow();
  }

  // A field for the result of a call. `done` is called with the result.
  askResult(call, done) {
    const block = this.blocks.get(call.id);
    const id = `result-${call.call_id}`;
    const field = element("textarea", { id, class: "code", rows: "2", spellcheck: "false" });
    const form = element(
      "form",
      { class: "result" },
      element("label", { for: id }, `Result of ${call.name}`),
      field,
      element("button", { type: "submit", class: "primary" }, "Send the result"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      form.replaceWith(element("div", { class: "label" }, "Result"), element("pre", { dir: "auto" }, field.value));
      done(field.value);
    });
    field.addEventListener("keydown", (event) => {
      if (isSend(event)) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    block.root.append(form);
    field.focus();
    follow();
  }

  // The turn has ended; `note` says how, if there is anything to say.
  end(note) {
    this.waiting.remove();
    thread.setAttribute("aria-busy", "false");
    if (note) this.entry.append(element("p", { class: "note quiet" }, note));
    follow();
  }

  remove() {
    this.end("");
    this.entry.remove();
  }
}

// Enter sends and Shift+Enter begins a line; while an input method composes, Enter is its own.
export function isSend(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}

function blockOf(item) {
  if (item.type === "reasoning") return item.content ? reasoningBlock() : null;
  if (item.type === "message") return messageBlock(item);
  if (item.type === "function_call") return callBlock(item);
  if (item.type === "code_interpreter_call") return codeBlock();
  if (item.type === "web_search_call") return searchBlock();
  return null;
}

function reasoningBlock() {
  const text = element("div", { class: "said", dir: "auto" });
  const summary = element("summary", {}, "Reasoning…");
  const root = element("details", { class: "reasoning" }, summary, text);
  const finish = () => {
    const words = text.textContent.split(/\s+/).filter(Boolean).length;
    summary.textContent = `Reasoning, ${counted(words, "word")}`;
  };
  return { root, text, finish };
}

function messageBlock(item) {
  const text = element("div", { class: "said", dir: "auto" });
  if (item.phase !== "commentary") return { root: text, text };
  const root = element("div", { class: "preamble" }, element("div", { class: "label" }, "Preamble"), text);
  return { root, text };
}

function callBlock(item) {
  const text = element("pre", { dir: "auto" });
  const head = element("div", { class: "label" }, "Call of ", element("code", {}, item.name));
  const root = element("div", { class: "call" }, head, text);
  const finish = (whole) => {
    text.textContent = indented(whole.arguments);
  };
  return { root, text, finish };
}

function codeBlock() {
  const text = element("pre", { dir: "auto" });
  const root = element("div", { class: "call" }, element("div", { class: "label" }, "Code that the server ran"), text);
  const finish = (whole) => {
    const logs = (whole.outputs ?? []).filter((output) => output.type === "logs").map((output) => output.logs);
    if (logs.length) root.append(element("div", { class: "label" }, "Output"), element("pre", { dir: "auto" }, ...logs));
  };
  return { root, text, finish };
}

function searchBlock() {
  const text = element("pre", { dir: "auto" });
  const root = element("div", { class: "call" }, element("div", { class: "label" }, "The server's browser"), text);
  const finish = ({ action }) => {
    text.textContent = [action?.type, action?.query, action?.url, action?.pattern].filter(Boolean).join("  ");
  };
  return { root, text, finish };
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // what was cut off, or is no JSON, stays as it is
  }
}
