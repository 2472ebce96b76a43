# A chat in the terminal. Answers appear as they are generated.
#
# Usage: ruby -I gen chat.rb [MODEL]

require "google/protobuf/well_known_types"
require "google/rpc/error_details_pb"
require "grpc"

require "penstock/v1/inference_services_pb"

include Penstock::V1

TARGET = ENV.fetch("PENSTOCK_TARGET", "127.0.0.1:50051")
MODEL = ARGV.fetch(0, "demo")
METADATA = ENV["PENSTOCK_API_KEY"] ? { "authorization" => "Bearer #{ENV["PENSTOCK_API_KEY"]}" } : {}
CODES = GRPC::Core::StatusCodes.constants.to_h { |name| [GRPC::Core::StatusCodes.const_get(name), name] }
CLIENT = InferenceService::Stub.new(TARGET, :this_channel_is_insecure)

# Prints the answer as it comes, and returns it.
def answer(messages)
  prompt = Prompt.new(chat: ChatPrompt.new(messages: messages))
  generate = GenerateRequest.new(model: MODEL, prompt: prompt, sampling: SamplingParams.new(max_tokens: 256))
  text = +""
  # Leaving the block early would cancel the call, and with it the request.
  CLIENT.stream_generate(StreamGenerateRequest.new(generate: generate), metadata: METADATA).each do |response|
    case response.event
    when :delta
      text << response.delta.text
      print response.delta.text
    when :finished
      puts "\n[#{response.finished.usage.output_tokens} tokens]"
    end
  end
  text
end

# Prints what the router says about an error.
def explain(error)
  warn "#{CODES[error.code]}: #{error.details}"
  (error.to_rpc_status&.details || []).each do |detail|
    if detail.is(Google::Rpc::ErrorInfo)
      warn "  reason: #{detail.unpack(Google::Rpc::ErrorInfo).reason}"
    elsif detail.is(Google::Rpc::BadRequest)
      detail.unpack(Google::Rpc::BadRequest).field_violations.each { |each| warn "  #{each.field}: #{each.description}" }
    elsif detail.is(Google::Rpc::RetryInfo)
      warn "  try again in #{detail.unpack(Google::Rpc::RetryInfo).retry_delay.to_f} s"
    end
  end
end

$stdout.sync = true
messages = []
print "> "
$stdin.each_line(chomp: true) do |question|
  asked = messages + [ChatMessage.new(role: "user", content: question)]
  begin
    messages = asked + [ChatMessage.new(role: "assistant", content: answer(asked))]
  rescue GRPC::BadStatus => error
    explain(error)
  end
  print "> "
end
