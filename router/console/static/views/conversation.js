// One conversation with one model: what was said, the answer as it comes, and its receipt.

import { lines } from "../api.js";
import { h } from "../dom.js";
import { count, money, seconds, words } from "../format.js";
import { badge, facts } from "../parts.js";

// Pixels from the end of the log within which its reader follows.
const NEAR_END = 40;

export class Conversation {
  constructor(label, fail) {
    this.fail = fail;
    this.messages = [];
    this.controller = null;
    this.session = `console-${crypto.randomUUID()}`;
    this.log = h("div", { class: "log", role: "log", "aria-label": `Conversation with ${label}`, tabindex: "0" });
    this.title = h("h2", {}, label);
    this.element = h("section", { class: "panel pane", "aria-label": label }, this.title, this.log);
  }

  get busy() {
    return this.controller !== null;
  }

  // Say something, and show the answer.
  async ask(text, settings) {
    if (!this.messages.length && settings.system) this.messages.push({ role: "system", content: settings.system });
    this.messages.push({ role: "user", content: text });
    this.log.append(h("div", { class: "said user" }, h("p", { class: "who" }, "You"), h("p", { class: "text" }, text)));
    await this.answer(settings);
  }

  stop() {
    this.controller?.abort();
  }

  async answer(settings) {
    const turn = new Turn(settings.model);
    this.log.append(turn.element);
    // Whoever asks wants to see the answer.
    this.log.scrollTop = this.log.scrollHeight;
    this.log.scrollIntoView({ block: "nearest" });
    this.controller = new AbortController();
    const body = {
      model: settings.model,
      sampling: settings.sampling,
      request_class: settings.request_class,
      session_id: this.session,
      ...(settings.chat
        ? { messages: this.messages, tools: settings.tools, reasoning_effort: settings.effort }
        : { prompt: this.messages[this.messages.length - 1].content }),
    };
    try {
      for await (const event of lines("/api/chat", body, this.controller.signal)) {
        this.follow(() => turn.add(event));
      }
    } catch (error) {
      if (error.name === "AbortError") turn.say("stopped");
      else {
        turn.say(error.message, "bad");
        this.fail(error);
      }
    } finally {
      this.controller = null;
      this.follow(() => turn.done());
    }
    this.keep(turn, settings);
  }

  // Add a complete answer to the conversation; one without an end is forgotten, with its question.
  keep(turn, settings) {
    const calls = turn.calls.filter(Boolean);
    if (!turn.finished || (!turn.text && !calls.length)) {
      while (this.messages.length && this.messages[this.messages.length - 1].role !== "assistant" && this.messages[this.messages.length - 1].role !== "system") this.messages.pop();
      return;
    }
    const said = { role: "assistant", content: turn.text };
    if (calls.length) said.tool_calls = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    this.messages.push(said);
    this.follow(() => {
      if (calls.length) this.log.append(this.results(calls, settings));
    });
  }

  // Change the log and show its end, unless its reader has scrolled up.
  follow(change) {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    change();
    if (scrollHeight - scrollTop - clientHeight < NEAR_END) this.log.scrollTop = this.log.scrollHeight;
  }

  // A form for the results of calls, with which the conversation goes on.
  results(calls, settings) {
    const inputs = calls.map((call) => h("textarea", { rows: "2", required: true, "aria-label": `Result of ${call.name}` }));
    const form = h(
      "form",
      {
        class: "said",
        onsubmit: (event) => {
          event.preventDefault();
          calls.forEach((call, index) => this.messages.push({ role: "tool", tool_call_id: call.id, content: inputs[index].value }));
          form.replaceWith(...calls.map((call, index) => h("div", { class: "said user" }, h("p", { class: "who" }, `Result of ${call.name}`), h("pre", {}, inputs[index].value))));
          this.answer(settings);
        },
      },
      calls.map((call, index) => [h("p", { class: "who" }, `Result of ${call.name}`), inputs[index]]),
      h("p", { class: "buttons" }, h("button", { type: "submit" }, "Send results")),
    );
    return form;
  }
}

