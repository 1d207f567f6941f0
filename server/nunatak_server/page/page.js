// The page: asks the server how it is every few seconds, and what tasks say when told to.

import { chooseOnly, offerTasks, startAsking } from "/page/asking.js";
import { byId, show } from "/page/dom.js";
import { offerQuestions, startDeciding } from "/page/deciding.js";
import { offerPolicies, startJudging } from "/page/judging.js";
import { askForKey, startKey } from "/page/key.js";
import { listTasks, startListing } from "/page/listing.js";
import { parse, total } from "/page/metrics.js";
import { drawLatency, drawMemory, drawRates, drawSavings, drawSummary } from "/page/panels.js";
import { drawQuestions } from "/page/questions.js";
import { drawReplicas, missReplicas } from "/page/replicas.js";
import { Refusal, getJson, getText, permitted } from "/page/server.js";
import { openTask } from "/page/task.js";

const REFRESH_MS = 2000;
/** Long lists are read less often: reading may take a tenth of the time. */
const PAUSE_PER_READING = 9;
const SHOWN_RATES = 60;
const ANSWERS = "nunatak_requests_total";
const STATE_OF = new Map([[401, "needs an API key"], [403, "key allows less"], [429, "busy"], [503, "not ready"]]);

const state = { info: null, samples: [], readAt: 0, rates: [], hasAskedForKey: false, scrolled: 0 };

async function refresh() {
  try {
    state.info ??= await getJson("/info");
    await getJson("/readyz");
    setState("ready", "ready");
    const readings = [readTasks(), readPolicies(), readQuestions(), readReplicas(), readMetrics()];
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
  // By the numbers in names: team-2 stands before team-10.
  const order = new Intl.Collator(undefined, { numeric: true });
  tasks.sort((a, b) => order.compare(a.name, b.name));
  drawSummary(state.info, tasks);
  offerTasks(tasks);
  listTasks(tasks, memory?.tasks ?? null, state.info.backbone.num_layers);
  byId("memory-panel").hidden = !memory;
  if (memory) {
    drawSavings(memory);
    drawMemory(memory);
  }
}

async function readPolicies() {
  const listed = await permitted(getJson("/v1/policies"));
  offerPolicies(listed?.policies ?? []);
}

async function readQuestions() {
  const listed = await permitted(getJson("/v1/models"));
  offerQuestions(listed?.models[0].x_questions ?? []);
}

async function readReplicas() {
  try {
    const listing = await permitted(getJson("/v1/replicas"));
    if (listing) drawReplicas(listing);
    else byId("replicas-panel").hidden = true;
  } catch (error) {
    // A server without a lease stays ready while the registry does not answer.
    if (!(error instanceof Refusal) || error.status === 401) throw error;
    missReplicas(error.message);
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
  drawQuestions(samples);
}

function explain(error) {
  if (!(error instanceof Refusal)) {
    setState("down", "no answer");
    notice("The server does not answer; this page keeps trying.");
    // What comes back may be another release on another backbone.
    state.info = null;
    return;
  }
  setState([401, 503].includes(error.status) ? "down" : "unknown", STATE_OF.get(error.status) ?? "refused");
  if (error.status !== 401) {
    notice(error.message);
    return;
  }
  if (!state.hasAskedForKey) askForKey();
  state.hasAskedForKey = true;
}

function setState(name, text) {
  byId("state").dataset.state = name;
  show("state", text);
}

function notice(text) {
  byId("notice").hidden = !text;
  show("notice", text);
}

/** Show the task that the address names, or else the overview where it was left. */
function follow() {
  const named = new URLSearchParams(location.hash.slice(1));
  const name = named.get("task");
  if (name && !byId("overview").hidden) state.scrolled = scrollY;
  const isBack = !name && byId("overview").hidden;
  byId("overview").hidden = Boolean(name);
  byId("task-view").hidden = !name;
  document.title = name ? `${name} – Nunatak` : "Nunatak";
  if (name) {
    scrollTo(0, 0);
    openTask(name, named.get("version"), { onAsk: askOnly });
  } else if (isBack) {
    scrollTo(0, state.scrolled);
  }
}

function askOnly(name) {
  chooseOnly(name);
  location.hash = "#ask";
  // The event of the new address comes later, and what is hidden takes no focus.
  follow();
  byId("ask").scrollIntoView();
  byId("text").focus();
}

async function watch() {
  const started = performance.now();
  if (document.visibilityState === "visible") await refresh();
  const pause = state.info ? PAUSE_PER_READING * (performance.now() - started) : 0;
  setTimeout(watch, Math.max(REFRESH_MS, pause));
}

startAsking({ onAnswers: refresh, onMissingKey: askForKey });
startJudging({ onVerdict: refresh, onMissingKey: askForKey });
startDeciding({ onAnswer: refresh, onMissingKey: askForKey });
startListing();
startKey(() => {
  state.hasAskedForKey = false;
  refresh();
  follow();
});
addEventListener("hashchange", follow);
follow();
watch();
