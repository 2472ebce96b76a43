// What this page saw of the cluster since it was opened: rates of counters, and their course.

const LONGEST_MS = 10 * 60_000;
const pools = new Map();

// Take a status in; a status that was taken in before changes nothing.
export function remember({ status, read_at_ms: at }) {
  for (const pool of status.pools) {
    const past = pools.get(pool.name) ?? { samples: [], tokens: new Map() };
    pools.set(pool.name, past);
    const last = past.samples[past.samples.length - 1];
    if (last && at <= last.at) continue;
    let made = 0;
    const tokens = new Map();
    for (const replica of pool.replicas) {
      tokens.set(replica.replica_id, replica.output_tokens);
      const before = past.tokens.get(replica.replica_id);
      // A replica that is new to this page made its tokens at an unknown time.
      if (before !== undefined) made += Math.max(0, replica.output_tokens - before);
    }
    past.tokens = tokens;
    const rate = last ? made / ((at - last.at) / 1000) : null;
    past.samples.push({ at, rate, waiting: pool.waiting, running: pool.running });
    while (past.samples[0].at < at - LONGEST_MS) past.samples.shift();
  }
}

// Samples of a pool, oldest first.
export function samples(pool) {
  return pools.get(pool)?.samples ?? [];
}

// Output tokens per second over the last seconds; null before it is known.
export function tokenRate(pool, overMs = 5000) {
  const all = samples(pool);
  const known = all.filter((each) => each.rate !== null && each.at > all[all.length - 1].at - overMs);
  return known.length ? known.reduce((sum, each) => sum + each.rate, 0) / known.length : null;
}

export function forget() {
  pools.clear();
}
