// A chat in the terminal, with types from the .proto files. Answers appear as they are generated.
//
// Usage: npm start [MODEL]

import process from "node:process";
import readline from "node:readline";

import { ClientError, createChannel, createClientFactory, Metadata, Status } from "nice-grpc";
import { errorDetailsClientMiddleware, RichClientError } from "nice-grpc-error-details";

import { InferenceServiceDefinition } from "./gen/penstock/v1/inference.js";
import type { ChatMessage, DeepPartial } from "./gen/penstock/v1/types.js";

/** A message with the fields that it needs. */
type Message = DeepPartial<ChatMessage>;

const TARGET = process.env.PENSTOCK_TARGET ?? "127.0.0.1:50051";
const API_KEY = process.env.PENSTOCK_API_KEY;
const model = process.argv[2] ?? "demo";

const metadata = Metadata();
if (API_KEY) metadata.set("authorization", `Bearer ${API_KEY}`);
const channel = createChannel(TARGET);
const client = createClientFactory()
  .use(errorDetailsClientMiddleware)
  .create(InferenceServiceDefinition, channel, { "*": { metadata } });

/** Prints the answer as it comes, and returns it. */
async function answer(messages: Message[]): Promise<string> {
  const prompt = { kind: { $case: "chat" as const, chat: { messages } } };
  let text = "";
  // Leaving the loop early would cancel the call, and with it the request.
  for await (const { event } of client.streamGenerate({ generate: { model, prompt, sampling: { maxTokens: 256 } } })) {
    if (event?.$case === "delta") {
      text += event.delta.text;
      process.stdout.write(event.delta.text);
    } else if (event?.$case === "finished") {
      console.log(`\n[${event.finished.usage?.outputTokens} tokens]`);
    }
  }
  return text;
}

/** Prints what the router says about an error. */
function explain(error: ClientError): void {
  console.error(`${Status[error.code]}: ${error.details}`);
  for (const detail of error instanceof RichClientError ? error.extra : []) {
    switch (detail.$type) {
      case "google.rpc.ErrorInfo":
        console.error(`  reason: ${detail.reason}`);
        break;
      case "google.rpc.BadRequest":
        for (const { field, description } of detail.fieldViolations) console.error(`  ${field}: ${description}`);
        break;
      case "google.rpc.RetryInfo":
        console.error(`  try again in ${detail.retryDelay?.seconds} s`);
        break;
    }
  }
}

let messages: Message[] = [];
process.stdout.write("> ");
for await (const content of readline.createInterface({ input: process.stdin })) {
  const asked = [...messages, { role: "user", content }];
  try {
    messages = [...asked, { role: "assistant", content: await answer(asked) }];
  } catch (error) {
    if (!(error instanceof ClientError)) throw error;
    explain(error);
  }
  process.stdout.write("> ");
}
channel.close();
