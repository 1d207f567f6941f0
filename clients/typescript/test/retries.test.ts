/** Attempts, deadlines, bad answers and streams, with a double in place of the network or of the server. */
import { once } from "node:events";
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, expect, test, vi } from "vitest";
import * as api from "../src/index.js";

const ANSWER = { task: "tone", version: 1, head: "sequence_classification", outputs: [{ label: "calm", score: 1 }] };
const HASTY = new api.RetryPolicy(2, 0);

type Step = Response | Error;

function client(steps: Step[], options: api.ClientOptions = {}) {
  const sent: RequestInit[] = [];
  const double = async (_: unknown, init: RequestInit = {}): Promise<Response> => {
    sent.push(init);
    const step = steps.shift();
    if (step instanceof Response) return step;
    throw step;
  };
  const made = new api.Client("http://server", { retries: HASTY, fetch: double as typeof fetch, ...options });
  return { made, sent };
}

const ok = (body: unknown = ANSWER) => Response.json(body);
const busy = (status: number, after = "0") =>
  Response.json({ code: "overloaded", status, detail: "full" }, { status, headers: { "retry-after": after } });
const failure = (code: string) => new TypeError("fetch failed", { cause: { code } });

test.each([
  ["a refused connection", failure("ECONNREFUSED")],
  ["a 429", busy(429)],
  ["a 503", busy(503)],
])("after %s the request is repeated", async (_, first) => {
  const { made, sent } = client([first, ok()]);

  await expect(made.predict("tone", "hello")).resolves.toMatchObject({ task: "tone" });
  expect(sent).toHaveLength(2);
});

test.each([
  ["a broken connection", failure("ECONNRESET"), api.ConnectionFailedError],
  ["a long Retry-After", busy(429, "60"), api.OverloadedError],
  ["a 503 without Retry-After", Response.json({}, { status: 503 }), api.UnavailableError],
])("after %s it is not repeated", async (_, first, kind) => {
  const { made, sent } = client([first, ok()]);

  await expect(made.predict("tone", "hello")).rejects.toBeInstanceOf(kind);
  expect(sent).toHaveLength(1);
});

test.each([301, 302, 303, 307, 308])("a redirection by %i is refused and names the address", async (status) => {
  const asked: unknown[] = [];
  const url = await serving((response) => {
    asked.push(response);
    response.writeHead(status, { location: "/elsewhere" }).end();
  });

  await expect(new api.Client(url).predict("tone", "hello")).rejects.toMatchObject({
    code: "http_error",
    message: expect.stringContaining("redirects to /elsewhere"),
  });
  expect(asked).toHaveLength(1);
});

test.each(["3", 1.5, -1, Number.NaN, true, []])("retries of %j are refused at once", (retries) => {
  const make = () => new api.Client("http://server", { retries: retries as number });

  expect(make).toThrow(api.InvalidInputError);
});

test("the last of all attempts is final", async () => {
  const { made, sent } = client([busy(429), failure("ECONNREFUSED"), busy(429)]);

  await expect(made.predict("tone", "hello")).rejects.toMatchObject({ code: "overloaded", retryAfterS: 0 });
  expect(sent).toHaveLength(3);
});

test("attempts share a deadline, and none begins after it", async () => {
  const { made, sent } = client([busy(429), ok()], { retries: new api.RetryPolicy(2, 5000, 5000, () => 1) });

  await expect(made.predict("tone", "hello", { deadlineMs: 900 })).rejects.toBeInstanceOf(api.OverloadedError);
  expect(sent).toHaveLength(1);
  expect(Number((sent[0]?.headers as Record<string, string>)["x-deadline-ms"])).toBeLessThanOrEqual(900);
  await expect(made.predict("tone", "hello", { deadlineMs: 0 })).rejects.toBeInstanceOf(api.DeadlineExceededError);
});

let server: Server | undefined;
afterEach(() => {
  server?.closeAllConnections();
  server?.close();
});

