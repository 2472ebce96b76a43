// The autoscaler's decisions: steps, reasons, and what it would have done without a term.

import { read, readKept, send } from "../api.js";
import { may } from "../caller.js";
import { line } from "../charts.js";
import { h } from "../dom.js";
import { clock, counted, digits, money, moment, nearly, percent, seconds, words } from "../format.js";
import { badge, choose, facts, field, heading, noPool, section, table } from "../parts.js";

const CLASSES = ["interactive", "standard", "batch"];
const NEWEST = 10;

export const autoscaler = {
  name: "autoscaler",
  title: "Autoscaler",
  role: "operator",
  every: 3000,
  async load({ query }) {
    const { status } = await readKept(10, "/api/status");
    const pools = status.pools.map((each) => each.name);
    const pool = pools.includes(query.pool) ? query.pool : pools[0];
    return { pools, pool, found: pool ? await read("/api/decisions", { pool, limit: 120 }) : null };
  },
  draw({ pools, pool, found }, { query, redraw, fail, caller }) {
    if (!found) return [heading("Autoscaler"), noPool()];
    const all = found.decisions;
    const chosen = all.find((each) => String(each.number) === query.decision) ?? all[0];
    return [
      heading("Autoscaler", "How many replicas the pool should have, and why."),
      pools.length > 1 ? pick(pools, pool) : null,
      point(found, pool, may(caller, "admin") ? form(found.operating_point, pool, found.operating_point_set, redraw, fail) : null),
      all.length ? course(all) : null,
      chosen ? decision(chosen) : h("p", { class: "empty" }, "No decisions: no autoscaler looks after this pool."),
      all.length ? list(all, pool, chosen, query) : null,
    ].filter(Boolean);
  },
};

function pick(pools, pool) {
  const choice = choose(pools.map((each) => [each, each]), pool, (event) => (location.hash = `#/autoscaler?pool=${encodeURIComponent(event.target.value)}`));
  return h("div", { class: "filters" }, field("Pool", choice, "pool-choice"));
}

function course(all) {
  const oldest = [...all].reverse();
  const span = `${clock(oldest[0].at_ms)} to ${clock(all[0].at_ms)}`;
  const one = (title, points, text, target = null) => h("div", { class: "course" }, h("p", {}, title, " ", h("strong", {}, text)), line(points, { label: `${title}, ${span}`, target, height: 56 }));
  return section(
    `Course, ${span}`,
    h(
      "div",
      { class: "tiles" },
      one("Replicas decided", oldest.map((each) => [each.at_ms, each.replicas]), String(all[0].replicas)),
      one("Replicas needed", oldest.map((each) => [each.at_ms, each.needed]), String(all[0].needed)),
      one("Waiting", oldest.map((each) => [each.at_ms, each.waiting]), digits(all[0].waiting)),
      one("Within the SLO", oldest.map((each) => [each.at_ms, each.attainment]), nearly(all[0].attainment)),
    ),
  );
}

function decision(one) {
  const changed = one.replicas !== one.replicas_before;
  return section(
    `Decision ${one.number}, ${clock(one.at_ms)}`,
    h(
      "p",
      { class: "verdict" },
      h("strong", {}, changed ? `${one.replicas_before} to ${counted(one.replicas, "replica")}` : `stays at ${counted(one.replicas, "replica")}`),
      " ",
      badge(one.mode, one.mode === "active" ? "good" : "info"),
      one.relief !== "none" ? badge(`relief: ${words(one.relief)}`, "warn") : null,
    ),
    h("p", {}, one.reason),
    one.alarms.length ? h("ul", { class: "worries" }, one.alarms.map((each) => h("li", {}, each))) : null,
    h(
      "div",
      { class: "two" },
      h(
        "div",
        {},
        h("h3", {}, "Steps"),
        h("ol", { class: "steps" }, one.steps.map((step) => h("li", {}, h("span", { class: "step" }, words(step.name)), h("span", { class: "end" }, digits(step.value)), h("span", { class: "why" }, step.reason)))),
      ),
      h(
        "div",
        {},
        h("h3", {}, "Without a term"),
        one.counterfactuals.length
          ? h("ul", { class: "others" }, one.counterfactuals.map((each) => h("li", {}, `Without ${words(each.without)}: `, h("strong", {}, counted(each.replicas, "replica")))))
          : h("p", { class: "note" }, "No single term decided it: without any one of them the number is the same."),
        h("h3", {}, "Seen"),
        facts([
          ["take work", one.ready],
          ["starting", one.starting],
          ["draining", one.draining],
          ["running", digits(one.running)],
          ["waiting", digits(one.waiting)],
          ["KV cache", percent(one.kv_usage)],
          ["within SLO", nearly(one.attainment)],
          ["start takes", seconds(one.cold_start)],
          ["failed starts", one.failed_starts],
          ["age of values", seconds(one.age)],
          ["leader", one.leader],
        ]),
      ),
    ),
    one.demands.length
      ? table(
          "Demand",
          [
            ["class", (each) => each.request_class],
            ["requests/s", (each) => digits(each.rate), { end: true }],
            ["prompt", (each) => digits(each.prompt_tokens), { end: true }],
            ["cached", (each) => digits(each.cached_tokens), { end: true }],
            ["output", (each) => digits(each.output_tokens), { end: true }],
            ["queued", (each) => each.queued, { end: true }],
            ["oldest", (each) => seconds(each.oldest_wait), { end: true }],
            ["to be done in", (each) => (each.deadline === null ? "–" : seconds(each.deadline)), { end: true }],
          ],
          one.demands,
        )
      : null,
  );
}

