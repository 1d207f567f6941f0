/** Client of a Nunatak server: `new Client(url)` predicts, streams and judges. */
export { Client, type CallOptions, type ClientOptions, type PredictOptions } from "./client.js";
export * from "./errors.js";
export { RetryPolicy } from "./retries.js";
export type * from "./shapes.js";
