// The Prometheus text format, as far as this page needs it: sums, rates and quantiles.

/** Read samples: a list of { name, labels, value }. */
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (found) samples.push({ name: found[1], labels: found[2] ?? "", value: Number(found[3]) });
  }
  return samples;
}

/** The sum of a metric over all its labels. */
export function total(samples, name) {
  return samples.reduce((sum, it) => (it.name === name ? sum + it.value : sum), 0);
}

/** What a histogram gained since an earlier reading, where labels match: [upper bound, count] in order. */
export function gained(samples, before, name, labels = /(?:)/) {
  const old = buckets(before, name, labels);
  return [...buckets(samples, name, labels)]
    .map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)])
    .sort(([a], [b]) => a - b);
}

/** Estimate a quantile as Prometheus does, by a straight line within its bucket; null if empty. */
export function quantile(cumulative, share) {
  const count = cumulative.at(-1)?.[1] ?? 0;
  if (count <= 0) return null;
  const rank = share * count;
  let [lower, below] = [0, 0];
  for (const [bound, upTo] of cumulative) {
    if (upTo >= rank && Number.isFinite(bound)) {
      return lower + ((bound - lower) * (rank - below)) / Math.max(upTo - below, 1e-9);
    }
    if (Number.isFinite(bound)) [lower, below] = [bound, upTo];
  }
  return lower;
}

function buckets(samples, name, labels) {
  const found = new Map();
  for (const sample of samples) {
    if (sample.name !== `${name}_bucket` || !labels.test(sample.labels)) continue;
    const text = /le="([^"]+)"/.exec(sample.labels)?.[1];
    const bound = text === "+Inf" ? Infinity : Number(text);
    found.set(bound, (found.get(bound) ?? 0) + sample.value);
  }
  return found;
}
