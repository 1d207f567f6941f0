// One text to one typed question: of a card, or of the reader.

import { answerForm, bar } from "/page/answers.js";
import { byId, element } from "/page/dom.js";
import { postJson } from "/page/server.js";

const OWN = "another question";
let cards = new Map();

/** Listen to the form; tells when an answer has come, and when a key is missing. */
export function startDeciding({ onAnswer, onMissingKey }) {
  byId("decide-form").addEventListener("change", drawFields);
  byId("decide-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await decide(onMissingKey);
    onAnswer();
  });
  offerQuestions([]);
}

/** Offer the questions of these cards, as System One writes them, and one of the reader. */
export function offerQuestions(listed) {
  const offered = new Map(listed.map((it) => [it.card.split("/")[0], sentQuestion(it)]).filter(([, it]) => it));
  byId("questions-panel").hidden = offered.size === 0 && byId("questions-counts").hidden;
  const names = [...offered.keys(), OWN];
  const before = [...byId("decide-question").options].map((it) => it.value);
  if (names.join() !== before.join()) {
    const chosen = byId("decide-question").value;
    byId("decide-question").replaceChildren(...names.map((it) => element("option", { value: it }, spoken(it, offered))));
    if (names.includes(chosen) && chosen !== OWN) byId("decide-question").value = chosen;
  }
  cards = offered;
  drawFields();
}

function spoken(name, offered) {
  const instructions = offered.get(name)?.instructions;
  return typeof instructions === "string" ? `${name}: ${instructions}` : name;
}

function drawFields() {
  byId("decide-own").hidden = byId("decide-question").value !== OWN;
  byId("decide-outcomes-field").hidden = byId("decide-type").value === "noul";
}

/** The question in the shape of System One; nothing if that shape cannot say it. */
function sentQuestion({ type, instructions, options, levels, yes, no }) {
  const said = instructions === null ? {} : { instructions };
  if (type === "predicate") {
    const sides = Object.entries({ true: yes, false: no }).filter(([, it]) => it !== null);
    return { type: "noul", ...said, ...(sides.length ? { criteria: Object.fromEntries(sides) } : {}) };
  }
  if (type === "choice") {
    if (options.some((it) => typeof it.value !== "string")) return null;
    return { type, ...said, criteria: Object.fromEntries(options.map((it) => [it.value, it.description])) };
  }
  if (levels.some((it) => it.description !== null)) return null;
  return { type, ...said, criteria: levels.map((it) => it.label) };
}

function ownQuestion() {
  const type = byId("decide-type").value;
  const lines = byId("decide-outcomes").value.split("\n").map((it) => it.trim()).filter(Boolean);
  const criteria = { choice: Object.fromEntries(lines.map((it) => [it, null])), score: lines }[type];
  return { type, instructions: byId("decide-instructions").value, ...(criteria ? { criteria } : {}) };
}

async function decide(onMissingKey) {
  const name = byId("decide-question").value;
  const question = cards.get(name) ?? ownQuestion();
  await answerForm({ form: "decide", place: "decision", title: name, verb: ["asking", "answered"], onMissingKey }, async () => {
    const body = { model: "nunatak", state: byId("decide-text").value, questions: { [name]: question } };
    const { answer, timing } = await postJson("/v1/systemone", body);
    return { card: decisionCard(name, answer.answers[name]), timing };
  });
}

function decisionCard(name, { type, noul, probabilities, legend, x_source: source }) {
  const shares = type === "noul" ? { yes: noul, no: 1 - noul } : probabilities;
  const best = Math.max(...Object.values(shares));
  const rows = Object.entries(shares).map(([it, share]) => bar(legend?.[it] ?? it, share, share === best));
  const by = `${source.kind} ${source.task ?? source.model ?? ""}`;
  return element(
    "article",
    { className: "answer" },
    element("h3", {}, name, " ", element("span", {}, by)),
    element("ul", { className: "scores" }, ...rows),
  );
}
