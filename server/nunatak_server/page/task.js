// One task: its scores, mistakes, labels, versions, history and card.

import { byId, bytes, element, percent } from "/page/dom.js";
import { kindText, tag } from "/page/listing.js";
import { getJson, reasonOf } from "/page/server.js";

/** A matrix of more labels has no room; its most frequent mistakes are listed instead. */
const MATRIX_LABELS = 12;
const SHOWN_MISTAKES = 10;
const SHOWN_LABELS = 100;
const SHOWN_VERSIONS = 50;
const SHOWN_EVENTS = 50;
const DEFAULT_THRESHOLD = 0.5;
const LONG = {
  windows: "longer inputs are read in overlapping windows",
  refuse: "longer inputs are refused",
  cut: "longer inputs are cut",
};
const READS = { single: "a single text", pair: "two texts together" };

let latest = 0;

/** Read a task, or one of its versions, and show it; `onAsk` is called to ask the task. */
export async function openTask(name, version, { onAsk }) {
  const number = ++latest;
  const isLatest = () => number === latest;
  drawView(name, onAsk, element("p", { className: "quiet-text" }, "reading"));
  const content = await read(name, version);
  if (isLatest()) drawView(name, onAsk, ...content);
}

async function read(name, version) {
  const path = `/v1/tasks/${encodeURIComponent(name)}`;
  const query = version ? `?${new URLSearchParams({ version })}` : "";
  let found;
  try {
    found = await Promise.all([getJson(path + query), getJson(`${path}/history`)]);
  } catch (error) {
    return [element("p", { className: "failure" }, reasonOf(error))];
  }
  return sections(...found);
}

function drawView(name, onAsk, ...content) {
  const ask = element("button", { type: "button", className: "quiet" }, "Ask this task");
  ask.addEventListener("click", () => onAsk(name));
  const back = element("a", { className: "quiet", href: "#" }, "All tasks");
  const title = element("h2", { id: "task-title", tabIndex: -1 }, name);
  byId("task-view").replaceChildren(element("div", { className: "actions" }, title, ask, back), ...content);
  title.focus({ preventScroll: true });
}

function sections(task, history) {
  const { manifest } = task;
  const lead = `Version ${manifest.version} of ${task.versions.length}: ${predicts(manifest)} on ${manifest.backbone.name}.`;
  return [
    element("p", {}, lead),
    ...(manifest.note ? [element("p", { className: "passage" }, manifest.note)] : []),
    ...section("scores", "Scores", scores(manifest)),
    ...section("confusion", "Confusion on the dev examples", confusion(manifest)),
    ...section("labels", "Labels", labels(manifest.head)),
    ...section("versions", "Versions", versions(task)),
    ...section("history", "History", events(history)),
    ...section("card", "Card", card(manifest)),
  ];
}

function section(id, title, content) {
  return [element("h3", { id: `task-${id}` }, title), element("div", { className: "scroll", data: { part: id } }, ...content)];
}

function none(text) {
  return [element("p", { className: "quiet-text" }, text)];
}

function predicts({ head }) {
  return kindText(head.problem_type ?? head.kind);
}

function table(header, rows) {
  const cells = (row, kind) => row.map((it) => element(kind, {}, ...[it].flat()));
  return element(
    "table",
    {},
    element("thead", {}, element("tr", {}, ...cells(header, "th"))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells(row, "td")))),
  );
}

function scores({ metrics, test_metrics: tests = [] }) {
  const row = (part) => (it) => [part, it.name, scoreText(it), it.num_examples.toLocaleString("en")];
  const rows = [...tests.map(row("test")), ...metrics.map(row("dev"))];
  if (rows.length === 0) return none("No scores are recorded for this version.");
  const note = "Training neither learnt from the test examples nor chose by them; it may have chosen by the dev examples.";
  return [table(["part", "metric", "value [95 % interval]", "examples"], rows), ...none(note)];
}

function scoreText({ value, interval, interval_method: method }) {
  if (!interval) return value.toFixed(4);
  const [low, high] = interval.map((it) => it.toFixed(4));
  return `${value.toFixed(4)} [${low}, ${high}] (${method ?? "bootstrap"})`;
}

function confusion({ confusion: recorded, head }) {
  if (!recorded) return none("No confusion matrix is recorded for this version.");
  return head.labels.length > MATRIX_LABELS ? mistakes(recorded.cells) : [matrix(recorded.cells, head.labels)];
}

