// The state of the cluster, as several pages read it, and what follows from it.

import { read } from "./api.js";
import { remember } from "./history.js";

export async function readStatus() {
  const found = await read("/api/status");
  remember(found);
  return found.status;
}

// Tightest promise of the time between tokens, in seconds: all classes share a batch. null where none is promised.
export function itlPromise(pool) {
  const point = pool.operating_point ?? {};
  const bounds = ["interactive", "standard", "batch"].map((name) => point[name]?.itl_p95_s).filter((each) => each);
  return bounds.length ? Math.min(...bounds) : null;
}

// Requests with an SLO, and those within it: over the last ten minutes where the autoscaler says so, else since the
// routers' start. part is null where none was judged.
export function goodput(pool) {
  const classes = pool.classes ?? [];
  const judged = classes.reduce((sum, each) => sum + each.judged, 0);
  const met = classes.reduce((sum, each) => sum + each.met, 0);
  const recent = pool.last_decision?.attainment;
  if (recent !== null && recent !== undefined) return { part: recent, text: "of the last 10 minutes' requests" };
  return { part: judged ? met / judged : null, text: judged ? `${met.toLocaleString("en")} of ${judged.toLocaleString("en")} since the routers' start` : "no request was judged yet" };
}

export function counts(pool) {
  const of = (state) => pool.replicas.filter((each) => each.state === state).length;
  return { ready: of("ready"), standby: of("standby"), draining: of("draining"), starting: Math.max(of("starting"), pool.starting ?? 0) };
}

// What is wrong with a pool, in sentences.
export function troubles(pool) {
  const found = [];
  if (!pool.reachable) found.push(`The numbers below are old: ${pool.unreachable_reason || "Redis does not answer."}`);
  if (pool.start_failure) found.push(`The last replica did not start: ${pool.start_failure}`);
  if (pool.relief && pool.relief !== "none") found.push(`The pool lacks replicas. Measure in force: ${pool.relief.replaceAll("_", " ")}.`);
  for (const alarm of pool.last_decision?.alarms ?? []) found.push(alarm);
  if (pool.replicas.length && !pool.replicas.some((each) => each.state === "ready")) found.push("No replica takes work.");
  return found;
}
