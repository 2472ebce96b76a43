// Small charts as SVG. Each has its content as text for those who do not see it.

import { s } from "./dom.js";

// A line over time. `points` are [x, y]; `target` is a level to compare with.
export function line(points, { label, low = 0, high = null, target = null, height = 48 } = {}) {
  const width = 240;
  const known = points.filter(([, y]) => y !== null && y !== undefined);
  const box = { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "line", role: "img", "aria-label": label };
  if (known.length < 2) return s("svg", box);
  const [from, to] = [known[0][0], known[known.length - 1][0]];
  const top = Math.max(high ?? 0, target ?? 0, ...known.map(([, y]) => y), low + 1e-9);
  const x = (value) => ((width * (value - from)) / Math.max(1e-9, to - from)).toFixed(1);
  const y = (value) => (height - 2 - ((height - 4) * (value - low)) / (top - low)).toFixed(1);
  const path = known.map(([at, value], index) => `${index ? "L" : "M"}${x(at)} ${y(value)}`).join("");
  const level = target === null ? null : s("path", { class: "target", d: `M0 ${y(target)}H${width}` });
  return s("svg", box, s("path", { class: "area", d: `${path}L${width} ${height}L0 ${height}Z` }), s("path", { class: "stroke", d: path }), level);
}

// Layers on top of each other over time, with lines to compare with. Layers are {values, kind}, the lowest first; lines are
// {values, kind} with steps between the times. `times` are common to all; `top` is the largest value that is drawn. The
// text is in `label`.
export function layers(times, stacked, lines, { label, top, height = 160 } = {}) {
  const width = 600;
  const box = { height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "layers", role: "img", "aria-label": label };
  if (times.length < 2) return s("svg", box);
  const sums = [times.map(() => 0)];
  for (const layer of stacked) sums.push(layer.values.map((value, index) => value + sums[sums.length - 1][index]));
  const x = (index) => ((width * (times[index] - times[0])) / (times[times.length - 1] - times[0])).toFixed(1);
  const y = (value) => (height - 1 - ((height - 2) * value) / top).toFixed(1);
  const along = (values) => values.map((value, index) => `${x(index)} ${y(value)}`);
  const areas = stacked.map((layer, index) => s("path", { class: `layer ${layer.kind}`, d: `M${along(sums[index + 1]).join("L")}L${along(sums[index]).reverse().join("L")}Z` }));
  const steps = lines.map((each) => s("path", { class: `step ${each.kind}`, d: each.values.map((value, index) => (index ? `H${x(index)}V${y(value)}` : `M${x(0)} ${y(value)}`)).join("") }));
  return s("svg", box, areas, steps);
}

// A part of a whole, 0 to 1, perhaps with a mark. `state` colours it: good, warn or bad.
export function meter(part, { label, state = "", mark = null } = {}) {
  const filled = Math.max(0, Math.min(1, part || 0));
  return s(
    "svg",
    { viewBox: "0 0 100 8", preserveAspectRatio: "none", class: `meter ${state}`, role: "img", "aria-label": label },
    s("rect", { class: "rest", width: 100, height: 8 }),
    s("rect", { class: "part", width: (100 * filled).toFixed(1), height: 8 }),
    mark === null ? null : s("rect", { class: "mark", x: (100 * Math.min(0.99, mark)).toFixed(1), width: 1, height: 8 }),
  );
}
