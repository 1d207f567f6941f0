/** The attempts of a call. Only requests without any effect are repeated. */
import { ConnectionFailedError, DeadlineExceededError, InvalidInputError, retryAfterS } from "./errors.js";
import { Patience } from "./patience.js";

/** Capped exponential backoff with full jitter. */
export class RetryPolicy {
  constructor(
    readonly retries = 2,
    readonly baseDelayMs = 100,
    readonly maxDelayMs = 5000,
    readonly jitter: () => number = Math.random,
  ) {
    if (!Number.isInteger(retries) || retries < 0) {
      throw new InvalidInputError(`retries must be a RetryPolicy, or a whole number from 0, got ${String(retries)}`);
    }
  }

  /** Milliseconds to wait after the failed `attempt` (from 0); undefined: no further attempt. */
  delayMs(attempt: number, atLeastMs: number): number | undefined {
    if (attempt >= this.retries || atLeastMs > this.maxDelayMs) return undefined;
    const backoffMs = Math.min(this.maxDelayMs, this.baseDelayMs * 2 ** attempt);
    return Math.max(atLeastMs, backoffMs * this.jitter());
  }
}

/** Failures of Node's fetch before a connection was made. A browser does not tell, so it repeats none. */
const NEVER_SENT = new Set([
  "ECONNREFUSED",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "EAI_AGAIN",
  "UND_ERR_CONNECT_TIMEOUT",
]);
/** After the deadline the server answers 504. The client waits this long for that answer. */
const DEADLINE_SLACK_MS = 1000;

/** A timer of JavaScript that is longer ends at once. */
const MAX_MS = 2 ** 31 - 1 - DEADLINE_SLACK_MS;

/** Check a length of time. A deadline may have passed already. */
export function milliseconds(name: string, value: number, above = -Infinity): number {
  if (typeof value === "number" && above < value && value <= MAX_MS) return value;
  throw new InvalidInputError(`${name} must be a number of milliseconds${above === 0 ? " above 0" : ""}, at most ${MAX_MS}, got ${value}`);
}

/** The attempts of one call, which share its deadline. */
export class Attempts {
  private readonly endsAt: number | undefined;
  private failed = 0;

  constructor(
    private readonly policy: RetryPolicy,
    private readonly call: { deadlineMs?: number; signal?: AbortSignal },
    private readonly timeoutMs: number,
  ) {
    this.endsAt = call.deadlineMs === undefined ? undefined : performance.now() + milliseconds("deadlineMs", call.deadlineMs);
  }

  /** The header with the remaining time of the deadline, and the time to wait for the answer. */
  next(): { headers: Record<string, string>; patienceMs: number } {
    const remainingMs = this.remainingMs();
    if (remainingMs === undefined) return { headers: {}, patienceMs: this.timeoutMs };
    if (remainingMs <= 0) {
      const detail = "the deadline passed before the request could be sent";
      throw new DeadlineExceededError({ code: "deadline_exceeded", status: 504, detail });
    }
    const headers = { "x-deadline-ms": String(Math.max(1, Math.round(remainingMs))) };
    return { headers, patienceMs: remainingMs + DEADLINE_SLACK_MS };
  }

  /** Wait before the next attempt, or throw the failure. */
  async afterFailure(error: unknown, server: string): Promise<void> {
    const cause = (error as { cause?: { code?: string } }).cause;
    const delayMs = NEVER_SENT.has(cause?.code ?? "") ? this.nextDelayMs(0) : undefined;
    if (delayMs === undefined) {
      const reason = cause?.code ?? String(error);
      throw new ConnectionFailedError(`no answer from ${server} (${reason}); is it running?`, error);
    }
    await sleep(delayMs, this.call.signal);
  }

  /** Wait before the next attempt and return true, or return false: this response is final. */
  async afterResponse(response: Response): Promise<boolean> {
    const seconds = retryAfterS(response);
    if (![429, 503].includes(response.status) || seconds === undefined) return false;
    const delayMs = this.nextDelayMs(seconds * 1000);
    if (delayMs === undefined) return false;
    await response.body?.cancel();
    await sleep(delayMs, this.call.signal);
    return true;
  }

  private nextDelayMs(atLeastMs: number): number | undefined {
    const delayMs = this.policy.delayMs(this.failed++, atLeastMs);
    const remainingMs = this.remainingMs();
    const isLate = delayMs !== undefined && remainingMs !== undefined && delayMs >= remainingMs;
    return isLate ? undefined : delayMs;
  }

  private remainingMs(): number | undefined {
    return this.endsAt === undefined ? undefined : this.endsAt - performance.now();
  }
}

/** Wait, or throw the reason of the signal as soon as the signal fires. */
async function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  const patience = new Patience(ms, false, signal);
  try {
    await patience.wait(() => new Promise<never>(() => undefined));
  } catch (error) {
    if (!patience.isLate) throw error;
  } finally {
    patience.end();
  }
}
