/** The shapes of requests and answers, from the server's OpenAPI document. */
import type { components } from "./openapi.js";

type Schemas = components["schemas"];

export type Score = Schemas["Score"];
export type LabelledToken = Schemas["LabelledToken"];
export type LabelledGroup = Schemas["LabelledGroup"];
export type Answer = Schemas["Answer"];
export type RankedDocument = Schemas["RankedDocument"];
export type Parameters = Partial<Schemas["Parameters"]>;
export type Priority = Schemas["Priority"];
export type Problem = Schemas["Problem"];
export type Verdict = Schemas["PolicyVerdict"];
/** An event of a stream of verdicts. An `error` event is thrown instead. */
export type StreamEvent = Schemas["StreamEvent"] & { text: string; final: boolean };

/** A text, a pair of texts, a question with its context, or a query with its documents. */
export type Input = string | Schemas["TextPair"] | Schemas["QuestionInput"] | Schemas["QueryInput"];
export type Inputs = Input | readonly Input[];

/** One value for one input; a list of values for a list of inputs. */
export type PerInput<I, T> = I extends readonly unknown[] ? T[] : T;

interface OutputOfHead {
  sequence_classification: Score[];
  token_classification: (LabelledToken | LabelledGroup)[];
  question_answering: Answer[];
  ranking: RankedDocument[];
}

type Typed<I, Wire> = {
  [Head in Schemas["HeadKind"]]: Omit<Wire, "head" | "outputs" | "predicted" | "tokens" | "truncated" | "unread"> & {
    head: Head;
    /** Best first; `head` says of which kind. */
    outputs: PerInput<I, OutputOfHead[Head]>;
    /** The label, the labels that apply, or the value; null unless texts are classified. */
    predicted: PerInput<I, string | string[] | number> | null;
    tokens: PerInput<I, number>;
    truncated: PerInput<I, boolean>;
    unread?: PerInput<I, number>;
  };
}[Schemas["HeadKind"]];

/** The answer of one task version. */
export type Prediction<I = Inputs> = Typed<I, Schemas["PredictResponse"]>;
/** The part of one task that answered, in a request for several. */
export type TaskAnswer<I = Inputs> = Typed<I, Schemas["TaskAnswer"]>;
/** The part of one task that failed: its `error` says why. */
export type FailedTask = Schemas["FailedTask"];
/** Told apart by `"error" in result`. */
export type TaskResult<I = Inputs> = TaskAnswer<I> | FailedTask;
