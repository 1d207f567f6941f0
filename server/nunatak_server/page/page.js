// The page: asks the server how it is every few seconds, and what tasks say when told to.

import { answerCard, failureCard } from "/page/answers.js";
import { byId, bytes, element, milliseconds, show } from "/page/dom.js";
import { gained, parse, quantile, total } from "/page/metrics.js";
import { Refusal, getJson, getText, permitted, postJson, storeKey, storedKey } from "/page/server.js";

const REFRESH_MS = 2000;
const SHOWN_RATES = 60;
const CHOSEN_AT_FIRST = 12;
const SECONDS = "nunatak_compute_seconds";

const state = {
  info: null,
  tasks: [],
  memory: null,
  samples: [],
  readAt: 0,
  rates: [],
  manifests: new Map(),
  asks: 0,
  wantsKey: false,
};

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
  Object.assign(state, { tasks, memory });
  drawSummary();
  drawChips();
  drawTasks();
  byId("memory-panel").hidden = !memory;
  if (memory) {
    drawSavings();
    drawMemory();
  }
}

async function readMetrics() {
  const text = await permitted(getText("/metrics"));
  if (text === null) return;
  const samples = parse(text);
  const now = performance.now();
  const before = state.samples;
  const answers = total(samples, "nunatak_requests_total");
  if (state.readAt) {
    const gain = answers - total(before, "nunatak_requests_total");
    state.rates.push(Math.max(0, (1000 * gain) / (now - state.readAt)));
    state.rates.splice(0, state.rates.length - SHOWN_RATES);
    show("rate", state.rates.at(-1).toFixed(state.rates.at(-1) < 10 ? 1 : 0));
    drawRates();
  }
  Object.assign(state, { samples, readAt: now });
  drawLatency(samples, before);
}

function explain(error) {
  if (error instanceof Refusal && error.status === 401) {
    setState("down", "needs an API key");
    if (!state.wantsKey) askForKey();
    state.wantsKey = true;
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

function drawSummary() {
  const { info, tasks } = state;
  show("summary", `${tasks.length} text tasks from one frozen backbone: ${info.backbone.name}, ${info.device}.`);
  const held = tasks.filter((it) => it.resident_versions.length > 0);
  show("resident", `${held.length} of ${tasks.length}`);
}

function drawSavings() {
  const { memory } = state;
  const saved = memory.tasks.length ? `${Math.round(100 * memory.saved_share)} %` : "–";
  show("saved", saved);
  const against = `${bytes(memory.shared_bytes)}, not ${bytes(memory.dedicated_bytes)}`;
  show("saved-note", memory.tasks.length ? against : "no task in memory yet");
  show("resident-note", `${bytes(memory.tiers.device.bytes)} of ${bytes(memory.tiers.device.budget_bytes)}`);
  const { hits, misses, saved_tokens: tokens } = memory.trunk_cache;
  show("cache", hits + misses ? `${Math.round((100 * hits) / (hits + misses))} %` : "–");
  show("cache-note", `${tokens.toLocaleString("en")} tokens not computed`);
}

function drawRates() {
  const top = Math.max(...state.rates, 1);
  const points = state.rates.map((rate, place) => {
    const x = (120 * place) / Math.max(state.rates.length - 1, 1);
    return `${x.toFixed(1)},${(23 - (22 * rate) / top).toFixed(1)}`;
  });
  byId("rate-line").firstElementChild.setAttribute("points", points.join(" "));
}

function drawLatency(samples, before) {
  // Of the batches since the last look, or of all where there were none.
  const recent = gained(samples, before, SECONDS);
  const shown = quantile(recent, 0.5) === null ? gained(samples, [], SECONDS) : recent;
  const [middle, high] = [quantile(shown, 0.5), quantile(shown, 0.95)];
  if (middle === null) return;
  show("latency", milliseconds(1000 * middle));
  show("latency-note", `95 of 100 within ${milliseconds(1000 * high)}`);
}

function drawMemory() {
  const { memory } = state;
  const scale = Math.max(memory.shared_bytes, memory.dedicated_bytes, 1);
  const own = memory.tasks.map((it) => part("own", it.bytes / scale, `${it.task}/${it.version}`));
  const full = memory.tasks.length ? memory.dedicated_bytes / memory.tasks.length / scale : 0;
  const copies = memory.tasks.map((it) => part("backbone", full, `a full model for ${it.task}`));
  byId("memory").replaceChildren(
    memoryRow("Nunatak", [part("backbone", memory.backbone.bytes / scale, "backbone"), ...own], memory.shared_bytes),
    memoryRow("One full model each", copies, memory.dedicated_bytes),
  );
  const whole = memory.process.pss_bytes ?? memory.process.rss_bytes;
  const parts = `one backbone ${bytes(memory.backbone.bytes)}, ${memory.tasks.length} task versions ${bytes(memory.shared_bytes - memory.backbone.bytes)}`;
  show("memory-note", `${parts}, trunk cache ${bytes(memory.trunk_cache.bytes)}; the whole process ${bytes(whole)}`);
}

function part(className, share, title) {
  return element("i", { className, part: share, title });
}

function memoryRow(name, parts, count) {
  return element(
    "div",
    { className: "memory-row" },
    element("span", {}, name),
    element("div", { className: "stack", "aria-hidden": "true" }, ...parts),
    element("span", { className: "value" }, bytes(count)),
  );
}

function drawTasks() {
  byId("tasks").replaceChildren(...state.tasks.map(taskRow));
}

function taskRow(task) {
  const aliases = Object.entries(task.aliases).map(([name, version]) => tag(`${name} → ${version}`));
  const cell = (label, ...content) => element("td", { data: { label } }, ...content);
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, task.name),
    cell("Version", versionOf(task), " ", ...aliases),
    cell("Answers", answersOf(task)),
    cell("Method", task.method),
    cell("Layers", ...layersOf(task)),
    cell("Where", ...placesOf(task)),
  );
}

