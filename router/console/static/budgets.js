// Budgets of tenants: what is spent of them, and when they renew.

import { meter } from "./charts.js";
import { h } from "./dom.js";
import { money, percent } from "./format.js";
import { badge, table } from "./parts.js";

export function budgets(found) {
  return table(
    "Budgets",
    [
      ["tenant", (each) => each.tenant],
      ["pool", (each) => each.pool],
      ["for each", (each) => each.name.replace("cost_per_", "")],
      ["used", (each) => money(each.used), { end: true }],
      ["limit", (each) => money(each.limit), { end: true }],
      ["part", part, { wide: true }],
      ["renews", (each) => `${each.renews.slice(0, 16).replace("T", " ")} UTC`],
      ["", (each) => (each.used >= each.limit ? badge("used up", "bad") : each.warned ? badge("nearly used", "warn") : "")],
    ],
    [...found].sort((one, other) => other.used / other.limit - one.used / one.limit),
    { key: (each) => `budget ${each.pool} ${each.tenant} ${each.name}` },
  );
}

function part(each) {
  const used = each.used / each.limit;
  return h("div", { class: "bar" }, h("span", {}, percent(used)), meter(Math.min(1, used), { label: `${percent(used)} of the budget` }));
}
