// The cluster in one look: goodput against SLO, the line, replicas, tokens per second, cost per hour, and a roll-out that goes on.

import { line, meter } from "../charts.js";
import { counts, goodput, itlPromise, readStatus, troubles } from "../cluster.js";
import { h } from "../dom.js";
import { count, counted, money, nearly, percent, seconds, short } from "../format.js";
import { samples, tokenRate } from "../history.js";
import { heading, noPool, section, tile } from "../parts.js";
import { readRollouts, rollout } from "./rollout.js";

export const overview = {
  name: "overview",
  title: "Overview",
  role: "operator",
  every: 1000,
  load,
  draw: ({ status, rollouts }) => [
    heading("Overview", `${counted(status.pools.length, "pool")}, as ${status.router_id} sees them.`),
    ...(status.pools.length ? status.pools.map((one) => pool(one, rollouts[one.name])) : [noPool()]),
  ],
};

async function load() {
  const status = await readStatus();
  return { status, rollouts: await readRollouts(status.pools.map((one) => one.name)) };
}

function pool(one, change) {
  const past = samples(one.name);
  const over = (name) => past.map((each) => [each.at, each[name]]);
  const minutes = past.length > 1 ? `in the last ${seconds(Math.round((past[past.length - 1].at - past[0].at) / 1000) || 1)}` : "";
  const good = goodput(one);
  const target = one.operating_point?.attainment ?? null;
  const promised = Object.values(one.operating_point ?? {}).some((each) => each?.ttft_p99_s || each?.itl_p95_s);
  const missed = promised && good.part !== null && target !== null && good.part < target;
  const { ready, standby, starting, draining } = counts(one);
  const rate = tokenRate(one.name);
  const slots = one.replicas.reduce((sum, each) => sum + (each.state === "ready" ? each.batch_limit : 0), 0);
  const worries = troubles(one);
  return section(
    one.name,
    worries.length ? h("ul", { class: "worries" }, worries.map((each) => h("li", {}, each))) : null,
    rollout(change),
    h(
      "div",
      { class: "tiles" },
      tile("Goodput", promised ? nearly(good.part) : "–", {
        note: promised ? `${good.text}; target ${percent(target, 1)}` : "no SLO is promised",
        state: missed ? "bad" : promised && good.part !== null ? "good" : "",
        chart: promised && good.part !== null ? meter(good.part, { label: `${nearly(good.part)} within the SLO`, state: missed ? "bad" : "good", mark: target }) : null,
      }),
      tile("Waiting", count(one.waiting), { note: minutes, chart: line(over("waiting"), { label: `requests waiting ${minutes}`, height: 36 }) }),
      tile("Running", count(one.running), {
        note: slots ? `of ${count(slots)} places in batches` : "no places",
        chart: meter(slots ? one.running / slots : 0, { label: `${percent(slots ? one.running / slots : 0)} of the places used` }),
      }),
      tile("Replicas", count(ready), {
        note: [`take work`, starting ? `${starting} starting` : "", standby ? `${standby} standing by` : "", draining ? `${draining} draining` : "", one.wanted_replicas ? `${one.wanted_replicas} wanted` : ""].filter(Boolean).join(", "),
        state: ready ? "" : "bad",
      }),
      tile("Output tokens per second", rate === null ? "–" : short(rate), {
        note: minutes,
        chart: line(over("rate"), { label: `output tokens per second ${minutes}`, height: 36 }),
      }),
      tile("Cost per hour", one.cost_per_hour ? money(one.cost_per_hour) : "–", {
        note: one.cost_per_hour ? budget(one) : "no price is set",
        state: overBudget(one) ? "bad" : "",
      }),
      latency(one),
    ),
  );
}

function budget(one) {
  const most = one.operating_point?.budget_per_hour;
  return most === null || most === undefined ? "of all replicas" : `of a budget of ${money(most)}`;
}

function overBudget(one) {
  const most = one.operating_point?.budget_per_hour;
  return most !== null && most !== undefined && one.cost_per_hour > most;
}

// The slowest replica's time between tokens against the SLO.
function latency(one) {
  const known = one.replicas.filter((each) => each.itl_p95);
  if (!known.length) return null;
  const worst = Math.max(...known.map((each) => each.itl_p95));
  const promise = itlPromise(one);
  return tile("Time between tokens, p95", seconds(worst), {
    note: promise ? `slowest replica; SLO ${seconds(promise)}` : "slowest replica; no SLO",
    state: promise && worst > promise ? "bad" : "",
    chart: promise ? meter(worst / promise, { label: `${percent(worst / promise)} of the SLO`, state: worst > promise ? "bad" : "good" }) : null,
  });
}
