// What-ifs of the planner: how many accelerators a load and an SLO need, and what another choice would change.

import { read, send } from "../api.js";
import { h } from "../dom.js";
import { count, digits, money, nearly, percent, seconds } from "../format.js";
import { badge, choose, field, heading, section, table } from "../parts.js";

const GPUS = ["h100", "h200", "b200", "b300", "a100", "l40s", "l4", "mi300x"];
const MODELS = ["llama-3.1-8b", "llama-3.3-70b", "qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-20b", "gpt-oss-120b", "mistral-7b", "deepseek-v3", "demo"];

export const plan = {
  name: "plan",
  title: "Planner",
  needs: "planner",
  mount(root, { fail }) {
    const controller = new AbortController();
    const result = h("div", { class: "result", "aria-live": "polite" });
    root.append(
      heading("Planner", "What would another load, SLO or accelerator need? It computes on the console's machine, and changes nothing."),
      section("Load and SLO", form(result, controller.signal, fail)),
      result,
    );
    return () => controller.abort();
  },
};

function input(value, step = "any") {
  return h("input", { type: "number", min: "0", step, value });
}

function form(result, signal, fail) {
  const parts = {
    model: h("input", { type: "text", list: "plan-models", value: MODELS[0], required: true, spellcheck: "false" }),
    rate: input("5"),
    prompt: input("1000"),
    output: input("250"),
    ttft: input("2"),
    itl: input("100"),
    tpot: input(""),
    sure: input("90"),
    hit: input("0"),
    attainment: input("99"),
    price: input("2.5"),
  };
  const gpus = GPUS.map((name, index) => h("label", {}, h("input", { type: "checkbox", name: "gpu", value: name, checked: index < 2 }), ` ${name}`));
  const button = h("button", { type: "submit" }, "Plan");
  const from = h("div", {});
  read("/api/status", {}, signal).then(({ status }) => from.append(pools(status, parts)), () => {});
  const submit = async (event) => {
    event.preventDefault();
    button.disabled = true;
    result.replaceChildren(h("p", { class: "empty" }, "Computing. This takes some seconds."));
    try {
      const chosen = gpus.map((each) => each.firstChild).filter((each) => each.checked).map((each) => each.value);
      result.replaceChildren(...drawn(await send("/api/plan", body(parts, chosen), signal)));
    } catch (error) {
      result.replaceChildren();
      fail(error);
    }
    button.disabled = false;
    // A button that is disabled loses the focus of a keyboard.
    if (document.activeElement === document.body) button.focus({ preventScroll: true });
  };
  return h(
    "form",
    { class: "grid", onsubmit: submit },
    field("Model", parts.model, "plan-model"),
    h("datalist", { id: "plan-models" }, MODELS.map((name) => h("option", { value: name }))),
    field("Requests per second", parts.rate, "plan-rate"),
    field("Prompt tokens", parts.prompt, "plan-prompt"),
    field("Output tokens", parts.output, "plan-output"),
    field("TTFT p99, s", parts.ttft, "plan-ttft"),
    field("ITL p95, ms", parts.itl, "plan-itl"),
    field("Mean TPOT, ms", parts.tpot, "plan-tpot", "Instead of the ITL, or beside it."),
    field("Part within SLO, %", parts.attainment, "plan-attainment"),
    field("Confidence, %", parts.sure, "plan-confidence", "That the replicas are enough."),
    field("Prompt in prefix cache, %", parts.hit, "plan-prefix-hit"),
    field("Price per GPU hour", parts.price, "plan-price"),
    h("fieldset", { class: "wide" }, h("legend", {}, "Accelerators"), gpus),
    h("div", { class: "wide filters" }, from),
    h("p", { class: "buttons wide" }, button),
  );
}

