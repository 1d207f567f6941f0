/** The end of one attempt: the caller's signal, the deadline of the call, or a server that is silent. */

/** Waits for the parts of one answer. Without a deadline, the time of the caller between two parts is not counted. */
export class Patience {
  // One controller of our own is held for the whole attempt: a signal made of others may be collected before it fires.
  private readonly controller = new AbortController();
  private readonly late = new DOMException("the time is over", "TimeoutError");
  private timer: ReturnType<typeof setTimeout> | undefined;
  private isWaiting = false;
  private isPaused = false;
  private readonly forward = (): void => this.controller.abort(this.caller?.reason);

  constructor(
    private readonly patienceMs: number,
    private readonly hasDeadline: boolean,
    private readonly caller: AbortSignal | undefined,
  ) {
    if (caller?.aborted) this.forward();
    caller?.addEventListener("abort", this.forward, { once: true });
    if (hasDeadline) this.start();
  }

  /** Ends the request too. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Whether the time is over. */
  get isLate(): boolean {
    return this.signal.reason === this.late;
  }

  /** Do one piece of work, which ends with the attempt at the latest. */
  async wait<T>(work: () => Promise<T>): Promise<T> {
    const { signal } = this;
    signal.throwIfAborted();
    this.count({ isWaiting: true });
    let stop: (() => void) | undefined;
    const over = new Promise<never>((_, reject) => {
      stop = () => reject(signal.reason);
      signal.addEventListener("abort", stop, { once: true });
    });
    try {
      return await Promise.race([work(), over]);
    } finally {
      if (stop) signal.removeEventListener("abort", stop);
      this.count({ isWaiting: false });
    }
  }

  /** Wait for a part of the request that the caller makes. A failure ends the attempt with its reason. */
  async part<T>(work: () => Promise<T>): Promise<T> {
    this.count({ isPaused: true });
    try {
      this.signal.throwIfAborted();
      return await work();
    } catch (error) {
      this.controller.abort(error);
      throw error;
    } finally {
      this.count({ isPaused: false });
    }
  }

  /** End the attempt, with what is still sent of its request. */
  end(): void {
    clearTimeout(this.timer);
    this.controller.abort();
    this.caller?.removeEventListener("abort", this.forward);
  }

  /** Without a deadline, count the time while only the server is waited for. */
  private count(state: { isWaiting?: boolean; isPaused?: boolean }): void {
    Object.assign(this, state);
    if (this.hasDeadline) return;
    clearTimeout(this.timer);
    if (this.isWaiting && !this.isPaused) this.start();
  }

  private start(): void {
    this.timer = setTimeout(() => this.controller.abort(this.late), this.patienceMs);
  }
}
