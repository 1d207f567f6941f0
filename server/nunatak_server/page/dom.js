// Elements made of text alone: nothing that comes from a task or a caller is ever read as HTML.

/** Make an element with properties and children; strings become text. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "part") made.style.setProperty("--part", width(value));
    else if (name === "data") Object.assign(made.dataset, value);
    else if (name === "className" || name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function byId(id) {
  return document.getElementById(id);
}

export function show(id, text) {
  const place = byId(id);
  // Only what changed: readers of the screen speak every change of a live region.
  if (place.textContent !== text) place.textContent = text;
}

/** A share in per cent. Less than the whole is never rounded up to the whole. */
export function percent(share, digits = 0) {
  const most = share < 1 ? 100 - 10 ** -digits : Infinity;
  return `${Math.min(100 * share, most).toFixed(digits)} %`;
}

/** A share between 0 and 1 as a CSS length. */
function width(share) {
  return `${Math.min(100, Math.max(0, 100 * share)).toFixed(2)}%`;
}

export function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  }
  return `${count} B`;
}

export function milliseconds(value) {
  if (value >= 1000) return `${(value / 1000).toFixed(1)} s`;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
}
