// The conversation as the API has it, and the requests that continue it.

import * as api from "./api.js";

export class Conversation {
  constructor() {
    this.items = [];
    this.pending = new Set(); // ids of calls that wait for their results
    this.controller = null; // of the request at work
  }

  get isBusy() {
    return this.controller !== null;
  }

  addUser(text) {
    this.items.push({ role: "user", content: text });
  }

  addResult(call, output) {
    this.items.push({ type: "function_call_output", call_id: call.call_id, output });
    this.pending.delete(call.call_id);
  }

  stop() {
    this.controller?.abort();
  }

  // The request that would come next.
  body(request) {
    return { ...request, input: this.items };
  }

  // Asks for the next turn and shows it in `turn` as it comes. Returns what became of it:
  // {calls: that wait for results, response: the whole one, or null if the turn was stopped}.
  async run(request, turn) {
    const controller = new AbortController();
    this.controller = controller;
    const output = []; // the items that have ended
    let open = null; // the one that has not, with its text so far
    let response = null;
    try {
      for await (const event of api.respond(this.body(request), controller.signal)) {
        switch (event.type) {
          case "response.output_item.added":
            open = { item: event.item, text: "" };
            turn.begin(event.item);
            break;
          case "response.output_text.delta":
            open.text += event.delta;
            turn.add(event.item_id, event.delta);
            break;
          case "response.reasoning_text.delta":
          case "response.function_call_arguments.delta":
          case "response.code_interpreter_call_code.delta":
            turn.add(event.item_id, event.delta);
            break;
          case "response.output_item.done":
            open = null;
            output.push(event.item);
            turn.finish(event.item);
            break;
          case "response.completed":
          case "response.incomplete":
            response = event.response;
            break;
          case "response.failed":
            throw new api.ServerError(event.response.error.message, 0);
        }
      }
    } catch (error) {
      if (!controller.signal.aborted) throw error;
    } finally {
      this.controller = null;
    }
    return { calls: this.keep(output, open), response };
  }

  // Keeps the items of a turn, and what there is of a message that was stopped. A call that was cut off and
  // reasoning at the end, which led to nothing, are left out.
  keep(output, open) {
    const isWhole = (item) => item.type !== "function_call" || item.status !== "incomplete";
    const kept = output.filter(isWhole).map(replayed);
    if (open?.item.type === "message" && open.text) {
      kept.push({ ...open.item, status: "incomplete", content: [{ type: "output_text", text: open.text }] });
    }
    while (kept.at(-1)?.type === "reasoning") kept.pop();
    this.items.push(...kept);
    const calls = kept.filter((item) => item.type === "function_call");
    for (const call of calls) this.pending.add(call.call_id);
    return calls;
  }
}

// An item as it is sent back: reasoning encrypted only where its text is not there.
function replayed(item) {
  if (item.type !== "reasoning" || !item.content) return item;
  const { encrypted_content: _, ...rest } = item;
  return rest;
}
