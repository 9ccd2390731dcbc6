// The conversation as harmony tokens.

import * as api from "./api.js";
import { byId, counted, element } from "./dom.js";

const NEAR = 40; // within so many pixels of its end the panel stays there

const closed = new Set(); // numbers of messages

let newest = 0; // requests overtake each other: only the newest is shown

// Shows the tokens of a request; `body` null: there is no conversation, or a field of the request is wrong.
export async function showTokens(body) {
  const mine = ++newest;
  if (body === null || !body.input.length) {
    say(body === null ? "A field of the request is wrong." : "The tokens appear with the first message.");
    byId("tokens").replaceChildren();
    return;
  }
  if (byId("token-scope").value === "all") {
    body = { ...body, reasoning: { ...body.reasoning, context: "all_turns" } };
  }
  let found;
  try {
    found = await api.tokens(body);
  } catch (error) {
    if (mine === newest) {
      say(error.message);
      byId("tokens").replaceChildren();
    }
    return;
  }
  if (mine !== newest) return;
  const hidden = found.hidden_messages
    ? `; ${counted(found.hidden_messages, "message")} of reasoning not shown by this server`
    : "";
  say(`${counted(found.count, "token")} in ${counted(found.messages.length, "message")}${hidden}`);
  const view = byId("view-tokens");
  const wasAtEnd = view.scrollTop > 0 && view.scrollHeight - view.scrollTop - view.clientHeight < NEAR;
  byId("tokens").replaceChildren(...found.messages.map(messageBlock));
  if (wasAtEnd) view.scrollTop = view.scrollHeight;
}

function say(text) {
  byId("token-total").textContent = text;
}

function messageBlock(message, index) {
  const who = [message.name ? `${message.role} ${message.name}` : message.role];
  if (message.channel) who.push(message.channel);
  if (message.recipient) who.push(`to ${message.recipient}`);
  if (message.open) who.push("to be written");
  const head = element(
    "summary",
    {},
    element("span", {}, who.join(" · ")),
    element("span", { class: "count" }, message.count.toLocaleString("en")),
  );
  const channel = message.role === "assistant" && message.channel !== "final" && message.channel;
  // Messages that were closed stay closed when the tokens are shown anew.
  const block = element(
    "details",
    { class: `message role-${channel || message.role}`, open: !closed.has(index) },
    head,
    element("div", { class: "stream", dir: "auto" }, ...message.tokens.map(tokenSpan)),
  );
  block.addEventListener("toggle", () => (block.open ? closed.delete(index) : closed.add(index)));
  return block;
}

function tokenSpan(token) {
  const attributes = { class: `token ${token.part}`, "data-id": String(token.id), title: `${token.id} ${token.part}` };
  return element("span", attributes, byId("token-ids").checked ? String(token.id) : textOf(token));
}

function textOf(token) {
  if (token.text === null) {
    return token.bytes.map((byte) => `\\x${byte.toString(16).padStart(2, "0")}`).join("");
  }
  return token.text.replaceAll("\n", "↵\n");
}
