// The page: asks the server how it is every few seconds, and what tasks say when told to.

import { offerTasks, startAsking } from "/page/asking.js";
import { byId, show } from "/page/dom.js";
import { parse, total } from "/page/metrics.js";
import { drawLatency, drawMemory, drawRates, drawSavings, drawSummary, drawTasks } from "/page/panels.js";
import { Refusal, getJson, getText, permitted, storeKey, storedKey } from "/page/server.js";

const REFRESH_MS = 2000;
const SHOWN_RATES = 60;
const ANSWERS = "nunatak_requests_total";

const state = { info: null, samples: [], readAt: 0, rates: [], hasAskedForKey: false };

async function refresh() {
  try {
    state.info ??= await getJson("/info");
    await getJson("/readyz");
    setState("ready", "ready");
    const readings = [readTasks(), readMetrics()];
    for (const it of await Promise.allSettled(readings)) {
      if (it.status === "rejected") throw it.reason;
    }
    notice("");
  } catch (error) {
    explain(error);
  }
}

async function readTasks() {
  const asked = [getJson("/v1/tasks"), permitted(getJson("/v1/memory"))];
  const [{ tasks }, memory] = await Promise.all(asked);
  drawSummary(state.info, tasks);
  offerTasks(tasks);
  drawTasks(tasks, memory?.tasks ?? null, state.info.backbone.num_layers);
  byId("memory-panel").hidden = !memory;
  if (memory) {
    drawSavings(memory);
    drawMemory(memory);
  }
}

async function readMetrics() {
  const text = await permitted(getText("/metrics"));
  if (text === null) return;
  const samples = parse(text);
  const now = performance.now();
  const before = state.samples;
  if (state.readAt) {
    const gain = total(samples, ANSWERS) - total(before, ANSWERS);
    state.rates.push(Math.max(0, (1000 * gain) / (now - state.readAt)));
    state.rates.splice(0, state.rates.length - SHOWN_RATES);
    drawRates(state.rates);
  }
  Object.assign(state, { samples, readAt: now });
  drawLatency(samples, before);
}

function explain(error) {
  if (error instanceof Refusal && error.status === 401) {
    setState("down", "needs an API key");
    if (!state.hasAskedForKey) askForKey();
    state.hasAskedForKey = true;
  } else if (error instanceof Refusal) {
    setState(error.status === 503 ? "down" : "unknown", error.code.replaceAll("_", " "));
    notice(error.message);
  } else {
    setState("down", "no answer");
    notice("The server does not answer; this page keeps trying.");
  }
}

function setState(name, text) {
  byId("state").dataset.state = name;
  show("state", text);
}

function notice(text) {
  byId("notice").hidden = !text;
  show("notice", text);
}

function askForKey() {
  const dialog = byId("key-dialog");
  byId("key").value = storedKey();
  if (!dialog.open) dialog.showModal();
}

function takeKey(event) {
  storeKey(event.submitter?.value === "forget" ? "" : byId("key").value.trim());
  state.hasAskedForKey = false;
  byId("key").value = "";
  refresh();
}

async function watch() {
  if (document.visibilityState === "visible") await refresh();
  setTimeout(watch, REFRESH_MS);
}

startAsking({ onAnswers: refresh, onMissingKey: askForKey });
byId("key-button").addEventListener("click", askForKey);
byId("key-form").addEventListener("submit", takeKey);
watch();
