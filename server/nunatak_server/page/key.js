// The API key: asked for in a dialog, and kept in this tab alone.

import { byId, element } from "/page/dom.js";
import { storeKey, storedKey } from "/page/server.js";

/** Put the dialog into the page; `onChange` is called after the key was set or forgotten. */
export function startKey(onChange) {
  const key = element("input", { id: "key", type: "password", autocomplete: "off", spellcheck: false });
  // No header holds other characters.
  Object.assign(key, { pattern: "\\s*[!-~]*\\s*", title: "printable ASCII without spaces" });
  const form = element(
    "form",
    { method: "dialog" },
    element("h2", { id: "key-title" }, "API key"),
    element("p", { id: "refused-key", className: "failure" }, "The server refuses this key."),
    element("p", {}, "Kept in this tab alone, until it is closed."),
    element("label", { htmlFor: "key" }, "Key"),
    key,
    element(
      "div",
      { className: "actions" },
      element("button", { type: "submit", value: "use" }, "Use key"),
      element("button", { type: "submit", className: "quiet", value: "forget", formNoValidate: true }, "Forget key"),
    ),
  );
  document.body.append(element("dialog", { id: "key-dialog", "aria-labelledby": "key-title" }, form));
  form.addEventListener("submit", (event) => {
    storeKey(event.submitter?.value === "forget" ? "" : key.value.trim());
    key.value = "";
    onChange();
  });
  byId("key-button").addEventListener("click", () => open(false));
}

/** Ask for a key where there is none, or for another one in the place of a refused key. */
export function askForKey() {
  open(storedKey() !== "");
}

function open(isRefused) {
  const dialog = byId("key-dialog");
  byId("refused-key").hidden = !isRefused;
  byId("key").value = storedKey();
  if (!dialog.open) dialog.showModal();
}
