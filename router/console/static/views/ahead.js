// The next hours of a pool: announced load, operators' schedule and the forecast, against what is planned.

import { read, readKept } from "../api.js";
import { layers } from "../charts.js";
import { h, s } from "../dom.js";
import { clock, counted, digits, moment, percent, seconds } from "../format.js";
import { badge, choose, facts, field, heading, noPool, section, table } from "../parts.js";

export const ahead = {
  name: "ahead",
  title: "Ahead",
  role: "operator",
  every: 15000,
  async load({ query }) {
    const { status } = await readKept(10, "/api/status");
    const pools = status.pools.map((each) => each.name);
    const pool = pools.includes(query.pool) ? query.pool : pools[0];
    return { pools, pool, found: pool ? await read("/api/outlook", { pool }) : null };
  },
  draw({ pools, pool, found }) {
    if (!found) return [heading("Ahead"), noPool()];
    return [
      heading("Ahead", "What the pool expects of the next hours, and what is planned for it."),
      pools.length > 1 ? pick(pools, pool) : null,
      hours(found),
      announced(found),
      schedule(found),
      forecast(found),
    ].filter(Boolean);
  },
};

function pick(pools, pool) {
  const choice = choose(pools.map((each) => [each, each]), pool, (event) => (location.hash = `#/ahead?pool=${encodeURIComponent(event.target.value)}`));
  return h("div", { class: "filters" }, field("Pool", choice, "pool-choice"));
}

// A time of the API, as text with microseconds, in milliseconds.
function ms(text) {
  return Date.parse(text);
}

function hours(found) {
  const points = found.points;
  if (!points.length) {
    const why = found.at ? "The autoscaler can't tell yet how long work takes." : "No autoscaler looks after this pool.";
    return section("The next hours", h("p", { class: "empty" }, why));
  }
  const times = points.map((each) => ms(each.at));
  const values = (name) => points.map((each) => each[name]);
  const most = (name) => points.reduce((best, each) => (each[name] > best[name] ? each : best));
  const span = `${clock(times[0])} to ${clock(times[times.length - 1])}`;
  const peak = points.reduce((best, each) => (each.load + each.announced > best.load + best.announced ? each : best));
  const planned = most("planned");
  const label = `Replicas from ${span}: at most ${digits(peak.load + peak.announced)} kept busy at ${clock(ms(peak.at))}, at most ${planned.planned} planned, from ${clock(ms(planned.at))}`;
  const top = Math.ceil(Math.max(1, peak.load + peak.announced, planned.planned, most("scheduled").scheduled)) + 1;
  const marks = [0, 1, 2, 3].map((each) => clock(times[0] + (each * (times[times.length - 1] - times[0])) / 3).slice(0, 5));
  const scheduled = points.some((each) => each.scheduled);
  return section(
    `The next hours, ${span}`,
    h("p", { class: "note" }, counted(top, "replica"), " at the top"),
    layers(
      times,
      [{ values: values("load"), kind: "load" }, { values: values("announced"), kind: "announced" }],
      [...(scheduled ? [{ values: values("scheduled"), kind: "scheduled" }] : []), { values: values("planned"), kind: "planned" }],
      { label, top },
    ),
    h("p", { class: "axis", "aria-hidden": "true" }, marks.map((each) => h("span", {}, each))),
    h(
      "ul",
      { class: "legend" },
      key("load", "load as of now, changed as earlier days foretell"),
      key("announced", found.announced_decides ? "announced and believed, beyond what comes" : "announced and believed; decides nothing here"),
      scheduled ? key("scheduled", "replicas that the schedule asks for") : null,
      key("planned", "replicas planned"),
    ),
    h("p", { class: "note" }, `Loads are in replicas that they keep busy all the time. Decisions look ${seconds(Math.round(found.cold_start))} ahead, the duration of a start; what is planned later follows from what is known now.`),
    h(
      "details",
      {},
      h("summary", {}, "As a table"),
      table(
        "Replicas by half hour",
        [
          ["time", (each) => clock(ms(each.at))],
          ["load", (each) => digits(each.load), { end: true }],
          ["announced", (each) => digits(each.announced), { end: true }],
          ["said", (each) => digits(each.said), { end: true }],
          ["scheduled", (each) => each.scheduled || "–", { end: true }],
          ["planned", (each) => each.planned, { end: true }],
        ],
        points.filter((each, index) => index % 6 === 0),
      ),
    ),
  );
}

