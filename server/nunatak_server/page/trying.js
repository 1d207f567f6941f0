// A form that sends one call of the API with the stored key, and shows the answer.

import { element } from "/page/dom.js";
import { exchange } from "/page/server.js";

const SHOWN_CHARACTERS = 20_000;
const SAMPLE_TEXT = "Where is my parcel?";

/** Return the form of an operation; `schemas` are the messages that its body refers to. */
export function tryingForm(verb, path, operation, schemas) {
  const fields = (operation.parameters ?? []).map(fieldOf);
  const sent = operation.requestBody?.content?.["application/json"]?.schema;
  const text = sent && JSON.stringify(sample(sent, schemas), null, 2);
  const body = sent && element("textarea", { rows: Math.min(text.split("\n").length + 1, 16), spellcheck: false, value: text });
  const status = element("p", { className: "quiet-text", role: "status" });
  const answer = element("pre", { hidden: true, tabIndex: 0 });
  const scope = operation.security?.[0]?.key?.[0];
  const form = element(
    "form",
    { className: "try" },
    element("h3", {}, "Try it"),
    element("p", { className: "quiet-text" }, noteOf(scope)),
    ...fields.map((it) => element("label", {}, it.title, it.input)),
    ...(body ? [element("label", {}, "Body, as JSON", body)] : []),
    element("div", { className: "actions" }, element("button", { type: "submit" }, "Send"), status),
    answer,
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const request = requestOf(verb, path, fields, body);
    answer.hidden = true;
    if (request.problem) {
      status.textContent = request.problem;
      request.field.focus();
    } else {
      status.textContent = "sending";
      await showAnswer(request, status, answer);
    }
  });
  return form;
}

function noteOf(scope) {
  if (!scope) return "No key is needed.";
  const change = scope === "admin" ? "This call changes what the server serves. " : "";
  return `${change}A server with API keys needs a key with the scope ${scope}; the button at the top takes it.`;
}

function fieldOf({ name, in: place, required, schema = {} }) {
  const input = element("input", { type: "text", autocomplete: "off", spellcheck: false });
  if (schema.enum) input.placeholder = schema.enum.join(" or ");
  return { name, place, required, input, title: `${name} (${place}${required ? "" : ", optional"})` };
}

/** The request of the filled form, or the problem and the field that has it. */
function requestOf(verb, path, fields, body) {
  const empty = fields.find((it) => it.required && !it.input.value.trim());
  if (empty) return { problem: `Fill in ${empty.name}: the address needs it.`, field: empty.input };
  const filled = fields.map((it) => ({ ...it, value: it.input.value.trim() })).filter((it) => it.value);
  const at = (place) => filled.filter((it) => it.place === place).map((it) => [it.name, it.value]);
  const address = at("path").reduce((whole, [name, value]) => whole.replace(`{${name}}`, () => encodeURIComponent(value)), path);
  const query = new URLSearchParams(at("query")).toString();
  const options = { method: verb.toUpperCase(), headers: Object.fromEntries(at("header")) };
  if (body?.value.trim()) {
    try {
      JSON.parse(body.value);
    } catch (error) {
      return { problem: `The body is not JSON: ${error.message}.`, field: body };
    }
    options.body = body.value;
    options.headers["content-type"] = "application/json";
  }
  return { address: query ? `${address}?${query}` : address, options };
}

async function showAnswer({ address, options }, status, answer) {
  const started = performance.now();
  try {
    const response = await exchange(address, options);
    const text = await response.text();
    const ms = Math.round(performance.now() - started);
    status.textContent = `${options.method} ${address}: ${response.status} ${response.statusText} in ${ms} ms`;
    answer.textContent = readable(text);
    answer.hidden = !text;
  } catch (error) {
    status.textContent = `The call could not be sent, or nothing answered: ${error.message}.`;
  }
}

function readable(text) {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Not every answer is JSON: metrics are plain text.
  }
  const rest = shown.length - SHOWN_CHARACTERS;
  return rest > 0 ? `${shown.slice(0, SHOWN_CHARACTERS)}\n... and ${rest} more characters` : shown;
}

/** A small value that follows a schema: required fields alone, and the first of several kinds. */
function sample(schema, schemas) {
  if (schema.$ref) return sample(schemas[schema.$ref.split("/").at(-1)], schemas);
  const [kind] = schema.anyOf ?? schema.oneOf ?? [];
  if (kind) return sample(kind, schemas);
  if (schema.examples?.length) return schema.examples[0];
  if ("const" in schema) return schema.const;
  if (schema.enum) return schema.enum[0];
  switch (schema.type) {
    case "object": {
      const names = schema.required ?? [];
      return Object.fromEntries(names.map((name) => [name, sample(schema.properties[name], schemas)]));
    }
    case "array":
      return [sample(schema.items ?? {}, schemas)];
    case "integer":
    case "number":
      return schema.minimum ?? schema.maximum ?? 1;
    case "boolean":
      return false;
    default:
      return SAMPLE_TEXT;
  }
}
