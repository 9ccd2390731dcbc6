// The server's figures, from /metrics.

import * as api from "./api.js";
import { byId, element } from "./dom.js";

export const SECONDS = 2;

let earlier = null; // {tokens, time}: what was read before

// Prometheus' text → {name with labels: value}.
export function parseMetrics(text) {
  const figures = {};
  for (const line of text.split("\n")) {
    const found = /^([^#\s{]+(?:\{.*\})?) (\S+)/.exec(line);
    if (found) figures[found[1]] = Number(found[2]);
  }
  return figures;
}

// Returns whether there is sense in asking again: not without a key that the server knows.
export async function showRates() {
  let figures;
  try {
    figures = parseMetrics(await api.metrics());
  } catch (error) {
    earlier = null;
    show(error.status === 401 ? [] : [["server", error.message]]);
    return error.status !== 401;
  }
  const engine = (name) => figures[`gptoss_jax_engine_${name}_total`];
  const tokens = engine("generated_tokens") ?? figures['gptoss_jax_tokens_total{kind="generated"}'] ?? 0;
  const time = performance.now() / 1000;
  // Counters that fall are those of a server that was started again.
  const rate = earlier && tokens >= earlier.tokens ? (tokens - earlier.tokens) / (time - earlier.time) : null;
  earlier = { tokens, time };
  const slots = figures.gptoss_jax_slots;
  const running = Math.min(slots, figures.gptoss_jax_engine_samples);
  const waiting = Math.max(0, figures.gptoss_jax_unfinished_samples - running);
  const prompt = engine("prompt_tokens") ?? figures['gptoss_jax_tokens_total{kind="prompt"}'];
  const cached = engine("cached_tokens") ?? figures['gptoss_jax_tokens_total{kind="cached"}'];
  show([
    ["tokens/s", rate === null ? "–" : rate.toFixed(rate < 10 ? 1 : 0)],
    ["running", `${shown(running)}/${shown(slots)}`],
    ["waiting", shown(waiting)],
    ["prompt cached", prompt ? `${Math.round((100 * cached) / prompt)}\u00a0%` : "–"],
    ["generated", shown(tokens)],
  ]);
  return true;
}

function shown(number) {
  return Number.isFinite(number) ? number.toLocaleString("en") : "–";
}

function show(rows) {
  const cells = rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  byId("rates").replaceChildren(...cells);
}
