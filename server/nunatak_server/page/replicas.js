// The server processes of the registry, as each described itself at its last beat.

import { byId, bytes, element, show } from "/page/dom.js";

/** Draw one row per replica. */
export function drawReplicas({ revision, replicas }) {
  byId("replicas-panel").hidden = replicas.length === 0;
  const most = Math.max(...replicas.map((it) => it.load.process_bytes), 1);
  byId("replicas").replaceChildren(...replicas.map((it) => row(it, most)));
  const current = replicas.filter((it) => it.is_current && it.load.ready).length;
  show("replicas-count", `${current} of ${replicas.length} ready at revision ${revision.toLocaleString("en")}`);
  show("replicas-note", "Memory of each process, and the task versions in it. Without a lease, a replica answers while the registry is out of reach.");
}

/** Say why the replicas are not known; the rest of the page goes on. */
export function missReplicas(reason) {
  show("replicas-note", `These replicas may be out of date: ${reason}`);
}

function row(replica, most) {
  const { load } = replica;
  const own = element("i", { className: "own", part: load.version_bytes / most });
  const rest = element("i", { className: "backbone", part: (load.process_bytes - load.version_bytes) / most });
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, replica.id, element("span", { className: "quiet-text address" }, replica.address)),
    cell("Serves", tag(replica), element("span", { className: "quiet-text" }, ` release ${replica.release}`)),
    cell("Load", `${load.running} running, ${load.waiting} waiting`),
    cell(
      "Memory",
      element("div", { className: "stack", "aria-hidden": "true" }, own, rest),
      `${load.versions} versions, ${bytes(load.version_bytes)} of ${bytes(load.process_bytes)}`,
    ),
    cell("Lease", replica.lease_s === null ? "none" : `${replica.lease_s} s`),
    cell("Seen", `${span(replica.seen_s)} ago`, element("span", { className: "quiet-text" }, `, running for ${age(replica.started_at)}`)),
  );
}

function cell(label, ...children) {
  return element("td", { data: { label } }, ...children);
}

function tag({ is_current: isCurrent, load, revision }) {
  if (!load.ready) return element("span", { className: "tag failure" }, "not ready");
  const behind = revision ? `behind, at revision ${revision.toLocaleString("en")}` : "behind";
  return element("span", { className: isCurrent ? "tag here" : "tag pinned" }, isCurrent ? "current" : behind);
}

function age(startedAt) {
  return span(Math.max(0, (Date.now() - Date.parse(startedAt)) / 1000));
}

function span(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}