function key(kind, text) {
  const line = kind === "planned" || kind === "scheduled";
  const mark = line ? s("path", { class: `step ${kind}`, d: "M0 5H16" }) : s("rect", { class: `layer ${kind}`, width: 16, height: 10 });
  return h("li", {}, s("svg", { class: "layers key", viewBox: "0 0 16 10", width: 16, height: 10, "aria-hidden": "true" }, mark), " ", text);
}

function announced(found) {
  return section(
    "Announced",
    found.announced_decides ? null : h("p", { class: "note" }, "It is judged here and decides nothing: autoscale.announced or autoscale.mode is not active."),
    table(
      "Announced load",
      [
        ["tenant", ({ load }) => load.tenant],
        ["id", ({ load }) => load.id],
        ["for", ({ load }) => (load.pool === found.pool ? load.pool : `alias ${load.pool}`)],
        ["begins", ({ load }) => moment(ms(load.start))],
        ["ends", ({ load }) => moment(ms(load.end))],
        ["rate here", ({ load }) => (load.tokens_per_second === null ? `${digits(load.requests_per_second)} requests/s` : `${digits(load.tokens_per_second)} tokens/s`), { end: true }],
        ["quota lets through", ({ load }) => percent(load.counts_for), { end: true }],
        ["came before", (each) => (each.judged_minutes ? `${percent(each.believed)} of ${seconds(Math.round(60 * each.judged_minutes))}` : "not judged yet"), { end: true }],
        ["counts", (each) => percent(each.weight), { end: true }],
      ],
      found.announced,
      { key: ({ load }) => `${load.pool}/${load.tenant}/${load.id}`, empty: "Nobody has announced load." },
    ),
  );
}

function schedule(found) {
  return section(
    "Schedule",
    table(
      "Replicas by schedule",
      [
        ["from", (each) => each.start],
        ["to", (each) => each.end],
        ["zone", (each) => each.zone],
        ["on", (each) => (each.dates.length ? each.dates.join(", ") : each.days.length === 7 ? "every day" : each.days.join(", ")), { wide: true }],
        ["at least", (each) => counted(each.replicas, "replica"), { end: true }],
        ["now", (each) => (each.now ? badge("now", "good") : "–")],
      ],
      found.schedule,
      { empty: "No times are scheduled." },
    ),
  );
}

function forecast(found) {
  const one = found.forecast;
  if (!one) return section("Forecast", h("p", { class: "empty" }, "No forecast yet."));
  const decides = one.pattern_trusted && found.forecast_decides;
  return section(
    "Forecast",
    facts([
      ["in", seconds(Math.round(one.ahead))],
      ["load then", digits(one.load)],
      ["less wrong than the present", percent(one.skill)],
      ["pattern", one.pattern || "none"],
      ["its change", one.pattern ? `x${digits(one.pattern_change)}` : ""],
      ["less wrong than the level", one.pattern ? percent(one.pattern_skill) : ""],
      ["decides", decides ? "yes" : one.pattern && !found.forecast_decides ? "no, it is not active" : "no, it is not trusted yet"],
    ]),
    table(
      "Experts",
      [
        ["expert", (each) => each.name],
        ["weight", (each) => percent(each.weight, 1), { end: true }],
        ["load", (each) => digits(each.load), { end: true }],
      ],
      one.experts,
    ),
  );
}
