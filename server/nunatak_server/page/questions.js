// Typed questions: what answered each card's question, and whether the upstream agrees.

import { byId, element, milliseconds } from "/page/dom.js";

const COUNTS = "nunatak_decisions_total";
const UNSURE = "nunatak_decisions_unsure_total";
const SECONDS = "nunatak_decisions_seconds";
const SOURCES = ["task", "embeddings", "upstream"];

/** Draw one row per card, and one for the questions without a card. */
export function drawQuestions(samples) {
  const cards = [...new Set(samples.filter((it) => it.name === COUNTS).map((it) => label(it, "card")))].sort();
  byId("questions-counts").hidden = cards.length === 0;
  byId("questions").replaceChildren(...cards.map((card) => row(samples, card)));
}

function row(samples, card) {
  const own = samples.filter((it) => label(it, "card") === card);
  const sum = (name, fits = () => true) => own.reduce((all, it) => (it.name === name && fits(it) ? all + it.value : all), 0);
  const by = (source) => sum(COUNTS, (it) => label(it, "by") === source);
  const failed = sum(COUNTS, (it) => !SOURCES.includes(label(it, "by")));
  const agreed = sum(UNSURE, (it) => label(it, "upstream") === "agrees");
  const compared = agreed + sum(UNSURE, (it) => label(it, "upstream") === "differs");
  const timed = sum(`${SECONDS}_count`);
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, card || "without a card"),
    cell("Here", count(by("task"))),
    cell("Embeddings", count(by("embeddings"))),
    cell("Upstream", count(by("upstream"))),
    cell("Failed", count(failed)),
    cell("Upstream agrees", compared ? `${Math.round((100 * agreed) / compared)} % of ${count(compared)}` : "–"),
    cell("Mean time", timed ? milliseconds((1000 * sum(`${SECONDS}_sum`)) / timed) : "–"),
  );
}

function cell(name, text) {
  return element("td", { data: { label: name } }, text);
}

function label(sample, name) {
  return new RegExp(`(?:^|,)${name}="([^"]*)"`).exec(sample.labels)?.[1];
}

function count(value) {
  return value.toLocaleString("en");
}
