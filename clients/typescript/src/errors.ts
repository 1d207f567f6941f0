/** Errors of the client; every class derives from `NunatakError` and has a stable `code`. */
import type { Problem } from "./shapes.js";

export class NunatakError extends Error {
  constructor(
    readonly code: string,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** An argument that cannot be sent; nothing was sent. */
export class InvalidInputError extends NunatakError {
  constructor(message: string) {
    super("invalid_input", message);
  }
}

/** No answer arrived: the connection was refused, broke or timed out. */
export class ConnectionFailedError extends NunatakError {
  constructor(message: string, cause?: unknown) {
    super("connection_failed", message, { cause });
  }
}

/** The answer does not follow the contract: another server, or a proxy in between. */
export class InvalidResponseError extends NunatakError {
  constructor(message: string) {
    super("invalid_response", message);
  }
}

/** The server refused the request and gave the reason. */
export class ApiError extends NunatakError {
  readonly status: number;
  /** The id of the request in the server's log. */
  readonly requestId: string | undefined;
  /** The place of the refused input among the inputs, from 0. */
  readonly position: number | undefined;
  /** Seconds after which the server suggests another attempt. */
  readonly retryAfterS: number | undefined;

  constructor(problem: Partial<Problem> & { code: string; status: number }, retryAfterS?: number) {
    const fields = (problem.errors ?? []).map((it) => `${it.location}: ${it.message}`).join("; ");
    const detail = problem.detail || problem.title || `the server answered ${problem.status}`;
    super(problem.code, fields ? `${detail} (${fields})` : detail);
    this.status = problem.status;
    this.requestId = problem.request_id ?? undefined;
    this.position = problem.position ?? undefined;
    this.retryAfterS = retryAfterS;
  }
}

/** 400, 405, 413, 415, 422: the request has an error. */
export class InvalidRequestError extends ApiError {}
/** 401: no API key, or an invalid key. */
export class AuthenticationError extends ApiError {}
/** 403: the key does not allow the request. */
export class PermissionDeniedError extends ApiError {}
/** 404: no such task, version or policy. */
export class NotFoundError extends ApiError {}
/** 409: the state differs from the request's expectation. */
export class ConflictError extends ApiError {}
/** 429: too many requests; see `retryAfterS`. */
export class OverloadedError extends ApiError {}
/** 503: not available now; see `retryAfterS`. */
export class UnavailableError extends ApiError {}
/** 504: the deadline passed before the answer was ready. */
export class DeadlineExceededError extends ApiError {}

const CLASS_OF_STATUS: Record<number, typeof ApiError> = {
  400: InvalidRequestError,
  401: AuthenticationError,
  403: PermissionDeniedError,
  404: NotFoundError,
  405: InvalidRequestError,
  409: ConflictError,
  413: InvalidRequestError,
  415: InvalidRequestError,
  422: InvalidRequestError,
  429: OverloadedError,
  503: UnavailableError,
  504: DeadlineExceededError,
};

/** The error of a problem, such as that of one task in a request for several. */
export function errorOf(problem: Problem, retryAfterS?: number): ApiError {
  return new (CLASS_OF_STATUS[problem.status] ?? ApiError)(problem, retryAfterS);
}

/** The error of an unsuccessful response, whose body is read. */
export async function errorOfResponse(response: Response): Promise<ApiError> {
  const body: unknown = await response.json().catch(() => undefined);
  const isProblem = typeof body === "object" && body !== null && "code" in body && "status" in body;
  const problem = isProblem
    ? (body as Problem)
    : ({
        code: "http_error",
        status: response.status,
        detail: unexplained(response),
        request_id: response.headers.get("x-request-id"),
      } as Problem);
  return errorOf(problem, retryAfterS(response));
}

/** To follow a redirection would repeat the key and the texts elsewhere, and often as a GET without a body. */
function unexplained(response: Response): string {
  const target = response.headers.get("location") ?? "another address";
  if (response.type === "opaqueredirect" || Math.floor(response.status / 100) === 3) {
    return `the server redirects to ${target}, and the client does not follow; use that address`;
  }
  return `the server answered HTTP ${response.status} without a reason; is it Nunatak?`;
}

/** Seconds of `Retry-After`; undefined when absent or written as a date. */
export function retryAfterS(response: Response): number | undefined {
  const seconds = Number(response.headers.get("retry-after") || Number.NaN);
  return seconds >= 0 && Number.isFinite(seconds) ? seconds : undefined;
}
