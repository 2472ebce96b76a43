// Usage and cost by tenant and day.

import { read } from "../api.js";
import { may, whoCalls } from "../caller.js";
import { budgets } from "../budgets.js";
import { meter } from "../charts.js";
import { h } from "../dom.js";
import { count, money, percent, short } from "../format.js";
import { choose, field, heading, section, table } from "../parts.js";
import { costs } from "./costs.js";

const PERIODS = [["1", "today"], ["7", "7 days"], ["14", "14 days"], ["31", "31 days"], ["92", "92 days"]];
const SUMS = ["requests", "prompt_tokens", "output_tokens", "cached_tokens", "gpu_seconds", "cost"];

export const usage = {
  name: "usage",
  title: "Usage",
  every: 5000,
  async load({ query }) {
    const days = PERIODS.some(([value]) => value === query.days) ? query.days : "14";
    // A user's key sees its own tenant.
    if (!may(await whoCalls(), "operator")) return { days, everyone: false, ...(await read("/api/usage", { days })) };
    const [used, spent] = await Promise.all([read("/api/usage", { days, all: "1" }), read("/api/costs", { days })]);
    return { days, everyone: true, ...used, spent: spent.lines };
  },
  draw({ days, everyone, lines, truncated, budgets: bounds, spent }) {
    const tenants = sums(lines, (each) => each.tenant).sort((one, other) => other.cost - one.cost || other.gpu_seconds - one.gpu_seconds);
    const whole = tenants.reduce((sum, each) => sum + (each.cost || each.gpu_seconds), 0);
    const byDay = sums(lines, (each) => `${each.day} ${each.pool} ${each.tenant}`, (each) => ({ day: each.day, pool: each.pool, tenant: each.tenant })).sort((one, other) => other.name.localeCompare(one.name));
    const period = choose(PERIODS, days, (event) => (location.hash = `#/usage?days=${event.target.value}`));
    return [
      heading("Usage", everyone ? "What tenants used, and what it costs. Days are in UTC." : "What your tenant used, and what it costs. Days are in UTC."),
      h("div", { class: "filters" }, field("Period", period, "usage-days")),
      truncated ? h("p", { class: "note" }, "There is more than is shown: choose fewer days.") : null,
      section(
        "By tenant",
        table(
          "Most first",
          [
            ["tenant", (each) => each.name],
            ["share", (each) => share(each, whole), { wide: true }],
            ...columns(),
          ],
          tenants,
          { key: (each) => each.name, empty: "No usage in this period." },
        ),
      ),
      bounds?.length ? section("Budgets", h("p", { class: "note" }, "Of today and of this month, whatever the period above."), budgets(bounds)) : null,
      spent ? costs(spent) : null,
      section(
        "By day",
        table("Newest first", [["day", (each) => each.day], ["pool", (each) => each.pool], ["tenant", (each) => each.tenant], ...columns()], byDay, {
          key: (each) => each.name,
          empty: "No usage in this period.",
        }),
      ),
    ].filter(Boolean);
  },
};

function columns() {
  return [
    ["requests", (each) => count(each.requests), { end: true }],
    ["prompt tokens", (each) => short(each.prompt_tokens), { end: true }],
    ["cached", (each) => percent(each.prompt_tokens ? each.cached_tokens / each.prompt_tokens : 0), { end: true }],
    ["output tokens", (each) => short(each.output_tokens), { end: true }],
    ["GPU seconds", (each) => each.gpu_seconds.toFixed(1), { end: true }],
    ["cost", (each) => money(each.cost), { end: true }],
  ];
}

function share(each, whole) {
  const part = whole ? (each.cost || each.gpu_seconds) / whole : 0;
  return h("div", { class: "bar" }, h("span", {}, percent(part)), meter(part, { label: `${percent(part)} of all` }));
}

function sums(lines, name, more = () => ({})) {
  const found = new Map();
  for (const line of lines) {
    const key = name(line);
    const sum = found.get(key) ?? { name: key, ...more(line), ...Object.fromEntries(SUMS.map((each) => [each, 0])) };
    for (const each of SUMS) sum[each] += line[each];
    found.set(key, sum);
  }
  return [...found.values()];
}