/** The url of a server with one answer to every request. */
async function serving(answer: (response: ServerResponse) => void): Promise<string> {
  server = createServer((_, response) => answer(response)).listen(0, "127.0.0.1");
  await once(server, "listening");
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

const line = (reference: string) => `${JSON.stringify({ ...ANSWER, reference })}\n`;

test("a late answer is a failure, also in the midst of a stream", async () => {
  const slow = new api.Client(await serving((response) => void response.write("\n")), { timeoutMs: 100 });

  await expect(slow.predict("tone", "hello")).rejects.toThrow(/within the time/);
  await expect(slow.stream("hello", ["tone"]).next()).rejects.toThrow(/within the time/);
});

test("only a line feed ends a line", async () => {
  const labels = [...'\u2028\u2029\u0085\r'].map((it) => `one${it}two`);
  const outputs = [labels.map((label) => ({ label, score: 0.5 }))];
  const url = await serving((response) => response.end(`${JSON.stringify({ ...ANSWER, reference: "tone", outputs })}\n`));
  const seen: unknown[] = [];

  for await (const result of new api.Client(url).stream(["hello"], ["tone"])) seen.push(result);

  expect(seen).toMatchObject([{ outputs }]);
});

test("the time of a slow reader of a stream is not counted", async () => {
  const url = await serving((response) => {
    response.write(line("tone"));
    setTimeout(() => response.end(line("attack")), 20);
  });
  const seen: string[] = [];

  for await (const result of new api.Client(url, { timeoutMs: 150 }).stream("hello", ["tone", "attack"])) {
    seen.push(result.reference);
    await sleep(400);
  }

  expect(seen).toEqual(["tone", "attack"]);
});

test.each([
  ["one chunk", line("tone") + line("attack")],
  ["two chunks", line("tone")],
])("a signal between two lines of %s ends the stream and the request", async (_, written) => {
  const responses: ServerResponse[] = [];
  const url = await serving((response) => {
    responses.push(response);
    response.write(written);
  });
  const ending = new AbortController();
  const stream = new api.Client(url).stream("hello", ["tone", "attack"], { signal: ending.signal });
  await stream.next();

  ending.abort("enough");

  await expect.poll(() => responses.map((it) => it.destroyed)).toEqual([true]);
  await expect(stream.next()).rejects.toBe("enough");
});

test("a stream that is left early ends the request", async () => {
  const responses: ServerResponse[] = [];
  const url = await serving((response) => {
    responses.push(response);
    response.write(line("tone"));
  });

  for await (const _ of new api.Client(url).stream("hello", ["tone", "attack"])) break;

  await expect.poll(() => responses.map((it) => it.destroyed)).toEqual([true]);
});

test("a deadline is of the whole stream, although lines arrive in time", async () => {
  const url = await serving((response) => {
    const timer = setInterval(() => response.write("\n"), 20);
    response.on("close", () => clearInterval(timer));
  });

  const stream = new api.Client(url).stream("hello", ["tone"], { deadlineMs: 100 });

  await expect(stream.next()).rejects.toThrow(/within the time/);
});

const SHOWN = `${JSON.stringify({ event: "text", text: "It is " })}\n`;
const FINAL = `${JSON.stringify({ event: "verdict", final: true, verdict: { action: "block" } })}\n`;
const PROBLEM = { code: "overloaded", status: 429, title: "full" };

/** Chunks, and the events about them; `isEnded` says whether the chunks are closed. */
function judging(url: string, next: () => Promise<unknown>, options = {}) {
  const state = { isEnded: false, shown: "" };
  async function* chunks() {
    try {
      while ((await next()) !== "end") yield "It is blue. ";
    } finally {
      state.isEnded = true;
    }
  }
  const read = async (): Promise<void> => {
    const stream = new api.Client(url, { timeoutMs: 150, retries: HASTY }).judgeStream("guard", chunks(), options);
    for await (const event of stream) state.shown += event.text;
  };
  return { state, done: read() };
}

test.each<[string, (response: ServerResponse) => unknown, object]>([
  ["ends without a final verdict", (it) => it.end(SHOWN), { code: "connection_failed" }],
  ["ends within the final verdict", (it) => it.end(SHOWN + FINAL.slice(0, -9)), { code: "invalid_response" }],
  ["has no verdict at its end", (it) => it.end(SHOWN + FINAL.replace(/,"verdict.*}/, "}")), { code: "invalid_response" }],
  ["has an unknown event", (it) => it.end(SHOWN + FINAL.replace("verdict", "other")), { code: "invalid_response" }],
  ["has an error", (it) => it.end(`${SHOWN}${JSON.stringify({ event: "error", error: PROBLEM })}\n`), PROBLEM],
  ["breaks", (it) => it.write(SHOWN, () => it.destroy()), { code: "connection_failed" }],
  ["is refused", (it) => it.writeHead(429, { "retry-after": "0" }).end(SHOWN), { status: 429 }],
  ["is not text", (it) => it.end(SHOWN.replace(/"It is "/, "1")), { code: "invalid_response" }],
])("a stream of a verdict that %s is an error, and ends the chunks", async (_, answer, error) => {
  const { state, done } = judging(await serving(answer), () => sleep(1));

  await expect(done).rejects.toMatchObject("title" in error ? { code: "overloaded" } : error);
  await expect.poll(() => state.isEnded).toBe(true);
  expect(["It is ", ""]).toContain(state.shown);
});

test("the last event ends the chunks", async () => {
  const { state, done } = judging(await serving((it) => it.write(SHOWN + FINAL)), () => sleep(1));

  await done;

  await expect.poll(() => state).toEqual({ isEnded: true, shown: "It is " });
});

test.each(["a signal", "an error of the chunks"])("%s ends a stream of a verdict with its reason", async (end) => {
  const responses: ServerResponse[] = [];
  const url = await serving((response) => void responses.push(response));
  const ending = new AbortController();
  const failing = () => new Promise((_, fail) => ending.signal.addEventListener("abort", () => fail("enough")));
  const isSignal = end === "a signal";
  const { done } = judging(url, isSignal ? () => sleep(1) : failing, isSignal ? { signal: ending.signal } : {});
  done.catch(() => undefined);
  await expect.poll(() => responses.length).toBe(1);

  ending.abort("enough");

  await expect(done).rejects.toBe("enough");
  await expect.poll(() => responses.map((it) => it.destroyed)).toEqual([true]);
});

test("the wait for a chunk is not counted, and the wait for the verdict is", async () => {
  const slow = await serving((response) => setTimeout(() => response.end(SHOWN + FINAL), 400));
  await judging(slow, () => sleep(600)).done;

  const silent = await serving((response) => void response.write(SHOWN));
  await expect(judging(silent, async () => "end").done).rejects.toThrow(/within the time/);
});

test("chunks that cannot be sent while they arrive are refused", async () => {
  const none = "It is blue." as unknown as AsyncIterable<string>;
  await expect(client([]).made.judgeStream("guard", none).next()).rejects.toBeInstanceOf(api.InvalidInputError);

  vi.stubGlobal("Request", class { headers = new Headers({ "content-type": "text/plain" }); });
  await expect(judging("http://server", () => sleep(1)).done).rejects.toThrow(/Node/);
  vi.unstubAllGlobals();
});

test("a signal ends the wait for a further attempt", async () => {
  const { made, sent } = client([busy(429), ok()], { retries: new api.RetryPolicy(2, 60_000, 60_000, () => 1) });
  const ending = new AbortController();
  const asked = made.predict("tone", "hello", { signal: ending.signal });
  await expect.poll(() => sent.length).toBe(1);

  ending.abort("enough");

  await expect(asked).rejects.toBe("enough");
  expect(sent).toHaveLength(1);
});

test("the options of a call become headers and a part of the body", async () => {
  const { made, sent } = client([ok()]);

  await made.predict("tone", "hello", {
    deadlineMs: 20_000,
    priority: "high",
    routingKey: "ann",
    parameters: { top_k: 1 },
  });

  const headers = sent[0]?.headers as Record<string, string>;
  expect(headers).toMatchObject({ "x-priority": "high", "x-routing-key": "ann" });
  expect(Number(headers["x-deadline-ms"])).toBeGreaterThan(19_000);
  expect(JSON.parse(String(sent[0]?.body))).toEqual({ inputs: "hello", parameters: { top_k: 1 } });
});

test.each([
  ["no JSON", new Response("<html>")],
  ["a list of outputs of another length", ok({ ...ANSWER, outputs: [] })],
  ["a list of labels of another length", ok({ ...ANSWER, predicted: [] })],
])("%s is no answer", async (_, response) => {
  await expect(client([response]).made.predict("tone", ["hello"])).rejects.toBeInstanceOf(api.InvalidResponseError);
});

test.each([{}, [], { results: [null] }, { action: "ok" }, { action: null }])("%j is no verdict", async (found) => {
  const events = (async function* () {
    yield "hello";
  })();
  const event = new Response(`${JSON.stringify({ event: "verdict", final: true, verdict: found })}\n`);
  const { made } = client([ok(found), event, ok(found)]);

  await expect(made.judge("guard", "hello")).rejects.toBeInstanceOf(api.InvalidResponseError);
  await expect(made.judgeStream("guard", events).next()).rejects.toBeInstanceOf(api.InvalidResponseError);
  await expect(made.predictMany("hello", ["tone"])).rejects.toBeInstanceOf(api.InvalidResponseError);
});

test("answers of other tasks, and a stream cut short, are no answer", async () => {
  const asked = ["tone", "attack"];

  await expect(client([ok({ results: [] })]).made.predictMany("hello", asked)).rejects.toBeInstanceOf(
    api.InvalidResponseError,
  );
  const stream = client([new Response(line("tone"))]).made.stream("hello", asked);
  await expect(stream.next()).resolves.toMatchObject({ value: { reference: "tone" } });
  await expect(stream.next()).rejects.toBeInstanceOf(api.InvalidResponseError);
});

test("what cannot be sent is refused before, without the key", async () => {
  expect(() => new api.Client("ftp://server")).toThrow(api.InvalidInputError);
  expect(() => new api.Client("http://server", { apiKey: "secret\n" })).toThrow(/^(?!.*secret)/s);
  for (const url of ["http://me:secret@server", "http://server?x=secret", "http://secret server"]) {
    expect(() => new api.Client(url)).toThrow(/^server must be a URL(?!.*secret)/s);
  }
  for (const timeoutMs of [0, -1]) expect(() => client([], { timeoutMs })).toThrow(api.InvalidInputError);
  for (const timeoutMs of [Infinity, NaN, 2 ** 31, "5" as never]) {
    expect(() => client([], { timeoutMs })).toThrow(api.InvalidInputError);
    const { made, sent } = client([ok()]);
    await expect(made.predict("tone", "hello", { deadlineMs: timeoutMs })).rejects.toBeInstanceOf(api.InvalidInputError);
    expect(sent).toEqual([]);
  }
  for (const routingKey of ["Jürgen", "☃", "a\nb"]) {
    const asked = client([ok()]).made.predict("tone", "hello", { routingKey });
    await expect(asked).rejects.toBeInstanceOf(api.InvalidInputError);
  }
  for (const task of ["..", "", "tone/", "a/b/c"]) {
    const { made, sent } = client([ok()]);
    await expect(made.predict(task, "hello")).rejects.toBeInstanceOf(api.InvalidInputError);
    await expect(made.judge(task || "guard/1", "hello")).rejects.toBeInstanceOf(api.InvalidInputError);
    expect(sent).toEqual([]);
  }
});
