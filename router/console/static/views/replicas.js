// The live map of replicas: state, batch, KV cache, time between tokens against the SLO, starts and drains.

import { meter } from "../charts.js";
import { itlPromise, readStatus, troubles } from "../cluster.js";
import { h } from "../dom.js";
import { count, counted, percent, seconds, short } from "../format.js";
import { badge, facts, heading, noPool, section } from "../parts.js";

const STATES = { ready: "good", starting: "info", draining: "warn", standby: "info" };

export const replicas = {
  name: "replicas",
  title: "Replicas",
  role: "operator",
  every: 1000,
  load: readStatus,
  draw: (status) => [heading("Replicas", "Each box is one engine. Bars show how full it is."), ...(status.pools.length ? status.pools.map(pool) : [noPool()])],
};

function pool(one) {
  const missing = Math.max(0, (one.starting ?? 0) - one.replicas.filter((each) => each.state === "starting").length);
  const worries = troubles(one);
  return section(
    one.name,
    h("p", { class: "note" }, `${counted(one.replicas.length, "replica")}, ${counted(one.waiting, "request")} waiting; routers: ${one.router_ids.join(", ") || "none"}`),
    worries.length ? h("ul", { class: "worries" }, worries.map((each) => h("li", {}, each))) : null,
    one.replicas.length || missing
      ? h("ul", { class: "map" }, one.replicas.map((each) => replica(each, itlPromise(one))), Array.from({ length: missing }, (_, index) => coming(index)))
      : h("p", { class: "empty" }, "The pool has no replica."),
  );
}

function replica(one, promise) {
  const slow = promise && one.itl_p95 > promise;
  const full = one.batch_limit ? one.running / one.batch_limit : 0;
  return h(
    "li",
    { class: `replica ${one.state}`, "data-key": one.replica_id },
    h("h3", {}, one.replica_id),
    h("p", {}, badge(state(one), STATES[one.state]), one.linked ? null : badge("no link", "bad"), one.overloaded ? badge("overloaded", "bad") : null),
    !one.linked && one.link_error ? h("p", { class: "note" }, `No link: ${one.link_error}`) : null,
    bar("Batch", `${count(one.running)} of ${count(one.batch_limit)}`, full, full >= 1 ? "warn" : ""),
    bar("KV cache", percent(one.kv_usage), one.kv_usage, one.kv_usage > 0.9 ? "warn" : ""),
    one.itl_p95
      ? bar("ITL p95", promise ? `${seconds(one.itl_p95)} of ${seconds(promise)}` : seconds(one.itl_p95), promise ? one.itl_p95 / promise : 0, slow ? "bad" : "good")
      : null,
    facts([
      ["group", one.group_id],
      ["up for", one.up_time ? seconds(one.up_time) : null],
      ["wake-up took", one.wake_time !== null && one.wake_time !== undefined ? seconds(one.wake_time) : null],
      ["start took", one.start_time ? seconds(one.start_time) : null],
      ["drains for", one.draining_for !== null && one.draining_for !== undefined ? seconds(one.draining_for) : null],
      ["tokens", short(one.output_tokens)],
      ["heartbeat", seconds(one.heartbeat_age)],
    ]),
  );
}

function state(one) {
  if (one.asleep) return `${one.state}: asleep`;
  return one.drain_reason ? `${one.state}: ${one.drain_reason}` : one.state;
}

function bar(name, text, part, tone) {
  return h("div", { class: "bar" }, h("span", {}, name), h("span", { class: "end" }, text), meter(part, { label: `${name}: ${text}`, state: tone }));
}

function coming(index) {
  return h("li", { class: "replica starting", "data-key": `coming-${index}` }, h("h3", {}, "new replica"), h("p", {}, badge("starting", "info")));
}
