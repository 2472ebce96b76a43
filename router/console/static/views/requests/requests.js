// Requests that ended, newest first; those that missed their SLO or failed alone, where asked for.

import { read, readKept } from "../../api.js";
import { may, whoCalls } from "../../caller.js";
import { h } from "../../dom.js";
import { clock, count, money, moment, seconds, words } from "../../format.js";
import { badge, choose, field, heading, outcome, section, table } from "../../parts.js";

const LIMITS = [["50", "50"], ["200", "200"], ["500", "500"]];

export const requests = {
  name: "requests",
  title: "Requests",
  every: 3000,
  async load({ query }) {
    const asked = { pool: query.pool, tenant: query.tenant, missed: query.missed, limit: query.limit ?? "50" };
    const models = await readKept(30, "/api/models");
    const everyone = may(await whoCalls(), "operator");
    const whose = everyone && !asked.tenant ? { all: "1" } : {};
    return { models, everyone, found: await read("/api/requests", { ...asked, ...whose, ...(everyone ? {} : { tenant: "" }) }) };
  },
  draw: ({ models, everyone, found }, { query }) => [
    heading("Requests", everyone ? "Requests that ended, of all tenants, without prompts and outputs." : "Your tenant's requests that ended, without prompts and outputs."),
    filters(models, everyone, query),
    section("Requests", list(found, query)),
  ],
};

function filters(models, everyone, query) {
  const go = (change) => {
    const asked = new URLSearchParams(Object.entries({ ...query, ...change }).filter(([, value]) => value));
    location.hash = `#/requests${asked.size ? `?${asked}` : ""}`;
  };
  const missed = h("input", { type: "checkbox", id: "requests-missed", checked: query.missed === "1", onchange: (event) => go({ missed: event.target.checked ? "1" : "" }) });
  const find = h("input", { type: "text", spellcheck: "false", autocomplete: "off" });
  return h(
    "div",
    { class: "filters" },
    field("Pool", choose([["", "all"], ...models.map((each) => [each.name, each.name])], query.pool ?? "", (event) => go({ pool: event.target.value })), "requests-pool"),
    everyone ? field("Tenant", h("input", { type: "text", autocomplete: "off", value: query.tenant ?? "", onchange: (event) => go({ tenant: event.target.value.trim() }) }), "requests-tenant") : null,
    field("Most", choose(LIMITS, query.limit ?? "50", (event) => go({ limit: event.target.value })), "requests-limit"),
    h("div", { class: "field check" }, missed, h("label", { for: "requests-missed" }, "only missed or failed")),
    h("form", { class: "field", onsubmit: (event) => open(event) }, field("Find by id", find, "requests-find")),
  );
}

function open(event) {
  event.preventDefault();
  const id = event.target.querySelector("input").value.trim();
  if (id) location.hash = `#/requests/${encodeURIComponent(id)}`;
}

function list(found, query) {
  const today = new Date().toDateString();
  const at = (each) => (new Date(each.arrived_at_ms).toDateString() === today ? clock(each.arrived_at_ms) : moment(each.arrived_at_ms));
  const output = (each) => each.usage.output_tokens;
  return table(
    query.missed === "1" ? "Missed their SLO or failed, newest first" : "Newest first",
    [
      ["request", (each) => h("a", { href: `#/requests/${encodeURIComponent(each.request_id)}` }, h("code", {}, each.request_id))],
      ["arrived", at],
      ["pool", (each) => each.pool],
      ["tenant", (each) => each.tenant],
      ["class", (each) => each.request_class],
      ["SLO", (each) => (each.error_reason ? badge(each.error_reason.toLowerCase(), "bad") : outcome(each.slo_outcome))],
      ["first token", (each) => seconds(each.time_to_first_token), { end: true }],
      ["total", (each) => seconds(each.total_time), { end: true }],
      ["prompt", (each) => count(each.usage.prompt_tokens), { end: true }],
      ["output", (each) => count(output(each)), { end: true }],
      ["attempts", (each) => count(each.choices.reduce((sum, choice) => sum + choice.attempts.length, 0)), { end: true }],
      ["cost", (each) => money(each.cost), { end: true }],
      ["by", (each) => words(each.origin)],
    ],
    found,
    { key: (each) => each.request_id, empty: query.missed === "1" ? "No request missed its SLO or failed." : "No request has ended yet." },
  );
}
