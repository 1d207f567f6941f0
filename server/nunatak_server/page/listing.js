// The list of tasks: found by words, by kind and by state, and drawn a part at a time.

import { byId, bytes, element, show } from "/page/dom.js";

const ROWS_AT_FIRST = 20;
const MORE_ROWS = 100;
const SHOWN_LAYERS = 24;
const MEANING = {
  canary: "answers this share of the requests that the alias gets",
  shadow: "runs unseen on this share of what the alias's own version answers, to be compared",
};
const IS_IN_STATE = {
  memory: (task) => task.resident_versions.length > 0,
  store: (task) => task.resident_versions.length === 0,
  trial: (task) => task.candidates.length > 0,
};

const state = { tasks: [], held: null, numLayers: 0, numRows: ROWS_AT_FIRST, rows: new Map() };

/** Listen to the fields that choose tasks. */
export function startListing() {
  for (const id of ["find", "find-head", "find-state"]) {
    byId(id).addEventListener("input", () => {
      state.numRows = ROWS_AT_FIRST;
      draw();
    });
  }
  byId("more").addEventListener("click", () => {
    state.numRows += MORE_ROWS;
    draw();
  });
}

/** List these tasks; the versions in memory are null where they may not be seen. */
export function listTasks(tasks, held, numLayers) {
  Object.assign(state, { tasks, held: held && grouped(held), numLayers });
  offerKinds([...new Set(tasks.map((it) => it.head))].sort());
  draw();
}

/** Whether every word is a part of the task's name, of a label or of an alias. */
export function matches(task, words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = [task.name, ...task.labels, ...Object.keys(task.aliases)].map((it) => it.toLowerCase());
  return wanted.every((word) => texts.some((it) => it.includes(word)));
}

export function kindText(head) {
  return head.replaceAll("_", " ");
}

function grouped(held) {
  const groups = new Map();
  for (const it of held) groups.set(it.task, [...(groups.get(it.task) ?? []), it]);
  return groups;
}

function offerKinds(heads) {
  const select = byId("find-head");
  const offered = [...select.options].slice(1).map((it) => it.value);
  if (heads.join() === offered.join()) return;
  const chosen = select.value;
  const options = heads.map((it) => element("option", { value: it }, kindText(it)));
  select.replaceChildren(select.options[0], ...options);
  select.value = heads.includes(chosen) ? chosen : "";
}

function draw() {
  const [words, head, place] = ["find", "find-head", "find-state"].map((id) => byId(id).value);
  const isInState = IS_IN_STATE[place] ?? (() => true);
  const found = state.tasks.filter((it) => (!head || it.head === head) && isInState(it) && matches(it, words));
  const rows = found.slice(0, state.numRows).map(rowOf);
  state.rows = new Map(rows.map((it) => [it.name, it]));
  drawRows(rows.map((it) => it.row));
  const isAll = found.length === state.tasks.length;
  show("find-count", isAll ? `${found.length} tasks` : `${found.length} of ${state.tasks.length} tasks`);
  const rest = found.length - rows.length;
  byId("more").hidden = rest === 0;
  show("more", `Show ${Math.min(rest, MORE_ROWS)} of ${rest} more`);
}

/** Rows that did not change stay in place, so that a focused link keeps the focus. */
function drawRows(rows) {
  const body = byId("tasks");
  const isSame = rows.length === body.children.length && rows.every((it, at) => it === body.children[at]);
  if (!isSame) body.replaceChildren(...rows);
}

/** The row of a task, drawn anew only if the task changed. */
function rowOf(task) {
  const own = state.held?.get(task.name) ?? [];
  const shown = JSON.stringify([{ ...task, labels: task.labels.length }, state.held && own, state.numLayers]);
  const known = state.rows.get(task.name);
  return known?.shown === shown ? known : { name: task.name, shown, row: taskRow(task, state.held && own) };
}

function taskRow(task, held) {
  const aliases = Object.entries(task.aliases).map(([name, version]) => tag(`${name} → ${version}`));
  const cell = (label, ...content) => element("td", { data: { label } }, ...content);
  const link = element("a", { href: `#${new URLSearchParams({ task: task.name })}` }, task.name);
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, link),
    cell("Version", versionOf(task), " ", ...aliases, ...task.candidates.map(candidateTag)),
    cell("Answers", answersOf(task)),
    cell("Method", task.method),
    cell("Layers", ...layersOf(task, state.numLayers)),
    cell("Where", ...placesOf(task, held)),
  );
}

function versionOf({ version, versions }) {
  return versions.length > 1 ? `${version}, of ${versions.length}` : `${version}`;
}

function candidateTag({ alias, role, version, share }) {
  const percent = Number((100 * share).toPrecision(4));
  const text = `${role} of ${alias} → ${version}, ${percent}\u00a0%`;
  return element("span", { className: `tag ${role}`, title: `version ${version} ${MEANING[role]}` }, text);
}

function answersOf(task) {
  const kind = kindText(task.head);
  return task.labels.length > 1 ? `${kind}, ${task.labels.length} labels` : kind;
}

function layersOf(task, count) {
  const shared = task.split_depth ?? 0;
  const shown = Math.min(count, SHOWN_LAYERS);
  const boxes = Array.from({ length: shown }, (_, index) =>
    element("span", { className: index < (shared * shown) / count ? "layer shared" : "layer own" }),
  );
  return [
    element("span", { className: "layers", "aria-hidden": "true" }, ...boxes),
    element("span", {}, `${shared} of ${count} shared`),
  ];
}

function placesOf(task, held) {
  if (task.resident_versions.length === 0) return ["in the store"];
  if (!held?.length) return task.resident_versions.map((it) => tag(`${it} in memory`, "here"));
  return held.map((it) =>
    tag(`${it.version} ${it.pinned ? "pinned" : "in memory"}: ${bytes(it.bytes)}`, it.pinned ? "pinned" : "here"),
  );
}

export function tag(text, kind = "") {
  return element("span", { className: `tag ${kind}` }, text);
}
