// One text to one policy, and its verdict.

import { answerForm } from "/page/answers.js";
import { byId, element } from "/page/dom.js";
import { postJson } from "/page/server.js";

let policies = [];

/** Listen to the form; tells when a verdict has come, and when a key is missing. */
export function startJudging({ onVerdict, onMissingKey }) {
  byId("judge-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    await judge(onMissingKey);
    onVerdict();
  });
}

/** Offer these policies; without any, there is nothing to try. */
export function offerPolicies(offered) {
  byId("judge").hidden = offered.length === 0;
  const names = offered.map((it) => it.policy.name);
  if (names.join() !== policies.join()) {
    const chosen = byId("policy").value;
    byId("policy").replaceChildren(...names.map((it) => element("option", { value: it }, it)));
    if (names.includes(chosen)) byId("policy").value = chosen;
  }
  policies = names;
}

async function judge(onMissingKey) {
  const policy = byId("policy").value;
  await answerForm({ form: "judge", place: "verdict", title: policy, verb: ["judging", "judged"], onMissingKey }, async () => {
    const { answer, timing } = await postJson(`/v1/verdicts/${encodeURIComponent(policy)}`, { inputs: byId("judged").value });
    return { card: verdictCard(answer), timing };
  });
}

function verdictCard(verdict) {
  const dry = verdict.action === verdict.decided ? "" : ` (dry run; the rules decide ${verdict.decided})`;
  const rules = verdict.rules.map((it) =>
    element("li", {}, `${it.rule}: ${it.action}, score ${it.score.toFixed(2)}${it.message ? `. ${it.message}` : ""}`),
  );
  const failures = verdict.failures.map((it) => element("li", {}, `${it.reference} did not answer: ${it.error.detail}`));
  return element(
    "article",
    { className: verdict.failures.length ? "answer wide failed" : "answer wide", data: { action: verdict.action } },
    element("h3", {}, `${verdict.action}${dry}`, element("span", {}, `${verdict.policy}/${verdict.version}: ${verdict.tasks.join(", ") || "no task answered"}`)),
    ...(verdict.by_failure ? [element("p", { className: "warning" }, "A task has no answer, so on_failure decides.")] : []),
    ...(rules.length ? [element("ul", {}, ...rules)] : [element("p", { className: "quiet-text" }, "no rule applies")]),
    ...(failures.length ? [element("ul", {}, ...failures)] : []),
    ...(verdict.texts === null ? [] : [element("p", { className: "passage" }, verdict.texts)]),
  );
}
