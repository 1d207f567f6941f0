/** The client of one server. */
import { ConnectionFailedError, InvalidInputError, InvalidResponseError, errorOf, errorOfResponse } from "./errors.js";
import { Patience } from "./patience.js";
import { Attempts, RetryPolicy, milliseconds } from "./retries.js";
import type { Inputs, Parameters, Prediction, Priority, StreamEvent, TaskResult, Verdict } from "./shapes.js";

export interface ClientOptions {
  /** The API key; in Node, absent: the value of `NUNATAK_API_KEY`, if set. */
  apiKey?: string;
  /** Milliseconds to wait for an answer, or for the next line of a stream, if a call sets no deadline. */
  timeoutMs?: number;
  /** Further attempts after a refused connection, or after a 429 or 503 with `Retry-After`. */
  retries?: number | RetryPolicy;
  /** Replaces the network. */
  fetch?: typeof fetch;
}

export interface CallOptions {
  /** Milliseconds for the whole call, with further attempts and all lines of a stream. */
  deadlineMs?: number;
  /** Ends the call; its reason is thrown. */
  signal?: AbortSignal;
}

export interface PredictOptions extends CallOptions {
  parameters?: Parameters;
  /** Among the requests of the same caller. */
  priority?: Priority;
  /** Requests of one key get one version while a canary runs. */
  routingKey?: string;
}

interface Call extends CallOptions {
  path: string;
  body?: unknown;
  /** Parts of the body, which are sent while the answer is read. Such a call has one attempt. */
  chunks?: AsyncIterable<string>;
  headers?: Record<string, string>;
}

/** A response whose body may still arrive, part by part. */
interface Open {
  response: Response;
  patience: Patience;
}

const LINES_TYPE = "application/x-ndjson";
const ONE_ATTEMPT = new RetryPolicy(0);

export class Client {
  private readonly url: string;
  private readonly headers: Record<string, string>;
  private readonly timeoutMs: number;
  private readonly policy: RetryPolicy;
  private readonly send: typeof fetch;

