// Calls of the console's own API. The key of the user is in this tab only.

const PLACE = "penstock-key";
const kept = new Map();

class CallError extends Error {
  constructor(status, body) {
    super(body.error || `status ${status}`);
    this.status = status;
    this.reason = body.reason || "";
    this.violations = body.violations || [];
  }
}

export function key() {
  return sessionStorage.getItem(PLACE) ?? "";
}

export function useKey(value) {
  kept.clear();
  if (value) sessionStorage.setItem(PLACE, value);
  else sessionStorage.removeItem(PLACE);
}

function headers(more) {
  const own = key();
  return { "X-Penstock-Console": "1", ...(own ? { "X-Penstock-Key": own } : {}), ...more };
}

async function checked(response) {
  if (response.ok) return response;
  if (response.status === 401) kept.clear();
  let body = {};
  try {
    body = await response.json();
  } catch {
    // A proxy between page and console answered.
  }
  throw new CallError(response.status, body);
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new CallError(0, { error: "the console does not answer", reason: "UNREACHABLE" });
  }
  return checked(response);
}

export async function read(path, query = {}, signal = undefined) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value !== undefined));
  const text = asked.size ? `${path}?${asked}` : path;
  return (await call(text, { headers: headers(), signal })).json();
}

// As `read`, but an answer is used again for some seconds.
export async function readKept(forSeconds, path, query = {}) {
  const name = `${path} ${JSON.stringify(query)}`;
  const found = kept.get(name);
  if (found && performance.now() - found.at < forSeconds * 1000) return found.value;
  const value = await read(path, query);
  kept.set(name, { at: performance.now(), value });
  return value;
}

export async function send(path, body, signal = undefined) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
  return (await call(path, options)).json();
}

// Lines of JSON as they come.
export async function* lines(path, body, signal) {
  const options = { method: "POST", headers: headers({ "Content-Type": "application/json" }), body: JSON.stringify(body), signal };
  const response = await call(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    rest += value;
    const parts = rest.split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}
