// Budgets of tenants: what is spent of them, and when they renew.

import { meter } from "./charts.js";
import { h } from "./dom.js";
import { money, percent } from "./format.js";
import { badge, table } from "./parts.js";

// `pools`: whether they are of several pools.
export function budgets(found, { pools = true } = {}) {
  return table(
    "Budgets",
    [
      ["tenant", (each) => each.tenant],
      pools ? ["pool", (each) => each.pool] : null,
      ["for each", (each) => each.name.replace("cost_per_", "")],
      ["part", part, { wide: true }],
      ["used", (each) => money(each.used), { end: true }],
      ["limit", (each) => money(each.limit), { end: true }],
      ["renews", (each) => `${each.renews.slice(0, 16).replace("T", " ")} UTC`],
    ].filter(Boolean),
    [...found].sort((one, other) => other.used / other.limit - one.used / one.limit),
    { key: (each) => `budget ${each.pool} ${each.tenant} ${each.name}` },
  );
}

function part(each) {
  const used = each.used / each.limit;
  const [word, state] = used >= 1 ? ["used up", "bad"] : each.warned ? ["nearly used", "warn"] : ["", ""];
  return h("div", { class: "bar" }, h("span", {}, percent(used), " ", word ? badge(word, state) : null), meter(used, { label: `${percent(used)} of the budget`, state }));
}
