// The routes of openapi.json as a page that needs nothing from elsewhere; each route can be tried.

import { byId, element, show } from "/page/dom.js";
import { askForKey, startKey } from "/page/key.js";
import { Refusal, getJson, reasonOf } from "/page/server.js";
import { tryingForm } from "/page/trying.js";

const VERBS = ["get", "post", "put", "patch", "delete"];

function routes(schema) {
  return Object.entries(schema.paths).flatMap(([path, verbs]) =>
    VERBS.filter((verb) => verb in verbs).map((verb) => route(verb, path, verbs[verb], schema.components?.schemas ?? {})),
  );
}

function route(verb, path, operation, schemas) {
  const sent = operation.requestBody?.content?.["application/json"]?.schema;
  const parameters = (operation.parameters ?? []).map((it) =>
    element("li", {}, `${it.name} (${it.in}${it.required ? "" : ", optional"}) ${it.description ?? ""}`),
  );
  const answers = Object.entries(operation.responses).map(([status, it]) =>
    element("li", {}, `${status}: ${it.description} `, ...references(Object.values(it.content ?? {})[0]?.schema)),
  );
  const details = element(
    "details",
    { className: "route" },
    element("summary", {}, element("span", { className: "verb" }, verb.toUpperCase()), element("code", {}, path), ` ${operation.summary ?? ""}`),
    element("p", {}, operation.description ?? ""),
    ...list("Parameters", parameters),
    ...list("Body", sent ? [element("li", {}, ...references(sent))] : []),
    ...list("Answers", answers),
  );
  // Most routes are never opened, and their forms never made.
  details.addEventListener("toggle", () => details.append(tryingForm(verb, path, operation, schemas)), { once: true });
  return details;
}

function list(title, items) {
  return items.length ? [element("h3", {}, title), element("ul", {}, ...items)] : [];
}

/** Links to the messages that a schema names, or its type. */
function references(schema) {
  if (!schema) return [];
  const names = [...JSON.stringify(schema).matchAll(/"#\/components\/schemas\/([^"]+)"/g)].map((it) => it[1]);
  if (names.length === 0) return [schema.type ?? ""];
  return [...new Set(names)].flatMap((name) => [element("a", { href: `#${name}` }, name), " "]);
}

function messages(schema) {
  return Object.entries(schema.components?.schemas ?? {}).map(([name, it]) =>
    element(
      "details",
      { className: "route", id: name },
      element("summary", {}, element("code", {}, name), ` ${it.description ?? ""}`),
      element("pre", { tabIndex: 0 }, JSON.stringify(it, null, 2)),
    ),
  );
}

function openNamed() {
  const wanted = byId(decodeURIComponent(location.hash.slice(1)));
  if (wanted instanceof HTMLDetailsElement) {
    wanted.open = true;
    wanted.scrollIntoView();
  }
}

async function draw() {
  try {
    const schema = await getJson("/openapi.json");
    byId("routes").replaceChildren(...routes(schema));
    byId("schemas").replaceChildren(...messages(schema));
    byId("notice").hidden = true;
    openNamed();
  } catch (error) {
    byId("notice").hidden = false;
    show("notice", reasonOf(error));
    if (error instanceof Refusal && error.status === 401) askForKey();
  }
}

function takeKey() {
  // Drawn only if missing: a new key must not empty the forms.
  if (byId("routes").childElementCount === 0) draw();
}

startKey(takeKey);
addEventListener("hashchange", openNamed);
draw();
