// One text to the chosen tasks.

import { answerCard, failureCard } from "/page/answers.js";
import { byId, element, milliseconds, show } from "/page/dom.js";
import { matches } from "/page/listing.js";
import { Refusal, postJson, reasonOf } from "/page/server.js";

const CHOSEN_AT_FIRST = 12;
/** More tasks than this are found by words; the chosen ones are always shown. */
const SHOWN_CHIPS = 24;
/** Of each kind of input: the field that must not be empty, and what to do about it. */
const NEEDED = {
  question_answering: ["question", "Write a question: the task looks for its answer in the text."],
  ranking: ["question", "Write a query: the task orders the lines of the text by it."],
  pair: ["pair", "Write a second text: the task reads two texts together."],
};

const chosen = new Set();
let tasks = [];

/** Listen to the form; tells when answers have come, and when a key is missing. */
export function startAsking({ onAnswers, onMissingKey }) {
  byId("chips").addEventListener("change", ({ target }) => {
    if (target.checked) chosen.add(target.value);
    else chosen.delete(target.value);
    drawBoxes();
  });
  byId("choose-find").addEventListener("input", drawChips);
  byId("choose-none").addEventListener("click", () => {
    chosen.clear();
    drawChips();
  });
  byId("ask-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await ask(onMissingKey);
    onAnswers();
  });
}

/** Offer these tasks; what is chosen stays chosen. */
export function offerTasks(offered) {
  const before = tasks.map((it) => it.name);
  tasks = offered;
  const names = tasks.map((it) => it.name);
  if (before.length === 0 && chosen.size === 0) names.slice(0, CHOSEN_AT_FIRST).forEach((it) => chosen.add(it));
  if (before.join() !== names.join()) drawChips();
}

/** Choose one task, and no other. */
export function chooseOnly(name) {
  chosen.clear();
  chosen.add(name);
  drawChips();
}

function drawChips() {
  const words = byId("choose-find").value;
  const found = tasks.filter((it) => !chosen.has(it.name) && matches(it, words));
  const picked = tasks.filter((it) => chosen.has(it.name));
  const room = tasks.length <= SHOWN_CHIPS || words ? SHOWN_CHIPS : SHOWN_CHIPS - picked.length;
  const shown = new Set([...picked, ...found.slice(0, Math.max(room, 0))]);
  const chips = tasks.filter((it) => shown.has(it)).map(({ name }) => {
    const box = element("input", { type: "checkbox", value: name, checked: chosen.has(name) });
    return element("label", {}, box, name);
  });
  byId("chips").replaceChildren(...chips);
  byId("choose").hidden = tasks.length <= SHOWN_CHIPS;
  const rest = found.length + picked.length - shown.size;
  show("chips-note", rest ? `and ${rest} more: find them by their names or labels` : "");
  drawBoxes();
}

function wanted() {
  return tasks.filter((it) => chosen.has(it.name));
}

/** What a task reads next to the text decides which boxes there are. */
function drawBoxes() {
  const pairing = wanted().filter(readsPairs);
  byId("pair-field").hidden = pairing.length === 0;
  show("pair-note", pairing.map((it) => `${it.name} reads both texts together`).join("; "));
  const asking = wanted().filter((it) => it.head === "question_answering");
  const ranking = wanted().filter((it) => it.head === "ranking");
  byId("question-field").hidden = asking.length + ranking.length === 0;
  const notes = [
    ...asking.map((it) => `${it.name} looks for the answer in the text`),
    ...ranking.map((it) => `${it.name} orders the lines of the text`),
  ];
  show("question-note", notes.join("; "));
}

function readsPairs(task) {
  return task.reads === "pair";
}

/** The requests that the chosen tasks need: tasks that read the same share one. */
function requests() {
  const text = byId("text").value;
  const question = byId("question").value;
  const documents = text.split("\n").filter((line) => line.trim());
  const inputs = {
    question_answering: { question, context: text },
    ranking: { query: question, documents },
    pair: { text, text_pair: byId("pair").value },
  };
  const kindOf = (it) => (readsPairs(it) ? "pair" : it.head in inputs ? it.head : "text");
  const groups = grouped(wanted(), kindOf);
  return [...groups].map(([kind, members]) => ({
    kind,
    asked: { text, documents },
    body: {
      inputs: inputs[kind] ?? text,
      tasks: members.map((it) => it.name),
      parameters: { aggregation_strategy: "first" },
    },
  }));
}

function grouped(items, keyOf) {
  const groups = new Map();
  for (const it of items) groups.set(keyOf(it), [...(groups.get(keyOf(it)) ?? []), it]);
  return groups;
}

async function ask(onMissingKey) {
  const all = requests();
  if (all.length === 0) return refuse("Choose at least one task.", "chips");
  if (!byId("text").value.trim()) return refuse("Write a text first: the box above is empty.", "text");
  byId("send").disabled = true;
  show("timing", "asking");
  const cards = await Promise.all(all.map((it) => askOne(it, onMissingKey)));
  byId("send").disabled = false;
  byId("answers").replaceChildren(...cards.flatMap((it) => it.cards));
  show("timing", cards.map((it) => it.timing).filter(Boolean).join("; "));
}

function refuse(reason, id) {
  show("timing", reason);
  byId(id).focus();
}

async function askOne({ kind, asked, body }, onMissingKey) {
  const [field, reason] = NEEDED[kind] ?? ["text", ""];
  if (!byId(field).value.trim()) return failed(body, reason);
  try {
    const { answer, timing } = await postJson("/v1/predict", body);
    return { cards: answer.results.map((it) => answerCard(it, asked)), timing: spoken(timing, body.tasks.length) };
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) onMissingKey();
    return failed(body, reasonOf(error));
  }
}

function failed(body, reason) {
  return { cards: [failureCard(body.tasks.join(", "), reason)], timing: "" };
}

function spoken(timing, count) {
  const asked = count === 1 ? "1 task" : `${count} tasks`;
  const parts = `waiting ${milliseconds(timing.queue)}, reading ${milliseconds(timing.tokenize)}, computing ${milliseconds(timing.compute)}`;
  return `${asked} in ${milliseconds(timing.total)}: ${parts} with ${timing.rows} own rows in the batch`;
}
