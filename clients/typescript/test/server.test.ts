/** The client against the real server that tests/e2e/test_typescript.py starts: its url, and a key. */
import { expect, expectTypeOf, test } from "vitest";
import * as api from "../src/index.js";

const URL = process.env["NUNATAK_TEST_URL"];
if (!URL) throw new Error("run these tests by `pytest tests/e2e/test_typescript.py`, which starts a server");
const client = new api.Client(URL);
const TEXT = "please come at once";

test("one input gets one answer, typed by its head", async () => {
  const answer = await client.predict("tone", TEXT, { parameters: { top_k: 1 } });

  expect(answer).toMatchObject({ task: "tone", version: 1, truncated: false });
  if (answer.head !== "sequence_classification") throw new Error(answer.head);
  expectTypeOf(answer.outputs).toEqualTypeOf<api.Score[]>();
  expect(answer.outputs).toHaveLength(1);
  expect(answer.predicted).toBe(answer.outputs[0]?.label);
});

test("a list of inputs gets a list of answers", async () => {
  const answer = await client.predict("tone/1", [TEXT, "no hurry"]);

  if (answer.head !== "sequence_classification") throw new Error(answer.head);
  expectTypeOf(answer.outputs).toEqualTypeOf<api.Score[][]>();
  expect(answer.outputs).toHaveLength(2);
  expect(answer.tokens).toHaveLength(2);
});

test("an alias and a pair of texts are sent as they are", async () => {
  const answer = await client.predict("tone@prod", { text: TEXT, text_pair: "now" });

  expect(answer.version).toBe(1);
});

test("a task that fails does not fail the others", async () => {
  const results = await client.predictMany(TEXT, ["tone", "nobody", "names"]);

  expect(results.map((it) => ("error" in it ? it.error.code : it.head))).toEqual([
    "sequence_classification",
    "task_not_found",
    "token_classification",
  ]);
  const failed = results.find((it) => "error" in it);
  if (failed) expect(api.errorOf(failed.error)).toBeInstanceOf(api.NotFoundError);
});

test("a stream yields each task", async () => {
  const seen: string[] = [];
  for await (const result of client.stream([TEXT], ["tone", "nobody", "names"])) seen.push(result.reference);

  expect(seen.sort()).toEqual(["names", "nobody", "tone"]);
});

test("a policy judges", async () => {
  const verdict = await client.judge("guard", [TEXT]);

  expect(verdict).toMatchObject({ policy: "guard", by_failure: false, tasks: ["tone/1"] });
  expect(["allow", "block"]).toContain(verdict.action);
  const call = { messages: [{ role: "user", content: TEXT }] };
  expect((await client.judge("guard", call)).action).toBe(verdict.action);
  const tools = { ...call, tools: [{ type: "function" }] };
  await expect(client.judge("guard", tools)).rejects.toMatchObject({ status: 422 });
  await expect(client.judge("nothing", TEXT)).rejects.toMatchObject({ code: "policy_not_found" });
});

test("a text is shown while the rest still comes, and its verdict is that of the whole text", async () => {
  let sent = 0;
  const events: api.StreamEvent[] = [];
  async function* chunks() {
    while (!events.some((it) => it.text) && sent < 1000) {
      sent += 1;
      yield `${TEXT} `;
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  for await (const event of client.judgeStream("open", chunks())) events.push(event);

  const { action, tasks, rules } = await client.judge("open", `${TEXT} `.repeat(sent));
  expect(sent).toBeLessThan(1000);
  expect(events.map((it) => it.text).join("")).toBe(`${TEXT} `.repeat(sent));
  expect(events.at(-1)).toMatchObject({ final: true, verdict: { action, tasks, rules, by_failure: false } });
  await expect(client.judgeStream("nothing", chunks()).next()).rejects.toMatchObject({ code: "policy_not_found" });
  await expect(client.judgeStream("open", (async function* () {})()).next()).rejects.toMatchObject({ code: "empty_text" });
});

test("refusals are errors of their class with the server's code", async () => {
  await expect(client.predict("nobody", TEXT)).rejects.toBeInstanceOf(api.NotFoundError);
  await expect(client.predict("tone", [])).rejects.toBeInstanceOf(api.InvalidRequestError);
  await expect(client.predict("tone", { question: "?", context: "." })).rejects.toMatchObject({
    code: "wrong_input_kind",
    status: 422,
    requestId: expect.any(String),
  });
  const stranger = new api.Client(URL, { apiKey: "nobody" });
  await expect(stranger.predict("tone", TEXT)).rejects.toBeInstanceOf(api.AuthenticationError);
  await expect(stranger.stream(TEXT, ["tone"]).next()).rejects.toBeInstanceOf(api.AuthenticationError);
});

test("a call may be ended by its signal", async () => {
  await expect(client.predict("tone", TEXT, { signal: AbortSignal.abort("enough") })).rejects.toBe("enough");
});

test("the server reads the options of a request", async () => {
  const options = { deadlineMs: 20_000, priority: "high", routingKey: "ann" } as const;
  const refused = { priority: "urgent" as api.Priority };

  await expect(client.predict("tone", TEXT, options)).resolves.toMatchObject({ task: "tone" });
  await expect(client.predict("tone", TEXT, refused)).rejects.toMatchObject({ status: 422 });
  await expect(client.predict("tone", TEXT, { routingKey: "x".repeat(300) })).rejects.toMatchObject({ status: 422 });
});