// One answer of a model, as its events come.
class Turn {
  constructor(model) {
    this.text = "";
    this.calls = [];
    this.finished = null;
    this.state = h("p", { class: "state", role: "status" }, "sent");
    this.body = h("p", { class: "text" });
    this.reasoning = h("p", { class: "text" });
    this.thoughts = h("details", { class: "reasoning", open: true, hidden: true }, h("summary", {}, "Reasoning"), this.reasoning);
    this.tools = h("ul", { class: "calls", hidden: true });
    this.receipt = h("div", {});
    this.element = h("div", { class: "said model" }, h("p", { class: "who" }, model), this.thoughts, this.body, this.tools, this.state, this.receipt);
  }

  add(event) {
    const act = this[`on_${event.event}`];
    if (act) act.call(this, event);
  }

  say(text, state = "") {
    this.state.textContent = text;
    this.state.className = `state ${state}`;
  }

  on_queued({ position, eta }) {
    this.say(`waiting: ${position} ahead${eta === null ? "" : `, about ${seconds(eta)}`}`);
  }

  on_started({ replica_id: replica, queue_time: waited, prompt_tokens: tokens }) {
    this.say(`running on ${replica} after ${seconds(waited)} in line, prompt of ${count(tokens)} tokens`);
  }

  on_resumed({ replica_id: replica }) {
    this.say(`goes on elsewhere after a failure${replica ? `: ${replica}` : ""}`, "warn");
  }

  on_delta({ text, reasoning, tool_calls: calls }) {
    if (reasoning) {
      this.thoughts.hidden = false;
      this.reasoning.append(reasoning);
    }
    if (text) {
      this.text += text;
      this.body.append(text);
    }
    for (const call of calls) this.call(call);
  }

  call({ index, id, name, arguments: more }) {
    const known = this.calls[index] ?? { id: "", name: "", arguments: "", element: h("li", {}) };
    if (!this.calls[index]) {
      this.calls[index] = known;
      this.tools.hidden = false;
      this.tools.append(known.element);
    }
    known.id ||= id;
    known.name ||= name;
    known.arguments += more;
    known.element.replaceChildren(badge("call", "info"), h("code", {}, `${known.name}(${known.arguments})`));
  }

  on_finished(event) {
    this.finished = event;
    const [end] = event.choices;
    const { receipt, usage } = event;
    this.say(`ended: ${words(end.finish_reason)}`);
    const sum = (name) => receipt.attempts.reduce((total, each) => total + each[name], 0);
    this.receipt.replaceChildren(
      facts([
        ["first token", seconds(receipt.time_to_first_token)],
        ["total", seconds(receipt.total_time)],
        ["in line", seconds(sum("queue_time"))],
        ["prefill", seconds(sum("prefill_time"))],
        ["decode", seconds(sum("decode_time"))],
        ["tokens", `${count(usage.prompt_tokens)} in (${count(usage.cached_tokens)} cached), ${count(usage.output_tokens)} out`],
        ["speed", sum("decode_time") ? `${Math.round(usage.output_tokens / sum("decode_time"))} tokens/s` : null],
        ["GPU time", seconds(receipt.gpu_seconds)],
        ["cost", receipt.cost ? money(receipt.cost) : null],
        ["replica", [...new Set(receipt.attempts.map((each) => each.replica_id))].join(", ")],
        ["request", h("a", { href: `#/requests/${encodeURIComponent(event.request_id)}` }, event.request_id)],
      ]),
    );
  }

  on_error({ error, reason }) {
    this.say(`${reason}: ${error}`, "bad");
  }

  done() {
    // What was thought is there to be opened, and out of the way.
    if (this.text) this.thoughts.open = false;
  }
}
