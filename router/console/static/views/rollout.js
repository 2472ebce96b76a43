// A pool's newest roll-out while it goes on, and for an hour after: how far it is, its last steps, its judgement.

import { readKept } from "../api.js";
import { meter } from "../charts.js";
import { h } from "../dom.js";
import { clock, count, counted, percent } from "../format.js";
import { badge, table } from "../parts.js";

const STATES = { rolling: "info", held: "warn", "going back": "bad", done: "good", returned: "bad" };
const ACTIVE = ["rolling", "held", "going back"];
const SHOWN_MS = 3_600_000;
const STEPS = 5;

// The newest roll-outs by pool. Routers of an earlier release know none.
export async function readRollouts(pools) {
  const found = await Promise.all(pools.map((pool) => readKept(2, "/api/rollout", { pool }).catch(() => null)));
  return Object.fromEntries(pools.map((pool, index) => [pool, found[index]]));
}

export function rollout(one) {
  if (!one || !(ACTIVE.includes(one.state) || Date.now() - lastOf(one) < SHOWN_MS)) return null;
  const changed = one.replicas.filter((each) => each.revision === one.new_revision).length;
  const part = one.size ? changed / one.size : 0;
  return h(
    "div",
    { class: "rollout", role: "group", "aria-label": "Roll-out" },
    h("h3", {}, `Roll-out from revision ${one.old_revision} to ${one.new_revision} `, badge(one.state, STATES[one.state])),
    h("p", { class: "note" }, `${changed} of ${counted(one.size, "replica")} have revision ${one.new_revision}: ${settings(one.new_changes)}`),
    meter(part, { label: `${percent(part)} of the replicas changed`, state: STATES[one.state] === "bad" ? "bad" : "good" }),
    one.reason ? h("ul", { class: "worries" }, h("li", {}, `Back because: ${one.reason}`)) : null,
    ACTIVE.includes(one.state) ? table("Judgement", COLUMNS, one.replicas.map((each) => ({ ...each, told: judgement(each, one) })), { key: (each) => each.replica_id }) : null,
    h("ul", {}, one.steps.slice(-STEPS).map((each) => h("li", { class: "note" }, `${clock(Date.parse(each.at))} ${each.text}`))),
  );
}

const COLUMNS = [
  ["replica", (each) => each.replica_id],
  ["revision", (each) => count(each.revision), { end: true }],
  ["state", (each) => each.told],
  ["ended", (each) => count(each.ended), { end: true }],
  ["failed", (each) => count(each.failed), { end: true }],
  ["late", (each) => count(each.late), { end: true }],
];

// As `penstock rollout` says it.
function judgement(each, one) {
  if (each.retiring) return "finishes its requests";
  if (!each.ready) return "takes no work";
  if (each.revision !== one.new_revision) return "serves";
  return each.passed ? "serves well" : "is judged";
}

function lastOf(one) {
  return Date.parse(one.steps.at(-1)?.at ?? one.began_at);
}

function settings(changes, prefix = "") {
  const found = Object.entries(changes).map(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value) ? settings(value, `${prefix}${name}.`) : `${prefix}${name} = ${JSON.stringify(value)}`,
  );
  return found.join(", ") || "the pool's own settings";
}