// The newest, and earlier ones that changed something or warn; all where asked for.
function list(all, pool, chosen, query) {
  const everything = query.all === "1";
  const rows = all.filter((each, index) => everything || index < NEWEST || each.replicas !== each.replicas_before || each.alarms.length || each === chosen);
  const more = `#/autoscaler?pool=${encodeURIComponent(pool)}${everything ? "" : "&all=1"}`;
  const link = (each) => h("a", { href: `#/autoscaler?pool=${encodeURIComponent(pool)}&decision=${each.number}`, "aria-current": each === chosen ? "true" : null }, String(each.number));
  return section(
    "Decisions",
    table(
      "Newest first",
      [
        ["number", link],
        ["time", (each) => moment(each.at_ms)],
        ["replicas", (each) => (each.replicas === each.replicas_before ? String(each.replicas) : `${each.replicas_before} → ${each.replicas}`), { end: true }],
        ["needed", (each) => each.needed, { end: true }],
        ["ready", (each) => (each.starting ? `${each.ready}+${each.starting}` : each.ready), { end: true }],
        ["waiting", (each) => digits(each.waiting), { end: true }],
        ["why", (each) => each.reason, { wide: true }],
      ],
      rows,
      { key: (each) => `decision-${each.number}` },
    ),
    rows.length < all.length || everything ? h("p", {}, h("a", { href: more }, everything ? "Leave out those that changed nothing" : `Show all ${all.length}`)) : null,
  );
}

// The operating point, and for admins a form that changes it.
function point(found, pool, change) {
  const now = found.operating_point;
  const promised = CLASSES.flatMap((name) => [
    now[name].ttft_p99_s === null ? null : `${name}: first token in ${seconds(now[name].ttft_p99_s)} (p99)`,
    now[name].itl_p95_s === null ? null : `${name}: ${seconds(now[name].itl_p95_s)} between tokens (p95)`,
  ]).filter(Boolean);
  return section(
    "Operating point",
    h("p", {}, promised.length ? `${promised.join("; ")}; for ${percent(now.attainment, 1)} of the requests.` : "Nothing is promised."),
    h("p", { class: "note" }, [
      now.price_per_gpu_hour ? `${money(now.price_per_gpu_hour)} a GPU hour` : "no price",
      now.budget_per_hour === null ? "no budget" : `at most ${money(now.budget_per_hour)} an hour`,
      found.operating_point_set ? "set at run time" : "from the settings",
    ].join(", ")),
    change ? h("details", { "data-key": `point-${pool}` }, h("summary", {}, "Change it"), change) : null,
  );
}

function form(now, pool, wasSet, redraw, fail) {
  const input = (name, value, scale = 1) => h("input", { name, type: "number", min: "0", step: "any", inputmode: "decimal", value: value === null ? "" : +(value * scale).toPrecision(6) });
  const inputs = CLASSES.flatMap((name) => [
    field(`${name}: TTFT p99, s`, input(`${name}.ttft_p99_s`, now[name].ttft_p99_s), `point-${name}-ttft`),
    field(`${name}: ITL p95, ms`, input(`${name}.itl_p95_s`, now[name].itl_p95_s, 1e3), `point-${name}-itl`),
  ]);
  const change = async (event, body) => {
    event.preventDefault();
    try {
      await send("/api/operating-point", { pool, operating_point: body });
      redraw();
    } catch (error) {
      fail(error);
    }
  };
  return h(
    "form",
    {
      "data-own": true,
      class: "grid",
      onsubmit: (event) => change(event, given(event.target)),
    },
    h("p", { class: "hint wide" }, "An empty field promises nothing. The change holds from the next heartbeat on."),
    inputs,
    field("Part within SLO, %", input("attainment", now.attainment, 100), "point-attainment"),
    field("Price per GPU hour", input("price_per_gpu_hour", now.price_per_gpu_hour), "point-price"),
    field("Budget per hour", input("budget_per_hour", now.budget_per_hour), "point-budget"),
    h(
      "p",
      { class: "buttons wide" },
      h("button", { type: "submit" }, "Change"),
      " ",
      h("button", { type: "button", class: "quiet", onclick: (event) => change(event, null) }, "Return to the settings"),
    ),
  );
}

function given(form) {
  const value = (name, scale = 1) => (form.elements[name].value === "" ? null : Number(form.elements[name].value) / scale);
  const body = { attainment: value("attainment", 100), price_per_gpu_hour: value("price_per_gpu_hour"), budget_per_hour: value("budget_per_hour") };
  for (const name of CLASSES) body[name] = { ttft_p99_s: value(`${name}.ttft_p99_s`), itl_p95_s: value(`${name}.itl_p95_s`, 1e3) };
  return body;
}