// A choice of pools, whose load and SLO fill the form.
function pools(status, parts) {
  const able = status.pools.filter((each) => each.last_decision?.demands.length || each.operating_point);
  const names = [["", "nothing"], ...able.map((each) => [each.name, each.name])];
  const fill = (event) => {
    const pool = able.find((each) => each.name === event.target.value);
    if (!pool) return;
    const set = (part, value) => value && (part.value = +Number(value).toPrecision(4));
    const demands = pool.last_decision?.demands ?? [];
    const rate = demands.reduce((sum, each) => sum + each.rate, 0);
    const mean = (name) => demands.reduce((sum, each) => sum + each.rate * each[name], 0) / (rate || 1);
    set(parts.rate, rate);
    set(parts.prompt, mean("prompt_tokens"));
    set(parts.output, mean("output_tokens"));
    const point = pool.operating_point ?? {};
    const slos = ["interactive", "standard", "batch"].map((name) => point[name]).filter(Boolean);
    const tightest = (name) => Math.min(...slos.map((each) => each[name] ?? Infinity));
    if (Number.isFinite(tightest("ttft_p99_s"))) set(parts.ttft, tightest("ttft_p99_s"));
    if (Number.isFinite(tightest("itl_p95_s"))) set(parts.itl, 1e3 * tightest("itl_p95_s"));
    set(parts.attainment, 100 * (point.attainment ?? 0));
    set(parts.price, point.price_per_gpu_hour);
  };
  return field("Take load and SLO of pool", choose(names, "", fill), "plan-from", "The load is what the autoscaler saw last.");
}

function body(parts, gpus) {
  const number = (part, scale = 1) => (part.value === "" ? null : Number(part.value) / scale);
  const price = number(parts.price);
  return {
    model: parts.model.value.trim(),
    gpus,
    rate: number(parts.rate),
    prompt_tokens: number(parts.prompt),
    output_tokens: number(parts.output),
    slo_ttft: number(parts.ttft),
    slo_itl: number(parts.itl, 1e3),
    slo_tpot: number(parts.tpot, 1e3),
    confidence: number(parts.sure, 100),
    prefix_hit: number(parts.hit, 100),
    attainment: number(parts.attainment, 100),
    prices: price ? Object.fromEntries(gpus.map((each) => [each, price])) : {},
  };
}

function drawn(found) {
  const name = (each) => `${each.tp} x ${each.gpu}, ${each.precision}`;
  const range = (each, show) => (each ? `${show(each.middle)} (${show(each.low)} to ${show(each.high)})` : "–");
  const columns = [
    ["replica", name],
    ["replicas", (each) => count(each.replicas), { end: true }],
    ["GPUs", (each) => count(each.gpus), { end: true }],
    ["batch limit", (each) => count(each.batch_limit), { end: true }],
    ["per hour", (each) => (each.cost_per_hour === null ? "–" : money(each.cost_per_hour)), { end: true }],
  ];
  return [
    section(
      found.feasible ? "Plan" : "No plan keeps the SLO",
      table(
        "Simulated, best first; ranges are those of the engine's speed",
        [
          ...columns,
          ["keeps the SLO", (each) => badge(each.holds ? "yes" : "no", each.holds ? "good" : "bad")],
          ["TTFT p99", (each) => range(each.predicted.ttft_p99_s, seconds), { end: true }],
          ["ITL p95", (each) => range(each.predicted.itl_p95_s, seconds), { end: true }],
          ["TPOT, mean", (each) => range(each.predicted.itl_mean_s, seconds), { end: true }],
          ["within SLO, when sure", (each) => nearly(each.attainment_when_sure), { end: true }],
          ["within SLO, at worst", (each) => nearly(each.attainment_at_worst), { end: true }],
          ["flags of vLLM", (each) => each.engine_flags, { wide: true }],
          ["per million output tokens", (each) => digits(each.cost_per_million_output_tokens), { end: true }],
          ["limit", (each) => each.binding, { wide: true }],
          ["step times from", (each) => each.source, { wide: true }],
          ["error", (each) => percent(each.error), { end: true }],
        ],
        found.candidates,
        { empty: "Nothing that was asked for is possible." },
      ),
      found.measure_next ? h("p", { class: "note" }, `${found.measure_next}.`) : null,
    ),
    section(
      "What if",
      table(
        "On paper: a direction, not a promise",
        [
          ["change", (each) => each.change],
          ["GPUs", (each) => count(each.gpus), { end: true }],
          ["per hour", (each) => money(each.hourly), { end: true }],
          ["outcome", (each) => each.outcome, { wide: true }],
        ],
        found.what_ifs,
      ),
    ),
    found.on_paper.length ? section("Others", table("On paper", columns, found.on_paper)) : null,
    found.rejected.length ? section("Not possible", h("ul", {}, found.rejected.map((each) => h("li", {}, `${each.name ?? each.engine ?? ""}: ${each.why ?? ""}`)))) : null,
  ].filter(Boolean);
}
