// One request: where its time went. The same data as `penstock explain`.

import { read } from "../../api.js";
import { h } from "../../dom.js";
import { counted, count, digits, money, moment, percent, seconds, words } from "../../format.js";
import { badge, facts, heading, outcome, section, table } from "../../parts.js";
import { parts, waterfall } from "./waterfall.js";

export const request = {
  name: "requests",
  title: "Request",
  hidden: true,
  under: "requests",
  every: 0,
  load: ({ rest }) => read(`/api/requests/${encodeURIComponent(rest[0])}`),
  draw: (found, { rest }) => [
    h("p", {}, h("a", { href: "#/requests" }, "All requests")),
    heading(`Request ${rest[0]}`, found.summary),
    section("Where the time went", parts(found.parts), h("p", { class: "note" }, "Cause of most of the time above what it needed: ", h("strong", {}, words(found.cause)))),
    ...found.calls.map((call, index) => one(call, found.calls.length > 1 ? `Call ${index + 1} of ${found.calls.length}` : "Call")),
    decisions(found.decisions, found.calls[0].pool),
  ].filter(Boolean),
};

function one(call, title) {
  return section(
    title,
    h("p", {}, outcome(call.slo_outcome), call.error_reason ? badge(call.error_reason.toLowerCase(), "bad") : null, call.resumed ? badge("came back", "info") : null),
    call.error ? h("p", { class: "state bad" }, call.error) : null,
    waterfall(call),
    facts([
      ["arrived", moment(call.arrived_at_ms)],
      ["pool", call.pool],
      ["tenant", call.tenant],
      ["class", call.request_class],
      ["by", words(call.origin)],
      ["router", call.router_id],
      ["first token", promised(call.time_to_first_token, call.slo_ttft)],
      ["SLO between tokens", call.slo_itl === null ? null : seconds(call.slo_itl)],
      ["total", seconds(call.total_time)],
      ["tokens", `${count(call.usage.prompt_tokens)} in (${count(call.usage.cached_tokens)} cached), ${count(call.usage.output_tokens)} out`],
      ["GPU time", seconds(call.gpu_seconds)],
      ["cost", call.cost ? money(call.cost) : null],
      ["trace", call.trace_id ? h("code", {}, call.trace_id) : null],
    ]),
    call.choices.map((choice) => waits(choice, call.choices.length > 1)),
    attempts(call),
  );
}

function promised(value, slo) {
  return slo === null ? seconds(value) : `${seconds(value)} (SLO ${seconds(slo)})`;
}

function waits(choice, several) {
  if (!choice.waits.length && !choice.ahead.length && !choice.position) return null;
  return h(
    "div",
    {},
    h("h3", {}, several ? `Wait of choice ${choice.index}` : "Wait"),
    h("p", { class: "note" }, `${counted(choice.position, "request")} ahead when it was put in line${choice.predicted_wait === null ? "" : `; predicted wait ${seconds(choice.predicted_wait)}`}`),
    choice.waits.length ? h("ul", { class: "words" }, choice.waits.map(([reason, time]) => h("li", {}, `${reason === "unspecified" ? "not known" : words(reason)}: ${seconds(time)}`))) : null,
    choice.ahead.length ? h("p", {}, "Ahead: ", choice.ahead.map((each) => `${each.waiting} ${each.request_class}${each.tenant ? ` of ${each.tenant}` : ""}`).join(", ")) : null,
  );
}

function attempts(call) {
  const rows = call.choices.flatMap((choice) => choice.attempts.map((attempt, index) => ({ choice: choice.index, number: index + 1, ...attempt })));
  return table(
    "Attempts",
    [
      ["attempt", (each) => (call.choices.length > 1 ? `choice ${each.choice}, ${each.number}` : String(each.number))],
      ["replica", (each) => each.replica_id || "–"],
      ["end", (each) => [badge(each.outcome, each.outcome === "completed" ? "good" : each.outcome === "lost" ? "bad" : "warn"), each.failure ? words(each.failure) : ""]],
      ["granted at", (each) => seconds(each.granted_at), { end: true }],
      ["first token at", (each) => seconds(each.first_token_at), { end: true }],
      ["ended at", (each) => seconds(each.ended_at), { end: true }],
      ["in engine's queue", (each) => seconds(each.engine_wait), { end: true }],
      ["output", (each) => count(each.output_tokens), { end: true }],
      ["cached", (each) => count(each.cached_tokens), { end: true }],
      ["GPU s", (each) => digits(each.gpu_seconds), { end: true }],
      ["batch at grant", (each) => load(each.load_at_grant), { end: true }],
      ["batch at end", (each) => load(each.load_at_end), { end: true }],
    ],
    rows,
    { empty: "It never reached a replica." },
  );
}

function load(one) {
  return one ? `${count(one.running)} of ${count(one.batch_limit)}, KV ${percent(one.kv_usage)}` : "–";
}

// Those that changed something or warn, and the last one.
function decisions(all, pool) {
  const rows = all.filter((each, index) => each.replicas !== each.replicas_before || each.alarms.length || index === all.length - 1);
  if (!rows.length) return null;
  return section(
    "The autoscaler around it",
    table(
      "Oldest first",
      [
        ["number", (each) => h("a", { href: `#/autoscaler?pool=${encodeURIComponent(pool)}&decision=${each.number}` }, String(each.number))],
        ["time", (each) => moment(each.at_ms)],
        ["replicas", (each) => `${each.replicas_before} → ${each.replicas}`, { end: true }],
        ["why", (each) => each.reason, { wide: true }],
      ],
      rows,
    ),
    h("p", { class: "note" }, `${counted(all.length, "decision")} from a minute before its arrival to its end; those that changed nothing are left out.`),
  );
}
