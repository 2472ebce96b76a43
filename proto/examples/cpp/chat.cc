// A chat in the terminal. Answers appear as they are generated.
//
// Usage: ./chat [MODEL]

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "google_rpc.pb.h"
#include "penstock/v1/inference.grpc.pb.h"

namespace api = penstock::v1;

// Names of gRPC's codes, from 0.
constexpr const char* kCodes[] = {
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
    "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"};

// Returns the value of an environment variable, or `otherwise`.
std::string Setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

// Prints the answer as it comes, and puts it into `text`.
grpc::Status Answer(api::InferenceService::Stub& client, const api::GenerateRequest& generate, std::string& text) {
  grpc::ClientContext context;
  if (const std::string key = Setting("PENSTOCK_API_KEY", ""); !key.empty()) {
    context.AddMetadata("authorization", "Bearer " + key);
  }
  api::StreamGenerateRequest request;
  *request.mutable_generate() = generate;
  auto stream = client.StreamGenerate(&context, request);
  // To stop early, call context.TryCancel(). It cancels the request too.
  for (api::StreamGenerateResponse event; stream->Read(&event);) {
    if (event.has_delta()) {
      text += event.delta().text();
      std::cout << event.delta().text() << std::flush;
    } else if (event.has_finished()) {
      std::cout << "\n[" << event.finished().usage().output_tokens() << " tokens]\n";
    }
  }
  return stream->Finish();
}

// Prints what the router says about an error.
void Explain(const grpc::Status& error) {
  google::rpc::Status status;
  status.ParseFromString(error.error_details());
  std::cerr << kCodes[error.error_code()] << ": " << error.error_message() << "\n";
  google::rpc::ErrorInfo info;
  google::rpc::BadRequest bad;
  google::rpc::RetryInfo retry;
  for (const auto& detail : status.details()) {
    if (detail.UnpackTo(&info)) {
      std::cerr << "  reason: " << info.reason() << "\n";
    } else if (detail.UnpackTo(&bad)) {
      for (const auto& violation : bad.field_violations()) {
        std::cerr << "  " << violation.field() << ": " << violation.description() << "\n";
      }
    } else if (detail.UnpackTo(&retry)) {
      std::cerr << "  try again in " << retry.retry_delay().seconds() << " s\n";
    }
  }
}

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "demo";
  auto channel =
      grpc::CreateChannel(Setting("PENSTOCK_TARGET", "127.0.0.1:50051"), grpc::InsecureChannelCredentials());
  auto client = api::InferenceService::NewStub(channel);

  api::ChatPrompt conversation;
  std::cout << "> " << std::flush;
  for (std::string question; std::getline(std::cin, question); std::cout << "> " << std::flush) {
    api::GenerateRequest generate;
    generate.set_model(model);
    generate.mutable_sampling()->set_max_tokens(256);
    api::ChatPrompt& asked = *generate.mutable_prompt()->mutable_chat();
    asked = conversation;
    api::ChatMessage& message = *asked.add_messages();
    message.set_role("user");
    message.set_content(question);
    std::string text;
    if (const grpc::Status status = Answer(*client, generate, text); status.ok()) {
      conversation = asked;
      api::ChatMessage& reply = *conversation.add_messages();
      reply.set_role("assistant");
      reply.set_content(text);
    } else {
      Explain(status);
    }
  }
}
