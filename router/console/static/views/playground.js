// The playground: talk with one model, or with two side by side.

import { read } from "../api.js";
import { h } from "../dom.js";
import { choose, field, heading } from "../parts.js";
import { Conversation } from "./conversation.js";

const CLASSES = ["interactive", "standard", "batch"];
const EXAMPLE = `[{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]`;

export const playground = {
  name: "playground",
  title: "Playground",
  mount(root, { query, fail, caller }) {
    const place = h("div", {});
    root.append(heading("Playground", "Each answer is a request like any other: it waits, runs and is charged to your tenant."), place);
    let ended = false;
    let ground = null;
    read("/api/models").then((all) => {
      if (ended) return;
      const able = all.filter((each) => each.task !== "embed" && each.task !== "classify");
      if (able.length) ground = new Ground(place, able, query.model, caller?.classes ?? CLASSES, fail);
      else place.append(h("p", { class: "empty" }, "This key may use no model that generates."));
    }, fail);
    return () => {
      ended = true;
      ground?.stop();
    };
  },
};

class Ground {
  constructor(place, models, wanted, classes, fail) {
    this.fail = fail;
    this.models = new Map(models.map((each) => [each.name, each]));
    const names = models.map((each) => [each.name, each.name]);
    const first = this.models.has(wanted) ? wanted : models[0].name;
    this.one = choose(names, first, () => this.anew());
    this.other = choose([["", "none"], ...names], "", () => this.anew());
    this.kind = choose(classes.map((name) => [name, name]), classes[0]);
    this.temperature = h("input", { type: "number", min: "0", max: "2", step: "any", value: "0.7" });
    this.most = h("input", { type: "number", min: "1", step: "1", value: "512" });
    this.effort = choose([["", "default"], ["low", "low"], ["medium", "medium"], ["high", "high"]], "");
    this.system = h("textarea", { rows: "2" });
    this.tools = h("textarea", { rows: "4", spellcheck: "false", placeholder: EXAMPLE });
    this.text = h("textarea", { rows: "3", onkeydown: (event) => this.key(event) });
    this.send = h("button", { type: "submit" }, "Send");
    this.halt = h("button", { type: "button", class: "quiet", disabled: true, onclick: () => this.stop() }, "Stop");
    this.panes = h("div", { class: "panes" });
    const form = h(
      "form",
      { class: "composer", onsubmit: (event) => this.submit(event) },
      field("Message", this.text, "play-text", "Enter sends, Shift+Enter begins a new line."),
      h("p", { class: "buttons" }, this.send, " ", this.halt, " ", h("button", { type: "button", class: "quiet", onclick: () => this.anew() }, "New conversation")),
    );
    place.append(
      h("div", { class: "filters" }, field("Model", this.one, "play-model"), field("Compare with", this.other, "play-other"), field("Class", this.kind, "play-class"), field("Temperature", this.temperature, "play-temperature"), field("Most tokens", this.most, "play-most"), field("Reasoning effort", this.effort, "play-effort")),
      h("details", { class: "more" }, h("summary", {}, "System message and tools"), h("div", { class: "two" }, field("System message", this.system, "play-system"), field("Tools", this.tools, "play-tools", "A list as OpenAI's API has it."))),
      this.panes,
      form,
    );
    this.anew();
  }

  get names() {
    return [this.one.value, this.other.value].filter(Boolean);
  }

  anew() {
    this.stop();
    this.conversations = this.names.map((name) => new Conversation(name, this.fail));
    this.panes.replaceChildren(...this.conversations.map((each) => each.element));
    this.panes.className = `panes of${this.conversations.length}`;
  }

  stop() {
    for (const each of this.conversations ?? []) each.stop();
  }

  key(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.text.form.requestSubmit();
    }
  }

  // Settings of a request to one model; null where the tools are no list.
  settings(name) {
    let tools = [];
    if (this.tools.value.trim()) {
      try {
        tools = JSON.parse(this.tools.value);
        if (!Array.isArray(tools)) throw new SyntaxError("tools must be a list");
      } catch (error) {
        this.fail(Object.assign(new Error(`Tools: ${error.message}`), { status: 0 }));
        return null;
      }
    }
    return {
      model: name,
      chat: this.models.get(name).chat,
      system: this.system.value.trim(),
      tools,
      effort: this.effort.value,
      request_class: this.kind.value,
      sampling: { max_tokens: Number(this.most.value) || 512, temperature: Number(this.temperature.value) },
    };
  }

  async submit(event) {
    event.preventDefault();
    const text = this.text.value.trim();
    const settings = this.names.map((name) => this.settings(name));
    if (!text || settings.includes(null) || this.conversations.some((each) => each.busy)) return;
    this.text.value = "";
    this.send.disabled = true;
    this.halt.disabled = false;
    await Promise.all(this.conversations.map((each, index) => each.ask(text, settings[index])));
    this.send.disabled = false;
    this.halt.disabled = true;
    // Whoever went elsewhere meanwhile stays there. A button that is disabled loses the focus.
    if ([document.body, this.send, this.halt].includes(document.activeElement)) this.text.focus();
  }
}
