// Where the time of a request went, as bars: its parts in one bar, and every attempt in a row of its own.

import { h, s } from "../../dom.js";
import { percent, seconds, words } from "../../format.js";

const KINDS = ["admission", "queue", "prefill", "decode", "lost", "delivery", "other"];

// The parts in one bar, with their names and times.
export function parts(all) {
  const whole = all.reduce((sum, [, time]) => sum + time, 0) || 1;
  const known = all.filter(([, time]) => time > 0);
  let from = 0;
  const bars = known.map(([name, time]) => {
    const bar = s("rect", { class: kind(name), x: pos(from / whole), width: pos(time / whole), height: 10 });
    from += time;
    return bar;
  });
  return h(
    "div",
    { class: "parts" },
    s("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", class: "fall", role: "img", "aria-label": known.map(([name, time]) => `${words(name)} ${seconds(time)}`).join(", ") }, bars),
    h("ul", { class: "legend" }, known.map(([name, time]) => h("li", {}, swatch(name), `${words(name)} `, h("strong", {}, seconds(time)), ` ${percent(time / whole)}`))),
  );
}

// One row for each thing that took time, from the arrival of the call to its end.
export function waterfall(call) {
  const whole = Math.max(call.total_time, ...call.choices.flatMap((choice) => choice.attempts.map((each) => each.ended_at ?? 0)), 1e-9);
  const rows = [row("admission", "", [["admission", 0, call.admission_time]], whole)];
  for (const choice of call.choices) {
    choice.attempts.forEach((attempt, index) => {
      const name = `${call.choices.length > 1 ? `choice ${choice.index}, ` : ""}attempt ${index + 1}`;
      rows.push(row(name, attempt.replica_id, segments(attempt), whole));
    });
    if (!choice.attempts.length && call.total_time > call.admission_time) rows.push(row(call.choices.length > 1 ? `choice ${choice.index}` : "waited", "no replica", [["queue", call.admission_time, call.total_time]], whole));
  }
  if (call.delivery_time > 0) rows.push(row("delivery", "", [["delivery", call.total_time - call.delivery_time, call.total_time]], whole));
  return h("div", { class: "waterfall" }, h("ol", {}, rows), axis(whole));
}

// What an attempt did: [kind, from, to] in seconds since the arrival.
export function segments({ waits_from: waits, granted_at: granted, first_token_at: first, ended_at: ended, lost_time: lost }) {
  const found = [];
  const end = ended ?? first ?? granted ?? waits ?? 0;
  const alive = end - (lost || 0);
  if (waits !== null) found.push(["queue", waits, granted ?? end]);
  if (granted !== null) found.push(["prefill", granted, first ?? alive]);
  if (first !== null) found.push(["decode", first, alive]);
  if (lost > 0) found.push(["lost", alive, end]);
  return found.filter(([, from, to]) => to > from);
}

function row(name, where, all, whole) {
  const text = all.map(([each, from, to]) => `${each} ${seconds(to - from)}`).join(", ");
  return h(
    "li",
    {},
    h("span", { class: "fall-name" }, name, where ? h("span", { class: "note" }, ` ${where}`) : null),
    s(
      "svg",
      { viewBox: "0 0 1000 10", preserveAspectRatio: "none", class: "fall", role: "img", "aria-label": `${name}: ${text || "no time"}` },
      s("rect", { class: "rest", width: 1000, height: 10 }),
      all.map(([each, from, to]) => s("rect", { class: kind(each), x: pos(from / whole), width: Math.max(2, 1000 * ((to - from) / whole)).toFixed(2), height: 10 })),
    ),
    h("span", { class: "fall-text" }, text),
  );
}

function axis(whole) {
  return h("div", { class: "axis", "aria-hidden": "true" }, [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", {}, seconds(part * whole))));
}

function swatch(name) {
  return s("svg", { viewBox: "0 0 10 10", class: "swatch", "aria-hidden": "true" }, s("rect", { class: kind(name), width: 10, height: 10, rx: 2 }));
}

function kind(name) {
  return KINDS.includes(name) ? `kind-${name}` : "kind-other";
}

function pos(part) {
  return (1000 * part).toFixed(2);
}
