// What tasks answer, by the kind of their head.

import { byId, element, milliseconds, show } from "/page/dom.js";
import { Refusal, reasonOf } from "/page/server.js";

const SHOWN_LABELS = 6;

/** Send what a form asks, and show the card that `send` makes of it, or why there is none. */
export async function answerForm({ form, place, title, verb, onMissingKey }, send) {
  byId(`${form}-send`).disabled = true;
  show(`${form}-timing`, verb[0]);
  try {
    const { card, timing } = await send();
    show(`${form}-timing`, `${verb[1]} in ${milliseconds(timing.total)}`);
    byId(place).replaceChildren(card);
  } catch (error) {
    if (error instanceof Refusal && error.status === 401) onMissingKey();
    show(`${form}-timing`, "");
    byId(place).replaceChildren(failureCard(title, reasonOf(error)));
  } finally {
    byId(`${form}-send`).disabled = false;
  }
}

/** One task's answer or failure as a card. */
export function answerCard(result, asked) {
  if (result.error) return failureCard(result.reference, result.error.detail ?? result.error.code);
  const name = `${result.task}/${result.version}`;
  const kind = result.head.replaceAll("_", " ");
  const card = element(
    "article",
    { className: "answer" },
    element("h3", {}, name, " ", element("span", {}, kind)),
    body(result, asked),
  );
  if (result.truncated) card.append(element("p", { className: "warning" }, cutNote(result)));
  const isLong = ["token_classification", "question_answering"].includes(result.head);
  card.classList.toggle("wide", isLong);
  return card;
}

function cutNote(result) {
  return `The text was cut: only ${result.tokens} tokens of it were read.`;
}

export function failureCard(title, reason) {
  return element(
    "article",
    { className: "answer failed" },
    element("h3", {}, title),
    element("p", {}, reason),
  );
}

function body(result, asked) {
  switch (result.head) {
    case "token_classification":
      return spans(asked.text, result.outputs);
    case "question_answering":
      return answered(asked.text, result.outputs);
    case "ranking":
      return ranked(asked.documents, result.outputs);
    default:
      return result.problem_type === "regression" ? number(result.outputs) : scores(result);
  }
}

/** Every predicted label is shown, whatever its place; a multi-label task may predict none. */
function scores({ outputs, predicted }) {
  const names = new Set([predicted].flat());
  const labels = outputs.filter((it, place) => place < SHOWN_LABELS || names.has(it.label));
  const rows = labels.map((it) => bar(it.label, it.score, names.has(it.label)));
  const list = element("ul", { className: "scores" }, ...rows);
  if (outputs.length > labels.length) {
    list.append(element("li", { className: "quiet-text" }, `and ${outputs.length - labels.length} more`));
  }
  return names.size ? list : element("div", {}, element("p", { className: "quiet-text" }, "no label applies"), list);
}

function ranked(documents, outputs) {
  const rows = outputs.map((it, place) => bar(documents[it.index], it.score, place === 0));
  return element("ol", { className: "scores" }, ...rows);
}

export function bar(name, score, isBest) {
  return element(
    "li",
    { className: isBest ? "score best" : "score" },
    element("span", { className: "name" }, name),
    element("span", { className: "value" }, score.toFixed(2)),
    element("span", { className: "bar", "aria-hidden": "true" }, element("i", { part: score })),
  );
}

function number(outputs) {
  const [{ label, score }] = outputs;
  return element(
    "p",
    { className: "big" },
    score.toFixed(2),
    " ",
    element("span", { className: "quiet-text" }, label),
  );
}

function spans(text, groups) {
  const marks = groups.map((it) => ({ ...it, label: it.entity_group ?? it.entity }));
  if (marks.length === 0) return element("p", { className: "passage" }, text);
  return passage(text, marks, (it) => it.label);
}

function answered(text, answers) {
  const found = answers.filter((it) => it.end > it.start);
  if (found.length === 0) return element("p", { className: "quiet-text" }, "no answer in the text");
  const [best] = found;
  return element(
    "div",
    {},
    element("p", { className: "big" }, best.answer),
    passage(text, [best], (it) => it.score.toFixed(2)),
  );
}

/** The text with its marked parts; the server counts characters, JavaScript counts halves of some. */
function passage(text, marks, note) {
  const characters = Array.from(text);
  const slice = (begin, end) => characters.slice(begin, end).join("");
  const made = element("p", { className: "passage" });
  let place = 0;
  for (const it of [...marks].sort((a, b) => a.start - b.start)) {
    if (it.start < place) continue;
    made.append(slice(place, it.start));
    made.append(element("mark", {}, slice(it.start, it.end), element("b", {}, note(it))));
    place = it.end;
  }
  made.append(slice(place));
  return made;
}
