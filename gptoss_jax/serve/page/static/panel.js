// The panel for developers: its tabs, and what they show while they are open.

import { byId } from "./dom.js";
import { SECONDS, showRates } from "./rates.js";
import { showTokens } from "./tokens.js";

const NAMES = ["request", "tokens"];

const narrow = matchMedia("(max-width: 860px)"); // as in style.css: the panel covers the page

let open = "request";
let bodyOf = null;
let timer = null;

// Starts the panel. `nextBody` gives the body of the next request, or null. Returns a function that shows
// anew what has changed.
export function startPanel(nextBody) {
  bodyOf = nextBody;
  byId("panel-toggle").addEventListener("click", () => {
    setShown(byId("panel").hidden);
    if (narrow.matches) byId(`tab-${open}`).focus();
  });
  byId("panel-close").addEventListener("click", () => {
    setShown(false);
    byId("panel-toggle").focus();
  });
  NAMES.forEach((name, index) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener("click", () => openTab(name));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = NAMES[(index + step + NAMES.length) % NAMES.length];
      openTab(next);
      byId(`tab-${next}`).focus();
    });
  });
  for (const id of ["token-scope", "token-ids"]) byId(id).addEventListener("change", refresh);
  document.addEventListener("visibilitychange", pollRates);
  narrow.addEventListener("change", cover);
  byId("panel").addEventListener("keydown", (event) => {
    if (event.key === "Escape" && narrow.matches) byId("panel-close").click();
  });
  return refresh;
}

// Shows the panel with a tab.
export function openTab(name) {
  open = name;
  for (const other of NAMES) {
    byId(`tab-${other}`).setAttribute("aria-selected", String(other === name));
    byId(`tab-${other}`).tabIndex = other === name ? 0 : -1;
    byId(`view-${other}`).hidden = other !== name;
  }
  setShown(true);
}

function setShown(shown) {
  byId("panel").hidden = !shown;
  byId("panel-toggle").setAttribute("aria-expanded", String(shown));
  cover();
  refresh();
  pollRates();
}

// What the panel covers cannot be reached.
function cover() {
  const covered = narrow.matches && !byId("panel").hidden;
  for (const part of document.querySelectorAll("header, main")) part.inert = covered;
}

let scheduled = null;

// Fields change with every key: the tokens are asked for when they have been still for a moment.
function refresh() {
  clearTimeout(scheduled);
  if (!byId("panel").hidden && open === "tokens") scheduled = setTimeout(() => showTokens(bodyOf()), 50);
}

// Asks for the rates while they are seen, until the server wants another key.
export async function pollRates() {
  clearTimeout(timer);
  if (byId("panel").hidden || document.hidden || !(await showRates())) return;
  clearTimeout(timer);
  timer = setTimeout(pollRates, SECONDS * 1000);
}
