// A chat in the terminal. Answers appear as they are generated.
//
// Usage: node chat.mjs [MODEL]

import path from "node:path";
import process from "node:process";
import readline from "node:readline";

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

import { details } from "./errors.mjs";

const TARGET = process.env.PENSTOCK_TARGET ?? "127.0.0.1:50051";
const API_KEY = process.env.PENSTOCK_API_KEY;
const model = process.argv[2] ?? "demo";

const definition = protoLoader.loadSync("penstock/v1/inference.proto", {
  includeDirs: [path.join(import.meta.dirname, "../..")],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { InferenceService } = grpc.loadPackageDefinition(definition).penstock.v1;
const client = new InferenceService(TARGET, grpc.credentials.createInsecure());
const metadata = new grpc.Metadata();
if (API_KEY) metadata.set("authorization", `Bearer ${API_KEY}`);

/** Prints the answer as it comes, and returns it. */
async function answer(messages) {
  const generate = { model, prompt: { chat: { messages } }, sampling: { max_tokens: 256 } };
  let text = "";
  // Leaving the loop early would cancel the call, and with it the request.
  for await (const { delta, finished } of client.StreamGenerate({ generate }, metadata)) {
    if (delta) {
      text += delta.text;
      process.stdout.write(delta.text);
    } else if (finished) {
      console.log(`\n[${finished.usage.output_tokens} tokens]`);
    }
  }
  return text;
}

let messages = [];
process.stdout.write("> ");
for await (const question of readline.createInterface({ input: process.stdin })) {
  const asked = [...messages, { role: "user", content: question }];
  try {
    messages = [...asked, { role: "assistant", content: await answer(asked) }];
  } catch (error) {
    const { reason, violations, retryAfterMs } = details(error);
    console.error(`${grpc.status[error.code]}: ${error.details}`);
    if (reason) console.error(`  reason: ${reason}`);
    for (const { field, description } of violations) console.error(`  ${field}: ${description}`);
    if (retryAfterMs !== undefined) console.error(`  try again in ${retryAfterMs} ms`);
  }
  process.stdout.write("> ");
}
client.close();
