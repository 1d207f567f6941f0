// What the server holds and how fast it is: drawn from plain values.

import { byId, bytes, element, milliseconds, percent, show } from "/page/dom.js";
import { gained, quantile } from "/page/metrics.js";

const COMPUTE = "nunatak_compute_seconds";
const REQUESTS = "nunatak_http_request_seconds";
const PREDICT = /(?:^|,)route="[^"]*predict"/;
/** Of more versions than this, the bars show one part for all: the parts would be thinner than their borders. */
const SHOWN_PARTS = 100;

const backbonesOf = (reply) => [reply.backbone, ...reply.other_backbones];
const counted = (backbones) => (backbones.length === 1 ? "one" : `${backbones.length}`);
const plural = (backbones) => (backbones.length === 1 ? "backbone" : "backbones");

export function drawSummary(info, tasks) {
  const backbones = backbonesOf(info);
  const names = backbones.map((it) => it.name).join(", ");
  show("summary", `${tasks.length} text tasks from ${counted(backbones)} frozen ${plural(backbones)}: ${names}, ${info.device}.`);
  const held = tasks.filter((it) => it.resident_versions.length > 0);
  show("resident", `${held.length} of ${tasks.length}`);
}

export function drawSavings(memory) {
  const saved = memory.tasks.length ? percent(memory.saved_share) : "–";
  show("saved", saved);
  const against = `${bytes(memory.shared_bytes)}, not ${bytes(memory.dedicated_bytes)}`;
  show("saved-note", memory.tasks.length ? against : "no task in memory yet");
  show("resident-note", `${bytes(memory.tiers.device.bytes)} of ${bytes(memory.tiers.device.budget_bytes)}`);
  const { hits, misses, saved_tokens: tokens } = memory.trunk_cache;
  show("cache", hits + misses ? percent(hits / (hits + misses)) : "–");
  show("cache-note", `${tokens.toLocaleString("en")} tokens not computed`);
}

/** Answers per second: the last one in figures, all of them as a line. */
export function drawRates(rates) {
  const last = rates.at(-1);
  show("rate", last.toFixed(last < 10 ? 1 : 0));
  const top = Math.max(...rates, 1);
  const points = rates.map((rate, place) => {
    const x = (120 * place) / Math.max(rates.length - 1, 1);
    return `${x.toFixed(1)},${(23 - (22 * rate) / top).toFixed(1)}`;
  });
  byId("rate-line").firstElementChild.setAttribute("points", points.join(" "));
}

/** What callers wait for, from a request's head to the end of its answer, and the forward's part of it. */
export function drawLatency(samples, before) {
  drawTimes("wait", lately(samples, before, REQUESTS, PREDICT), 99);
  drawTimes("latency", lately(samples, before, COMPUTE), 95);
}

/** What was timed since the last look, or ever where nothing was since. */
function lately(samples, before, name, labels) {
  const recent = gained(samples, before, name, labels);
  return quantile(recent, 0.5) === null ? gained(samples, [], name, labels) : recent;
}

function drawTimes(id, times, high) {
  const middle = quantile(times, 0.5);
  if (middle === null) return;
  // Times past the highest bound are not told apart: an estimate there would be too low.
  const most = times.at(-2)?.[0] ?? Infinity;
  const text = (seconds) => (seconds < most ? milliseconds(1000 * seconds) : `over ${most} s`);
  show(id, text(middle));
  const late = quantile(times, high / 100);
  const within = `${high} of 100 within `;
  show(`${id}-note`, late < most ? within + text(late) : `fewer than ${within}${most} s`);
}

export function drawMemory(memory) {
  const scale = Math.max(memory.shared_bytes, memory.dedicated_bytes, 1);
  const own = merged("own", memory.tasks.map((it) => [it.bytes / scale, `${it.task}/${it.version}`]));
  const names = [...new Set(memory.tasks.map((it) => it.task))];
  const full = memory.dedicated_bytes / Math.max(names.length, 1) / scale;
  const copies = merged("backbone", names.map((name) => [full, `a full model for ${name}`]));
  const backbones = backbonesOf(memory);
  const frozen = backbones.reduce((sum, it) => sum + it.bytes, 0);
  const shared = backbones.map((it) => part("backbone", it.bytes / scale, `backbone ${it.name}`));
  byId("memory").replaceChildren(
    memoryRow("Nunatak", [...shared, ...own], memory.shared_bytes),
    memoryRow("One full model each", copies, memory.dedicated_bytes),
  );
  const whole = memory.process.pss_bytes ?? memory.process.rss_bytes;
  const parts = `${counted(backbones)} ${plural(backbones)} ${bytes(frozen)}, ${memory.tasks.length} task versions ${bytes(memory.shared_bytes - frozen)}`;
  show("memory-note", `${parts}, trunk cache ${bytes(memory.trunk_cache.bytes)}; the whole process ${bytes(whole)}`);
}

function merged(className, parts) {
  if (parts.length <= SHOWN_PARTS) return parts.map(([share, title]) => part(className, share, title));
  const share = parts.reduce((sum, [own]) => sum + own, 0);
  return [part(className, share, `${parts.length} task versions`)];
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