function versionOf({ version, versions }) {
  return versions.length > 1 ? `${version}, of ${versions.length}` : `${version}`;
}

function answersOf(task) {
  const kind = task.head.replaceAll("_", " ");
  return task.labels.length > 1 ? `${kind}, ${task.labels.length} labels` : kind;
}

function layersOf(task) {
  const count = state.info.backbone.num_layers;
  const shared = task.split_depth ?? 0;
  const boxes = Array.from({ length: Math.min(count, 24) }, (_, index) =>
    element("span", { className: index < (shared * Math.min(count, 24)) / count ? "layer shared" : "layer own" }),
  );
  return [element("span", { className: "layers", "aria-hidden": "true" }, ...boxes), `${shared} of ${count} shared`];
}

function placesOf(task) {
  if (task.resident_versions.length === 0) return ["in the store"];
  if (!state.memory) return task.resident_versions.map((it) => tag(`${it} in memory`, "here"));
  const held = state.memory.tasks.filter((it) => it.task === task.name);
  return held.map((it) =>
    tag(`${it.version} ${it.pinned ? "pinned" : "in memory"}: ${bytes(it.bytes)}`, it.pinned ? "pinned" : "here"),
  );
}

function tag(text, kind = "") {
  return element("span", { className: `tag ${kind}` }, text);
}

function drawChips() {
  const known = new Map([...byId("chips").querySelectorAll("input")].map((it) => [it.value, it.checked]));
  const names = state.tasks.map((it) => it.name);
  if (known.size === names.length && names.every((it) => known.has(it))) return;
  const chips = state.tasks.map((task, place) => {
    const checked = known.get(task.name) ?? place < CHOSEN_AT_FIRST;
    return element("label", {}, element("input", { type: "checkbox", value: task.name, checked }), task.name);
  });
  byId("chips").replaceChildren(...chips);
  drawQuestion();
}

function chosen() {
  const names = new Set([...byId("chips").querySelectorAll(":checked")].map((it) => it.value));
  return state.tasks.filter((it) => names.has(it.name));
}

