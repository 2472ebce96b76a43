// What the accelerators that are paid for did: the parts add up to the time of the replicas' processes.

import { h, s } from "../dom.js";
import { money, percent } from "../format.js";
import { section, table } from "../parts.js";

const PARTS = [
  ["requests", "decode"],
  ["running", "prefill"],
  ["idle", "other"],
  ["standby", "admission"],
  ["starting", "delivery"],
  ["draining", "queue"],
  ["lost", "lost"],
];
const HOURS = 48;

export function costs(lines) {
  const pools = [...new Set(lines.map((each) => each.pool))];
  const newest = [...lines].sort((one, other) => other.hour.localeCompare(one.hour) || one.pool.localeCompare(other.pool)).slice(0, HOURS);
  return section(
    "What the accelerators did",
    lines.length ? pools.map((name) => pool(name, lines.filter((each) => each.pool === name))) : null,
    table(
      "GPU seconds by hour, newest first",
      [
        ["hour", (each) => each.hour.slice(0, 16).replace("T", " ")],
        ["pool", (each) => each.pool],
        ["all", (each) => each.total.gpu_seconds.toFixed(1), { end: true }],
        ...PARTS.map(([part]) => [part, (each) => each[part].gpu_seconds.toFixed(1), { end: true }]),
        ["paid", (each) => money(each.total.cost), { end: true }],
        ["charged", (each) => money(each.charged), { end: true }],
      ],
      newest,
      { key: (each) => `${each.hour} ${each.pool}`, empty: "Nothing in this period." },
    ),
  );
}

function pool(name, lines) {
  const sum = (part) => lines.reduce((all, each) => all + each[part].gpu_seconds, 0);
  const whole = sum("total") || 1;
  let from = 0;
  const shown = PARTS.map(([part, kind]) => [part, kind, Math.max(0, sum(part)) / whole]).filter(([, , share]) => share > 0);
  const bars = shown.map(([, kind, share]) => {
    const bar = s("rect", { class: `kind-${kind}`, x: (1000 * from).toFixed(2), width: (1000 * share).toFixed(2), height: 10 });
    from += share;
    return bar;
  });
  const text = shown.map(([part, , share]) => `${part} ${percent(share)}`).join(", ");
  const swatch = (kind) => s("svg", { viewBox: "0 0 10 10", class: "swatch", "aria-hidden": "true" }, s("rect", { class: `kind-${kind}`, width: 10, height: 10, rx: 2 }));
  return h(
    "div",
    { class: "parts", "data-key": name },
    h("h3", {}, name),
    s("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", class: "fall", role: "img", "aria-label": `${name}: ${text}` }, bars),
    h("ul", { class: "legend" }, shown.map(([part, kind, share]) => h("li", {}, swatch(kind), `${part} `, h("strong", {}, percent(share))))),
  );
}
