// Calls a server with the official SDKs of OpenAI and Anthropic for Node.js.
//
// BASE_URL is the server without /v1, MODEL a model for conversations, TOOL_MODEL one that calls the tool `weather`.
// EMBEDDING_MODEL, IMAGE_MODEL and API_KEY may be empty. SIMULATED=1: engines can't shape answers, and must refuse to.

import assert from "node:assert/strict";
import { test } from "node:test";

import Anthropic from "@anthropic-ai/sdk";
import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const { BASE_URL, MODEL, TOOL_MODEL = MODEL, EMBEDDING_MODEL, IMAGE_MODEL, API_KEY, SIMULATED } = process.env;
assert.ok(BASE_URL && MODEL, "BASE_URL and MODEL must be set");

const apiKey = API_KEY || "none";
const openai = new OpenAI({ baseURL: `${BASE_URL}/v1`, apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: BASE_URL, apiKey, maxRetries: 0 });

const messages = [{ role: "user", content: "What is a penstock?" }];
const chat = { model: MODEL, messages, max_tokens: 12, temperature: 0 };
const askForTool = [{ role: "user", content: "Does it rain in Paris? Use the tool." }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", description: "Tells the weather.", parameters } }];
const Place = z.object({ city: z.string().max(5), note: z.string().max(5).nullable() });

async function shaped(run) {
  if (!SIMULATED) return run();
  await assert.rejects(run, (error) => error instanceof OpenAI.BadRequestError && /^(response_format|text)/.test(error.param));
  return null;
}

test("openai: models", async () => {
  const found = [];
  for await (const model of openai.models.list()) found.push(model.id);
  assert.ok(found.includes(MODEL));
  assert.equal((await openai.models.retrieve(MODEL)).id, MODEL);
});

test("openai: a stream says what the whole answer says", async () => {
  const whole = await openai.chat.completions.create(chat);
  assert.ok(whole._request_id);
  let said = "";
  for await (const chunk of await openai.chat.completions.create({ ...chat, stream: true })) {
    said += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(said, whole.choices[0].message.content);
});

test("openai: the helper collects a stream and its usage", async () => {
  const stream = openai.chat.completions.stream({ ...chat, stream_options: { include_usage: true } });
  let said = "";
  stream.on("content", (more) => (said += more));
  const found = await stream.finalChatCompletion();
  assert.equal(said, found.choices[0].message.content);
  assert.equal((await stream.totalUsage()).completion_tokens, 12);
});

test("openai: leaving a stream ends it", async () => {
  const stream = await openai.chat.completions.create({ ...chat, max_tokens: 400, stream: true });
  for await (const chunk of stream) if (chunk.choices[0]?.delta.content) break;
  assert.ok(stream.controller.signal.aborted);
});

test("openai: a tool is called in a stream, and its result is taken", async (t) => {
  const body = { model: TOOL_MODEL, messages: askForTool, tools, max_tokens: 300, temperature: 0 };
  const { message, finish_reason } = (await openai.chat.completions.stream(body).finalChatCompletion()).choices[0];
  if (!message.tool_calls?.length) return t.skip("the model called no tool");
  assert.equal(finish_reason, "tool_calls");
  assert.equal(message.tool_calls[0].function.name, "weather");
  assert.ok("city" in JSON.parse(message.tool_calls[0].function.arguments));
  const results = message.tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "rain" }));
  const next = await openai.chat.completions.create({ ...body, messages: [...askForTool, message, ...results] });
  assert.ok(next.choices[0].finish_reason);
});

test("openai: the runner calls a tool and goes on", async (t) => {
  const cities = [];
  const rain = { ...tools[0].function, parse: JSON.parse, function: ({ city }) => (cities.push(city), "rain") };
  const body = { model: TOOL_MODEL, messages: askForTool, max_tokens: 300, temperature: 0 };
  const runner = openai.chat.completions.runTools(
    { ...body, stream: true, tools: [{ type: "function", function: rain }] },
    { maxChatCompletions: 2 },
  );
  await runner.done();
  if (!cities.length) return t.skip("the model called no tool");
  assert.ok(runner.messages.some(({ role, content }) => role === "tool" && content === "rain"));
});

test("openai: a schema of zod shapes a chat", async () => {
  const body = { ...chat, max_tokens: 200, response_format: zodResponseFormat(Place, "place") };
  const found = await shaped(() => openai.chat.completions.parse(body));
  if (found) Place.parse(found.choices[0].message.parsed);
});

test("openai: a schema of zod shapes a response", async () => {
  const body = { model: MODEL, input: "Name a city.", max_output_tokens: 200, text: { format: zodTextFormat(Place, "place") } };
  const found = await shaped(() => openai.responses.parse(body));
  if (found) Place.parse(found.output_parsed);
});

test("openai: texts", async () => {
  const found = await openai.completions.create({ model: MODEL, prompt: ["Once", "Twice"], max_tokens: 4 });
  assert.deepEqual(found.choices.map(({ index }) => index), [0, 1]);
});

test("openai: embeddings, as numbers and packed", async (t) => {
  if (!EMBEDDING_MODEL) return t.skip("no model that embeds");
  const body = { model: EMBEDDING_MODEL, input: ["one", "two"] };
  const packed = await openai.embeddings.create(body);
  const plain = await openai.embeddings.create({ ...body, encoding_format: "float" });
  assert.equal(packed.data.length, 2);
  plain.data[0].embedding.forEach((number, at) => assert.ok(Math.abs(number - packed.data[0].embedding[at]) < 1e-5));
});