function drawQuestion() {
  const asking = chosen().filter((it) => it.head === "question_answering");
  const ranking = chosen().filter((it) => it.head === "ranking");
  byId("question-field").hidden = asking.length + ranking.length === 0;
  const notes = [
    ...asking.map((it) => `${it.name} looks for the answer in the text`),
    ...ranking.map((it) => `${it.name} orders the lines of the text`),
  ];
  show("question-note", notes.join("; "));
}

/** The requests that the chosen tasks need: tasks that read the same share one. */
function requests() {
  const text = byId("text").value;
  const question = byId("question").value;
  const documents = text.split("\n").filter((line) => line.trim());
  const inputs = {
    question_answering: { question, context: text },
    ranking: { query: question, documents },
  };
  const groups = grouped(chosen(), (it) => (it.head in inputs ? it.head : "text"));
  return [...groups].map(([kind, tasks]) => ({
    asked: { text, documents, isRegression },
    body: {
      inputs: inputs[kind] ?? text,
      tasks: tasks.map((it) => it.name),
      parameters: { aggregation_strategy: "simple" },
    },
  }));
}

function grouped(items, keyOf) {
  const groups = new Map();
  for (const it of items) groups.set(keyOf(it), [...(groups.get(keyOf(it)) ?? []), it]);
  return groups;
}

function isRegression(result) {
  return state.manifests.get(`${result.task}/${result.version}`)?.head.problem_type === "regression";
}

/** A score of one label may be a number of its own kind: the manifest tells. */
async function learnManifests(results) {
  const single = results.filter((it) => it.outputs?.length === 1 && it.head === "sequence_classification");
  await Promise.all(
    single.map(async ({ task, version }) => {
      const key = `${task}/${version}`;
      if (state.manifests.has(key)) return;
      const path = `/v1/tasks/${encodeURIComponent(task)}?version=${version}`;
      state.manifests.set(key, (await getJson(path)).manifest);
    }),
  );
}

async function ask(event) {
  event.preventDefault();
  const wanted = requests();
  if (wanted.length === 0) return show("timing", "Choose at least one task.");
  const turn = ++state.asks;
  byId("send").disabled = true;
  show("timing", "asking");
  const cards = await Promise.all(wanted.map(askOne));
  if (turn !== state.asks) return undefined;
  byId("send").disabled = false;
  byId("answers").replaceChildren(...cards.flatMap((it) => it.cards));
  show("timing", cards.map((it) => it.timing).filter(Boolean).join("; "));
  return refresh();
}

async function askOne({ asked, body }) {
  try {
    const { answer, timing } = await postJson("/v1/predict", body);
    await learnManifests(answer.results);
    return { cards: answer.results.map((it) => answerCard(it, asked)), timing: spoken(timing, body.tasks.length) };
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) askForKey();
    const reason = error instanceof Refusal ? error.message : "the server does not answer";
    return { cards: [failureCard(body.tasks.join(", "), reason)], timing: "" };
  }
}

function spoken(timing, count) {
  const tasks = count === 1 ? "1 task" : `${count} tasks`;
  const parts = `waiting ${milliseconds(timing.queue)}, reading ${milliseconds(timing.tokenize)}, computing ${milliseconds(timing.compute)}`;
  return `${tasks} in ${milliseconds(timing.total)}: ${parts} in a batch of ${timing.rows}`;
}

function askForKey() {
  const dialog = byId("key-dialog");
  byId("key").value = storedKey();
  if (!dialog.open) dialog.showModal();
}

function takeKey(event) {
  storeKey(event.submitter?.value === "forget" ? "" : byId("key").value.trim());
  state.wantsKey = false;
  byId("key").value = "";
  refresh();
}

async function watch() {
  if (document.visibilityState === "visible") await refresh();
  setTimeout(watch, REFRESH_MS);
}

byId("ask-form").addEventListener("submit", ask);
byId("chips").addEventListener("change", drawQuestion);
byId("key-button").addEventListener("click", askForKey);
byId("key-form").addEventListener("submit", takeKey);
watch();
