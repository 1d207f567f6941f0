// One text to the chosen tasks.

import { answerCard, failureCard } from "/page/answers.js";
import { byId, element, milliseconds, show } from "/page/dom.js";
import { Refusal, postJson } from "/page/server.js";

const CHOSEN_AT_FIRST = 12;

let tasks = [];

/** Listen to the form; tells when answers have come, and when a key is missing. */
export function startAsking({ onAnswers, onMissingKey }) {
  byId("chips").addEventListener("change", drawBoxes);
  byId("ask-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await ask(onMissingKey);
    onAnswers();
  });
}

/** Offer these tasks; what is chosen stays chosen. */
export function offerTasks(offered) {
  tasks = offered;
  const known = new Map([...byId("chips").querySelectorAll("input")].map((it) => [it.value, it.checked]));
  const names = tasks.map((it) => it.name);
  if (known.size === names.length && names.every((it) => known.has(it))) return;
  const chips = tasks.map((task, place) => {
    const checked = known.get(task.name) ?? place < CHOSEN_AT_FIRST;
    return element("label", {}, element("input", { type: "checkbox", value: task.name, checked }), task.name);
  });
  byId("chips").replaceChildren(...chips);
  drawBoxes();
}

function chosen() {
  const names = new Set([...byId("chips").querySelectorAll(":checked")].map((it) => it.value));
  return tasks.filter((it) => names.has(it.name));
}

/** What a task reads next to the text decides which boxes there are. */
function drawBoxes() {
  const pairing = chosen().filter(readsPairs);
  byId("pair-field").hidden = pairing.length === 0;
  show("pair-note", pairing.map((it) => `${it.name} reads both texts together`).join("; "));
  const asking = chosen().filter((it) => it.head === "question_answering");
  const ranking = chosen().filter((it) => it.head === "ranking");
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
  const groups = grouped(chosen(), kindOf);
  return [...groups].map(([kind, members]) => ({
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
  const wanted = requests();
  if (wanted.length === 0) {
    show("timing", "Choose at least one task.");
    return;
  }
  byId("send").disabled = true;
  show("timing", "asking");
  const cards = await Promise.all(wanted.map((it) => askOne(it, onMissingKey)));
  byId("send").disabled = false;
  byId("answers").replaceChildren(...cards.flatMap((it) => it.cards));
  show("timing", cards.map((it) => it.timing).filter(Boolean).join("; "));
}

async function askOne({ asked, body }, onMissingKey) {
  try {
    const { answer, timing } = await postJson("/v1/predict", body);
    return { cards: answer.results.map((it) => answerCard(it, asked)), timing: spoken(timing, body.tasks.length) };
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) onMissingKey();
    const reason = error instanceof Refusal ? error.message : "the server does not answer";
    return { cards: [failureCard(body.tasks.join(", "), reason)], timing: "" };
  }
}

function spoken(timing, count) {
  const asked = count === 1 ? "1 task" : `${count} tasks`;
  const parts = `waiting ${milliseconds(timing.queue)}, reading ${milliseconds(timing.tokenize)}, computing ${milliseconds(timing.compute)}`;
  return `${asked} in ${milliseconds(timing.total)}: ${parts} in a batch of ${timing.rows}`;
}
