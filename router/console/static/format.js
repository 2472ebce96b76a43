// Numbers, times and amounts as text.

const ABSENT = "–";

export function count(value) {
  return value === null || value === undefined ? ABSENT : Math.round(value).toLocaleString("en");
}

// Large counts: 1.2 k, 3.4 M.
export function short(value) {
  if (value === null || value === undefined) return ABSENT;
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e4, " k"]]) {
    if (value >= size) return `${digits(value / (unit === " k" ? 1e3 : size))}${unit}`;
  }
  return digits(value);
}

// Three digits that matter.
export function digits(value) {
  if (value === null || value === undefined) return ABSENT;
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size < 0.001) return "< 0.001";
  return size >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 3);
}

export function percent(part, places = 0) {
  return part === null || part === undefined ? ABSENT : `${(100 * part).toFixed(places)} %`;
}

// A part near 1, such as an attainment: 99.4 %, but never 100 % while something is missing.
export function nearly(part) {
  if (part === null || part === undefined) return ABSENT;
  return part < 1 ? `${(Math.floor(part * 1e3) / 10).toFixed(1)} %` : "100 %";
}

export function seconds(value) {
  if (value === null || value === undefined) return ABSENT;
  if (value === 0) return "0 s";
  if (value < 0.001) return `${Math.round(value * 1e6)} µs`;
  if (value < 1) return `${value < 0.01 ? (value * 1e3).toFixed(1) : Math.round(value * 1e3)} ms`;
  if (value < 120) return Number.isInteger(value) ? `${value} s` : `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 7200) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  if (value < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${Math.round(value / 86400)} days`;
}

// Money in the operator's currency, which has no name here.
export function money(value) {
  if (value === null || value === undefined) return ABSENT;
  if (value === 0) return "0";
  return value >= 0.01 ? value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 }) : value.toPrecision(2);
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

export function moment(ms) {
  const at = new Date(ms);
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${clock(ms)}`;
}

function two(value) {
  return String(value).padStart(2, "0");
}

export function ago(ms, now = Date.now()) {
  return `${seconds(Math.max(0, Math.round((now - ms) / 1000)))} ago`;
}

// A word of the API as a reader has it: preempt_batch, ttft_and_itl.
export function words(name) {
  return String(name ?? "").replaceAll("_", " ");
}

export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