test("openai: a response is streamed, kept and deleted", async (t) => {
  const body = { model: MODEL, input: "What is a penstock?", max_output_tokens: 16, temperature: 0 };
  let said = "";
  let last;
  for await (const event of await openai.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") said += event.delta;
    if (event.type === "response.completed" || event.type === "response.incomplete") last = event.response;
  }
  assert.ok(said);
  let kept;
  try {
    kept = await openai.responses.retrieve(last.id);
  } catch (error) {
    if (error instanceof OpenAI.NotFoundError) return t.skip("the server keeps no responses");
    throw error;
  }
  assert.equal(kept.output_text, said);
  await openai.responses.delete(last.id);
});

test("openai: a tool is called by a response", async (t) => {
  const body = { model: TOOL_MODEL, input: askForTool, tools: [{ type: "function", ...tools[0].function, strict: false }] };
  const found = await openai.responses.create({ ...body, max_output_tokens: 300, temperature: 0 });
  const call = found.output.find(({ type }) => type === "function_call");
  if (!call) return t.skip("the model called no tool");
  assert.equal(call.name, "weather");
});

test("openai: a batch of a file", async (t) => {
  const line = JSON.stringify({ custom_id: "q0", method: "POST", url: "/v1/chat/completions", body: chat });
  let file;
  try {
    file = await openai.files.create({ file: await toFile(Buffer.from(`${line}\n`), "in.jsonl"), purpose: "batch" });
  } catch (error) {
    if (error instanceof OpenAI.NotFoundError) return t.skip("the server has no files");
    throw error;
  }
  const wanted = { input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" };
  let batch = await openai.batches.create(wanted);
  for (const end = Date.now() + 60_000; batch.status !== "completed" && Date.now() < end; ) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    batch = await openai.batches.retrieve(batch.id);
  }
  assert.equal(batch.status, "completed");
  const answer = JSON.parse(await (await openai.files.content(batch.output_file_id)).text());
  assert.equal(answer.response.status_code, 200);
});

test("openai: errors have their classes", async () => {
  await assert.rejects(openai.chat.completions.create({ ...chat, model: "no-such-model" }), OpenAI.NotFoundError);
  const wrong = openai.chat.completions.create({ ...chat, temperature: 9 });
  await assert.rejects(wrong, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
});

test("anthropic: a stream says what the whole message says", async () => {
  const body = { model: MODEL, messages, max_tokens: 12, temperature: 0 };
  const whole = await anthropic.messages.create(body);
  assert.ok(whole._request_id);
  const stream = anthropic.messages.stream(body);
  let said = "";
  stream.on("text", (more) => (said += more));
  const last = await stream.finalMessage();
  assert.equal(said, whole.content.map((block) => block.text ?? "").join(""));
  assert.equal(last.stop_reason, whole.stop_reason);
  assert.equal(last.usage.output_tokens, whole.usage.output_tokens);
});

test("anthropic: a tool is called, and its result is taken", async (t) => {
  const tool = { name: "weather", description: "Tells the weather.", input_schema: parameters };
  const body = { model: TOOL_MODEL, messages: askForTool, tools: [tool], max_tokens: 300, temperature: 0 };
  const found = await anthropic.messages.stream(body).finalMessage();
  const calls = found.content.filter(({ type }) => type === "tool_use");
  if (!calls.length) return t.skip("the model called no tool");
  assert.equal(found.stop_reason, "tool_use");
  assert.ok("city" in calls[0].input);
  const results = calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "rain" }));
  const said = [...askForTool, { role: "assistant", content: found.content }, { role: "user", content: results }];
  assert.ok((await anthropic.messages.create({ ...body, messages: said })).stop_reason);
});

test("anthropic: tokens and models", async () => {
  assert.ok((await anthropic.messages.countTokens({ model: MODEL, messages })).input_tokens > 0);
  const found = [];
  for await (const model of anthropic.models.list()) found.push(model.id);
  assert.ok(found.includes(MODEL));
});

test("anthropic: errors have their classes", async () => {
  const unknown = anthropic.messages.create({ model: "no-such-model", messages, max_tokens: 1 });
  await assert.rejects(unknown, (error) => error instanceof Anthropic.NotFoundError && Boolean(error.requestID));
});

// One red pixel.
const data = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";
const url = `data:image/png;base64,${data}`;

test("images are seen in chats, responses and messages", { skip: !IMAGE_MODEL }, async () => {
  const ask = { model: IMAGE_MODEL, temperature: 0 };
  const tokens = {
    chat: async (...parts) => {
      const content = [{ type: "text", text: "What is this?" }, ...parts];
      const found = await openai.chat.completions.create({ ...ask, max_tokens: 4, messages: [{ role: "user", content }] });
      return found.usage.prompt_tokens;
    },
    response: async (...parts) => {
      const content = [{ type: "input_text", text: "What is this?" }, ...parts];
      const input = [{ role: "user", content }];
      return (await openai.responses.create({ ...ask, max_output_tokens: 16, store: false, input })).usage.input_tokens;
    },
    message: async (...parts) => {
      const content = [{ type: "text", text: "What is this?" }, ...parts];
      const found = await anthropic.messages.countTokens({ model: IMAGE_MODEL, messages: [{ role: "user", content }] });
      return found.input_tokens;
    },
  };
  const parts = {
    chat: { type: "image_url", image_url: { url } },
    response: { type: "input_image", image_url: url, detail: "auto" },
    message: { type: "image", source: { type: "base64", media_type: "image/png", data } },
  };
  for (const api of Object.keys(tokens)) assert.ok((await tokens[api](parts[api])) > (await tokens[api]()), api);
});
