// The server's addresses, relative to the page, so that it also works below a proxy's prefix.

const KEY = "gptoss-jax-key";

export class ServerError extends Error {
  // status: of HTTP; 0 if there was no answer, or the error came in mid-stream.
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function getKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

// Asks the server: a POST if there is a body. Throws a ServerError unless the answer is a good one.
async function ask(path, { body, signal } = {}) {
  const headers = new Headers();
  // A header can carry no more than these characters; a key with others is wrong in any case.
  const key = getKey();
  if (/^[\x20-\x7e]+$/.test(key)) headers.set("Authorization", `Bearer ${key}`);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  let answer;
  try {
    answer = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ServerError("The server cannot be reached.", 0);
  }
  if (answer.ok) return answer;
  let message = `The server answered with status ${answer.status}.`;
  try {
    message = (await answer.json()).error.message;
  } catch {
    // Something between the page and the server has answered.
  }
  throw new ServerError(message, answer.status);
}

export async function models() {
  return (await (await ask("v1/models")).json()).data;
}

export async function tokens(body) {
  return (await ask("v1/harmony/tokens", { body })).json();
}

export async function metrics() {
  return (await ask("metrics")).text();
}

// The events of a response, as they come. Ends with an error if the stream does not end as one must.
export async function* respond(body, signal) {
  const answer = await ask("v1/responses", { body: { ...body, stream: true }, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let ended = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      text += value;
      const whole = text.split("\n\n");
      text = whole.pop();
      for (const event of whole) {
        const data = event.split("\n").filter((line) => line.startsWith("data: "));
        if (!data.length) continue; // a comment keeps the connection open
        const said = JSON.parse(data.map((line) => line.slice(6)).join("\n"));
        ended ||= ["response.completed", "response.incomplete", "response.failed"].includes(said.type);
        yield said;
      }
    }
  } catch (error) {
    if (signal?.aborted || error instanceof ServerError) throw error;
    throw new ServerError("The connection broke off.", 0);
  } finally {
    reader.cancel().catch(() => {});
  }
  if (!ended) throw new ServerError("The connection broke off.", 0);
}
