// The line: who waits and who runs, by class and tenant, and what tenants used of their quotas.

import { budgets } from "../budgets.js";
import { line as chart, meter } from "../charts.js";
import { readStatus } from "../cluster.js";
import { h } from "../dom.js";
import { count, counted, digits, seconds, short } from "../format.js";
import { samples } from "../history.js";
import { badge, heading, noPool, section, table } from "../parts.js";

const CLASSES = ["interactive", "standard", "batch"];

export const line = {
  name: "line",
  title: "Line",
  role: "tenant_operator",
  every: 1000,
  load: readStatus,
  draw: (status) => [heading("Line", "Requests that wait for a place in a batch, and those that have one, by class and tenant."), ...(status.pools.length ? status.pools.map(pool) : [noPool()])],
};

function pool(one) {
  const past = samples(one.name).map((each) => [each.at, each.waiting]);
  const entries = one.line ?? [];
  return section(
    one.name,
    h("p", { class: "note" }, `${counted(one.waiting, "request")} waiting, ${count(one.running)} running`),
    chart(past, { label: "requests waiting while this page was open", height: 60 }),
    entries.length ? h("div", { class: "tiles" }, CLASSES.map((name) => share(name, entries, one))) : null,
    one.line && table(
      "Tenants, those that come next first",
      [
        ["tenant", (each) => each.tenant],
        ["class", (each) => each.request_class],
        ["waiting", (each) => count(each.waiting), { end: true }],
        ["running", (each) => count(each.running), { end: true }],
        ["oldest waits", (each) => (each.waiting ? seconds(each.oldest_wait) : "–"), { end: true }],
        ["served ahead", (each) => (each.waiting ? `${short(each.served_ahead)} tokens` : "–"), { end: true }],
        ["weight", (each) => (each.weight ? digits(each.weight) : "–"), { end: true }],
      ],
      entries,
      { key: (each) => `${one.name} ${each.request_class} ${each.tenant}`, empty: "Nobody waits, and nobody runs." },
    ),
    one.quotas?.length ? quotas(one) : null,
    one.budgets?.length ? budgets(one.budgets, { pools: false }) : null,
  );
}

function share(name, entries, one) {
  const own = entries.filter((each) => each.request_class === name);
  const sum = (field) => own.reduce((all, each) => all + each[field], 0);
  const whole = one.waiting + one.running || 1;
  const [waiting, running] = [sum("waiting"), sum("running")];
  const text = `${count(waiting)} waiting, ${count(running)} running`;
  return h("div", { class: "tile", role: "group", "aria-label": name }, h("p", { class: "name" }, name), h("p", { class: "note" }, text), meter((waiting + running) / whole, { label: `${name}: ${text}` }));
}

function quotas(one) {
  const left = (now, limit) => (limit ? `${short(now)} of ${short(limit)}` : "–");
  return table(
    "Quotas: what may be used now",
    [
      ["tenant", (each) => each.tenant],
      ["tokens per minute", (each) => left(each.tokens_left, each.tokens_per_minute), { end: true }],
      ["requests per minute", (each) => left(each.requests_left, each.requests_per_minute), { end: true }],
      ["open", (each) => (each.concurrency ? `${count(each.open)} of ${count(each.concurrency)}` : count(each.open)), { end: true }],
      ["blocked by", (each) => (each.blocked_by ? [badge(each.blocked_by, "warn"), each.blocked_for ? ` for ${seconds(each.blocked_for)}` : ""] : "–")],
      ["refused in a minute", (each) => count(each.refused), { end: true }],
    ],
    one.quotas,
    { key: (each) => `quota ${one.name} ${each.tenant}` },
  );
}
