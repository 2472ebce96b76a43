// Pools, what their engines can do, and their adapters.

import { read } from "../api.js";
import { h } from "../dom.js";
import { count, counted, words } from "../format.js";
import { badge, facts, heading, section } from "../parts.js";

const QUIET = ["max_logprobs"];

export const models = {
  name: "models",
  title: "Models",
  every: 5000,
  load: () => read("/api/models"),
  draw: (all) => [
    heading("Models", "Pools that this key may use, what their engines can do, and their adapters."),
    ...(all.length ? all.map(model) : [h("p", { class: "empty" }, "This key may use no model.")]),
  ],
};

function model(one) {
  const able = Object.entries(one.capabilities).filter(([name, value]) => value === true && !QUIET.includes(name)).map(([name]) => name);
  const generates = one.task !== "embed" && one.task !== "classify";
  return section(
    one.name,
    h("p", {}, badge(one.ready_replicas ? counted(one.ready_replicas, "replica") : "no replica", one.ready_replicas ? "good" : "bad"), one.task ? badge(one.task, "info") : null, one.chat && generates ? badge("chat", "info") : null),
    facts([
      ["context", one.max_context_tokens ? `${count(one.max_context_tokens)} tokens` : "not known yet"],
      ["vocabulary", one.vocabulary_size ? count(one.vocabulary_size) : null],
      ["vector size", one.pooling?.size ? count(one.pooling.size) : null],
      ["digest", one.digest ? h("code", {}, one.digest.slice(0, 12)) : null],
    ]),
    h("h3", {}, "Adapters"),
    one.lora_adapters.length ? h("ul", { class: "words" }, one.lora_adapters.map((each) => h("li", {}, h("code", {}, each)))) : h("p", { class: "note" }, "None."),
    // All of it is about generations.
    generates ? h("h3", {}, "Engines can") : null,
    !generates ? null : able.length ? h("ul", { class: "words" }, able.map((each) => h("li", {}, words(each)))) : h("p", { class: "note" }, "Not known yet."),
    one.ready_replicas && generates ? h("p", {}, h("a", { href: `#/playground?model=${encodeURIComponent(one.name)}` }, "Try it in the playground")) : null,
  );
}