  constructor(url = "http://127.0.0.1:8080", options: ClientOptions = {}) {
    // The message must not contain the address, which may have a password.
    if (!/^https?:\/\/[^/?#@]+(\/[^?#]*)?$/.test(url) || !URL.canParse(url)) {
      throw new InvalidInputError("server must be a URL such as http://127.0.0.1:8080, without user, query or fragment");
    }
    const retries = options.retries ?? 2;
    this.url = url.replace(/\/+$/, "");
    this.headers = { "content-type": "application/json", ...keyHeaders(options.apiKey) };
    this.timeoutMs = milliseconds("timeoutMs", options.timeoutMs ?? 30_000, 0);
    this.policy = retries instanceof RetryPolicy ? retries : new RetryPolicy(retries);
    this.send = options.fetch ?? ((...request) => fetch(...request));
  }

  /** Ask one task (`name`, `name@alias` or `name/3`) about one input or a list of inputs. */
  async predict<const I extends Inputs>(task: string, inputs: I, options: PredictOptions = {}): Promise<Prediction<I>> {
    const parts = task.split("/");
    if (parts.length > 2) {
      throw new InvalidInputError(`a task must be such as 'tone', 'tone@prod' or 'tone/3', got '${task}'`);
    }
    const path = `/v1/tasks/${parts.map(segment).join("/")}/predict`;
    const answer = await this.ask<Prediction<I>>(call(path, { inputs }, options));
    checkOutputs(inputs, answer);
    return answer;
  }

  /** Ask several tasks about the same inputs; a task that fails does not fail the others. */
  async predictMany<const I extends Inputs>(
    inputs: I,
    tasks: readonly string[],
    options: PredictOptions = {},
  ): Promise<TaskResult<I>[]> {
    const asked = call("/v1/predict", { inputs, tasks }, options);
    const { results } = await this.ask<{ results?: TaskResult<I>[] }>(asked);
    checkTasks(tasks, results?.map((it) => it?.reference) ?? []);
    for (const result of results ?? []) if (!("error" in result)) checkOutputs(inputs, result);
    return results ?? [];
  }

  /** Ask several tasks about the same inputs, and yield each task's result on arrival. */
  async *stream<const I extends Inputs>(
    inputs: I,
    tasks: readonly string[],
    options: PredictOptions = {},
  ): AsyncGenerator<TaskResult<I>> {
    const asked = call("/v1/predict", { inputs, tasks }, options);
    const opened = await this.open({ ...asked, headers: { ...asked.headers, accept: LINES_TYPE } });
    const answered: string[] = [];
    try {
      for await (const line of this.lines(opened)) {
        const result = parse<TaskResult<I>>(line);
        if (!("error" in result)) checkOutputs(inputs, result);
        answered.push(result.reference);
        yield result;
      }
    } finally {
      opened.patience.end();
    }
    checkTasks([...tasks].sort(), answered.sort());
  }

  /** Ask for the decision of a policy about a text, a list of texts, or the messages of a call to a language model. */
  async judge(
    policy: string,
    inputs: string | readonly string[] | { messages: readonly object[] },
    options: CallOptions = {},
  ): Promise<Verdict> {
    // Whole, because a call's other fields, such as `tools`, are refused and not passed unread.
    const body = typeof inputs === "object" && inputs && "messages" in inputs ? inputs : { inputs };
    return checkVerdict(await this.ask<Verdict>({ ...options, path: `/v1/verdicts/${segment(policy)}`, body }));
  }

  /**
   * Judge a text while it arrives; the last event has the final verdict. Show the texts of all events, one after the
   * other. If an error is thrown, treat the rest of the text as blocked.
   */
  async *judgeStream(
    policy: string,
    chunks: AsyncIterable<string>,
    options: Pick<CallOptions, "signal"> = {},
  ): AsyncGenerator<StreamEvent> {
    if (typeof chunks?.[Symbol.asyncIterator] !== "function") {
      throw new InvalidInputError("chunks must be an async iterable of strings, such as that of an async generator");
    }
    if (!sendsStreams()) throw new InvalidInputError("no text can be sent from here while it arrives; ask from Node");
    const path = `/v1/verdicts/${segment(policy)}/stream`;
    const headers = { "content-type": LINES_TYPE, accept: LINES_TYPE };
    const opened = await this.open({ ...options, path, chunks, headers });
    try {
      for await (const line of this.lines(opened)) {
        const event = eventOf(parse(line));
        yield event;
        if (event.final) return;
      }
    } finally {
      opened.patience.end();
    }
    throw new ConnectionFailedError(`the stream of ${this.url} ended without a final verdict`);
  }

  private async ask<T>(asked: Call): Promise<T> {
    const { response, patience } = await this.open(asked);
    try {
      return parse<T>(await this.arrival(patience, () => response.text()));
    } finally {
      patience.end();
    }
  }

  private async *lines({ response, patience }: Open): AsyncGenerator<string> {
    const decoder = new TextDecoder();
    const reader = response.body?.getReader();
    let rest = "";
    try {
      for (;;) {
        const chunk = await this.arrival(patience, async () => reader?.read());
        if (!chunk || chunk.done) break;
        const parts = (rest + decoder.decode(chunk.value, { stream: true })).split("\n");
        rest = parts.pop() ?? "";
        for (const part of parts.filter(Boolean)) yield await this.arrival(patience, async () => part);
      }
    } finally {
      // A stream that is left early must end the server's work.
      await reader?.cancel().catch(() => undefined);
    }
    if (rest) yield rest;
  }

  /** Send a request until an attempt is final; throw unless the response has the answer. */
  private async open(asked: Call): Promise<Open> {
    const { chunks } = asked;
    const attempts = new Attempts(chunks ? ONE_ATTEMPT : this.policy, asked, this.timeoutMs);
    for (;;) {
      const { headers, patienceMs } = attempts.next();
      const patience = new Patience(patienceMs, asked.deadlineMs !== undefined, asked.signal);
      let opened: Open | undefined;
      try {
        const request = {
          method: "POST",
          headers: { ...this.headers, ...headers, ...asked.headers },
          ...(chunks ? { body: bodyOf(chunks, patience), duplex: "half" } : { body: JSON.stringify(asked.body) }),
          signal: patience.signal,
          redirect: "manual" as const,
        };
        const sent = await patience.wait(() => this.send(this.url + asked.path, request)).catch((error: unknown) => {
          if (patience.signal.aborted) throw this.failure(patience, error);
          return { error };
        });
        if ("error" in sent) await attempts.afterFailure(sent.error, this.url);
        else if (sent.ok) return (opened = { response: sent, patience });
        else if (!(await attempts.afterResponse(sent))) throw await this.arrival(patience, () => errorOfResponse(sent));
      } finally {
        if (!opened) patience.end();
      }
    }
  }

  /** Wait for a part of an answer that has begun. */
  private async arrival<T>(patience: Patience, work: () => Promise<T>): Promise<T> {
    return patience.wait(work).catch((error: unknown) => {
      throw this.failure(patience, error);
    });
  }

  private failure(patience: Patience, error: unknown): unknown {
    if (patience.signal.aborted && !patience.isLate) return patience.signal.reason;
    const reason = patience.isLate ? "within the time; allow more with timeoutMs or deadlineMs" : String(error);
    return new ConnectionFailedError(`no whole answer from ${this.url}: ${reason}`, error);
  }
}

function call(path: string, body: object, options: PredictOptions): Call {
  const { parameters, priority, routingKey, ...rest } = options;
  if (routingKey !== undefined && !/^[ -~]*$/.test(routingKey)) {
    throw new InvalidInputError("a routing key must be printable ASCII; send a digest of other keys");
  }
  const headers = {
    ...(priority && { "x-priority": priority }),
    ...(routingKey !== undefined && { "x-routing-key": routingKey }),
  };
  return { ...rest, path, body: parameters ? { ...body, parameters } : body, headers };
}

function keyHeaders(apiKey: string | undefined): Record<string, string> {
  const environment = (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env;
  const key = apiKey ?? environment?.["NUNATAK_API_KEY"] ?? "";
  if (!key) return {};
  // The message must not contain the key, because logs may contain the message.
  if (!/^[!-~]+$/.test(key)) throw new InvalidInputError("an API key must be printable ASCII without spaces");
  return { authorization: `Bearer ${key}` };
}

/** Quote one segment of a path, so that it stays one segment. */
function segment(name: string): string {
  // A server also reads a quoted slash as the end of a segment.
  if (/^\.*$|\//.test(name)) throw new InvalidInputError(`a name must be such as 'tone', got '${name}'`);
  return encodeURIComponent(name.toWellFormed()).replaceAll("%40", "@");
}

function parse<T>(text: string): T {
  try {
    const found: unknown = JSON.parse(text);
    if (typeof found === "object" && found !== null) return found as T;
  } catch {
    // Reported below, like any other text.
  }
  throw new InvalidResponseError("expected a JSON object; is this a Nunatak server?");
}

/** Whether a body is sent part by part; another runtime would send the name of its class. */
function sendsStreams(): boolean {
  const request = { method: "POST", body: new ReadableStream(), duplex: "half" };
  return !new Request("http://localhost", request).headers.has("content-type");
}

/** The body of a request that sends each chunk when it comes, and ends the chunks with the attempt. */
function bodyOf(chunks: AsyncIterable<string>, patience: Patience): ReadableStream<Uint8Array> {
  const source = chunks[Symbol.asyncIterator]();
  const line = (text: string): Uint8Array => new TextEncoder().encode(text + "\n");
  const end = async (): Promise<unknown> => source.return?.();
  patience.signal.addEventListener("abort", () => void end().catch(() => undefined), { once: true });
  return new ReadableStream(
    {
      // Node sends the head of a request with the first part of the body, which may come late.
      start: (controller) => controller.enqueue(line("")),
      async pull(controller) {
        const { done, value } = await patience.part(() => source.next());
        if (done) controller.close();
        else controller.enqueue(line(JSON.stringify({ text: value })));
      },
    },
    { highWaterMark: 0 },
  );
}

function eventOf(found: Partial<StreamEvent>): StreamEvent {
  const { event, text = "", final = false, verdict, error } = found;
  if (error) throw errorOf(error);
  if ((event === "text" || event === "mask") && typeof text === "string" && !final) return { event, text, final };
  if (event === "verdict") return { event, text: "", final, verdict: checkVerdict(verdict) };
  throw new InvalidResponseError("expected an event of a stream of verdicts; is this a Nunatak server?");
}

/** A caller that compares the action with `block` must not get anything else. */
function checkVerdict(found: Verdict | null | undefined): Verdict {
  if (found && ["allow", "flag", "mask", "block"].includes(found.action)) return found;
  throw new InvalidResponseError("expected a verdict with an action; is this a Nunatak server?");
}

function checkOutputs(inputs: Inputs, { outputs, predicted }: { outputs: unknown; predicted?: unknown }): void {
  const isWhole = (it: unknown) => !Array.isArray(inputs) || (Array.isArray(it) && it.length === inputs.length);
  if (!Array.isArray(outputs) || !isWhole(outputs) || !isWhole(predicted ?? outputs)) throw new InvalidResponseError("got outputs for another number of inputs; is this a Nunatak server?");
}

function checkTasks(tasks: readonly string[], answered: readonly string[]): void {
  if (tasks.length !== answered.length || tasks.some((it, at) => it !== answered[at])) {
    throw new InvalidResponseError(`asked for tasks [${tasks}], got answers for [${answered}]`);
  }
}
