/** Attempts, deadlines and bad answers, with a double in place of the network. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "vitest";
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

test("a late answer is a failure, also in the midst of a stream", async () => {
  const server = createServer((_, response) => void response.write("\n")).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const slow = new api.Client(`http://127.0.0.1:${port}`, { timeoutMs: 100 });

  await expect(slow.predict("tone", "hello")).rejects.toThrow(/within the time/);
  await expect(slow.stream("hello", ["tone"]).next()).rejects.toThrow(/within the time/);
  server.closeAllConnections();
  server.close();
});

test.each([
  ["no JSON", new Response("<html>")],
  ["a list of outputs of another length", ok({ ...ANSWER, outputs: [] })],
])("%s is no answer", async (_, response) => {
  await expect(client([response]).made.predict("tone", ["hello"])).rejects.toBeInstanceOf(api.InvalidResponseError);
});

test("answers of other tasks, and a stream cut short, are no answer", async () => {
  const line = `${JSON.stringify({ ...ANSWER, reference: "tone" })}\n`;
  const asked = ["tone", "attack"];

  await expect(client([ok({ results: [] })]).made.predictMany("hello", asked)).rejects.toBeInstanceOf(
    api.InvalidResponseError,
  );
  const stream = client([new Response(line)]).made.stream("hello", asked);
  await expect(stream.next()).resolves.toMatchObject({ value: { reference: "tone" } });
  await expect(stream.next()).rejects.toBeInstanceOf(api.InvalidResponseError);
});

test("what cannot be sent is refused before, without the key", async () => {
  expect(() => new api.Client("ftp://server")).toThrow(api.InvalidInputError);
  expect(() => new api.Client("http://server", { apiKey: "secret\n" })).toThrow(/^(?!.*secret)/s);
  await expect(client([]).made.predict("..", "hello")).rejects.toBeInstanceOf(api.InvalidInputError);
});
