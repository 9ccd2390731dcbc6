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

export async function showRates() {
  let figures;
  try {
    figures = parseMetrics(await api.metrics());
  } catch (error) {
    earlier = null;
    show([["Server", error.message]]);
    return;
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
    ["Tokens a second", rate === null ? "–" : rate.toFixed(rate < 10 ? 1 : 0)],
    ["Running", `${shown(running)} of ${shown(slots)} slots`],
    ["Waiting", shown(waiting)],
    ["Prompt tokens cached", prompt ? `${Math.round((100 * cached) / prompt)} %` : "–"],
    ["Tokens generated", shown(tokens)],
    ["Preemptions", shown(engine("preemptions"))],
  ]);
}

function shown(number) {
  return Number.isFinite(number) ? number.toLocaleString("en") : "–";
}

function show(rows) {
  const cells = rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  byId("rates").replaceChildren(...cells);
}
