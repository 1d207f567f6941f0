// Talking to the server that sent this page, and to no other.

const KEY = "nunatak-api-key";
/** A server that says nothing for this long does not answer. */
const PATIENCE_MS = 10_000;

/** A refusal: its status, and what the problem says in words. */
export class Refusal extends Error {
  constructor(status, problem) {
    super(wordsOf(status, problem));
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
  return (await read(path)).json();
}

export async function getText(path) {
  return (await read(path)).text();
}

function read(path) {
  return send(path, { signal: AbortSignal.timeout(PATIENCE_MS) });
}

/** What an answer says, or null where the key is for less than that, or the port for several processes. */
export async function permitted(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof Refusal && [403, 421].includes(error.status)) return null;
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

/** Send a request with the key, and return whatever the server answers. */
export function exchange(path, options = {}) {
  const headers = { ...options.headers };
  if (storedKey()) headers.authorization = `Bearer ${storedKey()}`;
  return fetch(path, { ...options, headers, cache: "no-store" });
}

/** Why a request failed, in words. */
export function reasonOf(error) {
  return error instanceof Refusal ? error.message : "The server does not answer.";
}

async function send(path, options) {
  const response = await exchange(path, options);
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

/** Of a problem of our own, or of System One, whose detail is a list or an object. */
function wordsOf(status, { detail, errors }) {
  const fields = (errors ?? []).map((it) => `${it.location}: ${it.message}`);
  const said = [detail ?? []].flat().map((it) => it.message ?? it.msg ?? it);
  if (said.length) return [...said, ...fields].join("; ");
  return `The answer has status ${status} and no explanation. It may come from a proxy in front of the server; the logs of both say more.`;
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
