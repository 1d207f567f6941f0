// Talking to the server that sent this page, and to no other.

const KEY = "nunatak-api-key";

/** A refusal: its status, and what the problem says. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(problem.detail ?? `the server answered ${status}`);
    this.status = status;
    this.code = problem.code ?? "";
  }
}

export function storedKey() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function storeKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

export async function getJson(path) {
  return (await send(path)).json();
}

export async function getText(path) {
  return (await send(path)).text();
}

/** What an answer says, or null where the key is for less than that. */
export async function permitted(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof Refusal && error.status === 403) return null;
    throw error;
  }
}

/** Post JSON; returns the answer and where the time went. */
export async function postJson(path, body) {
  const started = performance.now();
  const response = await send(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json();
  return { answer, timing: timingOf(response.headers, performance.now() - started) };
}

async function send(path, options = {}) {
  const headers = { ...options.headers };
  if (storedKey()) headers.authorization = `Bearer ${storedKey()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  throw new Refusal(response.status, await problemOf(response));
}

async function problemOf(response) {
  try {
    return await response.json();
  } catch {
    return {};
  }
}

function timingOf(headers, total) {
  const number = (name) => Number(headers.get(name) ?? 0);
  return {
    total,
    queue: number("x-queue-ms"),
    tokenize: number("x-tokenize-ms"),
    compute: number("x-compute-ms"),
    rows: number("x-batch-size"),
  };
}