function matrix(cells, names) {
  const counts = new Map(cells.map((it) => [JSON.stringify([it.truth, it.predicted]), it.count]));
  const rows = names.map((truth) => {
    const row = names.map((predicted) => counts.get(JSON.stringify([truth, predicted])) ?? 0);
    const sum = row.reduce((all, it) => all + it, 0);
    const cell = (count, at) =>
      element("td", { part: sum ? count / sum : 0, className: names[at] === truth ? "right" : "wrong" }, `${count}`);
    return element("tr", {}, element("th", { scope: "row" }, truth), ...row.map(cell));
  });
  const head = ["true \\ predicted", ...names].map((it) => element("th", { scope: "col" }, it));
  return element("table", { className: "matrix" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

function mistakes(cells) {
  const wrong = cells.filter((it) => it.truth !== it.predicted).sort((a, b) => b.count - a.count);
  if (wrong.length === 0) return none("No mistakes.");
  const rows = wrong.slice(0, SHOWN_MISTAKES).map((it) => [it.truth, it.predicted, `${it.count}`]);
  return [table(["true", "predicted instead", "times"], rows), ...rest(wrong.length, SHOWN_MISTAKES, "pairs of labels")];
}

function rest(count, shown, what) {
  return count > shown ? none(`and ${count - shown} more ${what}`) : [];
}

function labels({ labels: names, problem_type: problem, thresholds = {}, default_label: usual }) {
  if (names.length === 0) return none("This kind of task has no labels.");
  const shown = names.slice(0, SHOWN_LABELS);
  const more = rest(names.length, SHOWN_LABELS, "labels");
  if (problem === "multi_label_classification") {
    // A label such as "constructor" is also a name in every object.
    const known = new Map(Object.entries(thresholds));
    const rows = shown.map((it) => [it, `${known.get(it) ?? DEFAULT_THRESHOLD}`, known.has(it) ? "" : "not recorded: the default"]);
    return [table(["label", "applies from a score of", ""], rows), ...more];
  }
  const chips = shown.map((it) => tag(it === usual ? `${it} (default)` : it));
  const note = usual ? none("The default label means that nothing was found.") : [];
  return [element("p", {}, ...chips), ...more, ...note];
}

function versions({ name, manifest, versions: numbers, aliases, candidates, resident_versions: held }) {
  const rows = [...numbers].reverse().slice(0, SHOWN_VERSIONS).map((version) => {
    const link = element("a", { href: `#${new URLSearchParams({ task: name, version })}` }, `version ${version}`);
    const named = Object.entries(aliases).filter(([, it]) => it === version).map(([alias]) => tag(alias));
    const tried = candidates.filter((it) => it.version === version).map((it) => tag(`${it.role} of ${it.alias}`, it.role));
    const place = held.includes(version) ? [tag("in memory", "here")] : [];
    return [[link, version === manifest.version ? " (shown)" : ""], [...named, ...tried, ...place]];
  });
  return [table(["", ""], rows), ...rest(numbers.length, SHOWN_VERSIONS, "versions")];
}

function events({ events: moves, candidates }) {
  const all = [...moves.map((it) => ({ ...it, text: moveText(it) })), ...candidates.map((it) => ({ ...it, text: candidateText(it) }))];
  if (all.length === 0) return none("No alias was ever set: the bare name means the newest version.");
  // Equal times keep their order, so that a move stays before the candidates that it ended.
  const newest = all.sort((a, b) => Date.parse(a.at) - Date.parse(b.at)).reverse();
  const rows = newest.slice(0, SHOWN_EVENTS).map((it) => [moment(it.at), it.text, it.by]);
  return [table(["when", "what", "by"], rows), ...rest(all.length, SHOWN_EVENTS, "changes")];
}

function moveText({ alias, kind, previous_version: before, version: after }) {
  if (kind === "rollback") return `${alias} rolled back from ${before} to ${after}`;
  return before === null ? `${alias} set to ${after}` : `${alias} moved from ${before} to ${after}`;
}

function candidateText({ alias, role, kind, version, share }) {
  if (kind === "end") return `${role} of ${alias} ended (version ${version})`;
  return `${role} of ${alias}: version ${version}, ${Number((100 * share).toPrecision(4))} %`;
}

function moment(text) {
  return element("time", { dateTime: text }, new Date(text).toLocaleString());
}

function card(manifest) {
  const facts = [...factsOf(manifest), ...dataOf(manifest), ...originOf(manifest)];
  const list = facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  return [element("dl", { className: "facts" }, ...list), ...recipeOf(manifest)];
}

function factsOf(manifest) {
  const { method, backbone, head, parameter_counts: own } = manifest;
  const { kind, ...settings } = method;
  const numbers = Object.entries(settings).map(([name, it]) => `${kindText(name)} ${[it].flat().map(String).join(" and ")}`);
  const layers = manifest.split_depth === null ? "none: a full copy" : `${manifest.split_depth} of ${backbone.num_layers}`;
  const long = LONG[manifest.on_long ?? (head.kind === "ranking" ? "cut" : "windows")];
  const stored = manifest.blobs.reduce((sum, it) => sum + it.size_bytes, 0);
  return [
    ["method", [kind, ...numbers].join(", ")],
    ["shared layers", layers],
    ["own parameters", `${(own.branch + own.head).toLocaleString("en")} (${own.head.toLocaleString("en")} in the head)`],
    ...savedOf(backbone, own),
    ["stored", `${bytes(stored)} (${manifest.dtype})`],
    ...(head.kind === "sequence_classification" ? [["reads", READS[manifest.reads] ?? "a single text or two texts"]] : []),
    ["longest input", `${manifest.max_length} tokens; ${long}`],
  ];
}

function savedOf({ num_parameters: whole }, own) {
  if (!whole) return [];
  const share = 1 - (own.branch + own.head) / (whole + own.head);
  return [["saved against a model of its own", `${percent(share, 1)} of the parameters`]];
}

function dataOf({ data }) {
  if (!data) return [["data", "not recorded"]];
  const count = (number) => number.toLocaleString("en");
  return [["data", `${data.name}: ${count(data.num_train)} train and ${count(data.num_dev)} dev examples`]];
}

function originOf({ created_at: created, backbone, tokenizer_digest: tokenizer }) {
  return [
    ["created", moment(created)],
    ["backbone", `${backbone.name}, SHA-256 ${backbone.digest}`],
    ["tokenizer", `SHA-256 ${tokenizer}`],
  ];
}

function recipeOf({ recipe }) {
  if (!recipe) return none("No recipe is recorded for this version.");
  const rows = Object.entries(recipe.settings).map(([name, it]) => [name, JSON.stringify(it)]);
  const whole = table(["setting", "value"], rows);
  return [element("details", {}, element("summary", {}, "Recipe"), whole)];
}
