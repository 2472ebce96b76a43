// Calls a router from Node.js, knowing nothing but the .proto files.
//
// PENSTOCK_TARGET is the router's address, PENSTOCK_MODEL a model that it serves and that generates for a second or more
// when nothing but its context ends it.

import assert from "node:assert/strict";
import path from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import protobuf from "protobufjs";

const here = path.dirname(fileURLToPath(import.meta.url));
const protoRoot = path.resolve(here, "../../proto");
const target = process.env.PENSTOCK_TARGET;
const model = process.env.PENSTOCK_MODEL;
const DEADLINE_MS = 60_000;

let client;
let rpc;

before(() => {
  assert.ok(target && model, "PENSTOCK_TARGET and PENSTOCK_MODEL must be set");
  const definition = protoLoader.loadSync("penstock/v1/inference.proto", {
    includeDirs: [protoRoot],
    keepCase: true,
    longs: Number,
    enums: String,
    oneofs: true,
    defaults: true,
  });
  const { InferenceService } = grpc.loadPackageDefinition(definition).penstock.v1;
  client = new InferenceService(target, grpc.credentials.createInsecure());
  rpc = protobuf.loadSync(path.join(protoRoot, "examples/node/google_rpc.proto"));
});

after(() => client?.close());

const deadline = () => ({ deadline: Date.now() + DEADLINE_MS });

/** Runs a unary call; rejects with the ServiceError. */
function unary(method, request) {
  return new Promise((resolve, reject) => {
    client[method](request, deadline(), (error, answer) => (error ? reject(error) : resolve(answer)));
  });
}

/** Decodes the google.rpc.Status of an error into {status, details by short type name}. */
function decode(error) {
  const [bytes] = error.metadata.get("grpc-status-details-bin");
  const status = rpc.lookupType("google.rpc.Status").decode(bytes);
  const details = {};
  for (const detail of status.details) {
    const name = detail.type_url.split("/").pop();
    const type = rpc.lookupType(name);
    details[name.split(".").pop()] = type.toObject(type.decode(detail.value));
  }
  return { status, details };
}

const generation = (sampling) => ({ model, prompt: { text: "What is a queue?" }, sampling });

/** Reads a stream to its end: every event, and the error if it ended with one. */
async function drain(call, onEvent = () => {}) {
  const events = [];
  try {
    for await (const event of call) {
      events.push(event);
      onEvent(event);
    }
  } catch (error) {
    return { events, error };
  }
  return { events };
}

test("a unary call returns text, usage and a receipt", async () => {
  const answer = await unary("Generate", generation({ max_tokens: 4, temperature: 0, ignore_eos: true }));

  assert.equal(answer.choices.length, 1);
  assert.equal(answer.choices[0].token_ids.length, 4);
  assert.equal(answer.choices[0].finish_reason, "FINISH_REASON_LENGTH");
  assert.equal(answer.usage.output_tokens, 4);
  assert.ok(answer.request_id.length > 0);
  assert.ok(answer.receipt.attempts.length >= 1);
});

test("a stream gives every token once, in order, and finished last", async () => {
  const request = { generate: generation({ max_tokens: 8, temperature: 0, ignore_eos: true }) };
  const { events, error } = await drain(client.StreamGenerate(request, deadline()));

  assert.equal(error, undefined);
  const kinds = events.map((event) => event.event);
  assert.ok(kinds.includes("started"));
  assert.equal(kinds.at(-1), "finished");
  assert.equal(kinds.filter((kind) => kind === "finished").length, 1);

  let received = 0;
  for (const { delta } of events.filter((event) => event.event === "delta")) {
    assert.equal(delta.offset, received);
    received += delta.token_ids.length;
  }
  assert.equal(received, 8);
  const { finished } = events.at(-1);
  assert.deepEqual(
    finished.choices.map(({ finish_reason, output_tokens }) => [finish_reason, output_tokens]),
    [["FINISH_REASON_LENGTH", 8]],
  );
});

test("a stream that its client cancels ends with CANCELLED", async () => {
  const call = client.StreamGenerate({ generate: generation({ ignore_eos: true }) }, deadline());
  const { events, error } = await drain(call, (event) => event.event === "delta" && call.cancel());

  assert.equal(error?.code, grpc.status.CANCELLED);
  assert.ok(!events.some((event) => event.event === "finished"));
});

test("a request that is cancelled by its id ends its stream with finished", async () => {
  const call = client.StreamGenerate({ generate: generation({ ignore_eos: true }) }, deadline());
  let requestId;
  let cancelled;
  const { events, error } = await drain(call, (event) => {
    requestId ??= event.started?.request_id;
    if (event.event === "delta") cancelled ??= unary("Cancel", { request_id: requestId });
  });

  assert.equal(error, undefined);
  assert.equal((await cancelled).request_id, requestId);
  assert.equal(events.at(-1).finished.choices[0].finish_reason, "FINISH_REASON_CANCELLED");
});

test("a wrong request is answered with the wrong fields", async () => {
  const error = await unary("Generate", generation({ temperature: 9, n: 99 })).catch((caught) => caught);

  assert.equal(error.code, grpc.status.INVALID_ARGUMENT);
  const { status, details } = decode(error);
  assert.equal(status.code, grpc.status.INVALID_ARGUMENT);
  assert.equal(details.ErrorInfo.domain, "penstock.dev");
  assert.equal(details.ErrorInfo.reason, "INVALID_REQUEST");
  const fields = details.BadRequest.fieldViolations.map(({ field }) => field);
  assert.deepEqual(fields.toSorted(), ["sampling.n", "sampling.temperature"]);
});

test("a stream for an unknown model ends with NOT_FOUND and the reason", async () => {
  const request = { generate: { ...generation({}), model: "no-such-model" } };
  const { events, error } = await drain(client.StreamGenerate(request, deadline()));

  assert.deepEqual(events, []);
  assert.equal(error.code, grpc.status.NOT_FOUND);
  assert.equal(decode(error).details.ErrorInfo.reason, "MODEL_NOT_FOUND");
});

test("models can be listed", async () => {
  const { models } = await unary("ListModels", {});

  assert.ok(models.some(({ name }) => name === model));
});
