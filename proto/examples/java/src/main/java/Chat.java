import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import dev.penstock.v1.ChatMessage;
import dev.penstock.v1.ChatPrompt;
import dev.penstock.v1.GenerateRequest;
import dev.penstock.v1.InferenceServiceGrpc;
import dev.penstock.v1.InferenceServiceGrpc.InferenceServiceBlockingStub;
import dev.penstock.v1.Prompt;
import dev.penstock.v1.SamplingParams;
import dev.penstock.v1.StreamGenerateRequest;
import dev.penstock.v1.StreamGenerateResponse;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.MetadataUtils;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

/**
 * A chat in the terminal. Answers appear as they are generated.
 *
 * <p>Usage: mvn -q compile exec:java -Dexec.args=MODEL
 */
public final class Chat {
  public static void main(String[] args) throws IOException {
    String target = System.getenv().getOrDefault("PENSTOCK_TARGET", "127.0.0.1:50051");
    String model = args.length > 0 ? args[0] : "demo";
    ManagedChannel channel = Grpc.newChannelBuilder(target, InsecureChannelCredentials.create()).build();
    InferenceServiceBlockingStub client = InferenceServiceGrpc.newBlockingStub(channel);
    String key = System.getenv("PENSTOCK_API_KEY");
    if (key != null) {
      Metadata metadata = new Metadata();
      metadata.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + key);
      client = client.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(metadata));
    }

    List<ChatMessage> messages = new ArrayList<>();
    BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
    System.out.print("> ");
    for (String question; (question = input.readLine()) != null; System.out.print("> ")) {
      List<ChatMessage> asked = new ArrayList<>(messages);
      asked.add(message("user", question));
      try {
        String text = answer(client, model, asked);
        messages = asked;
        messages.add(message("assistant", text));
      } catch (StatusRuntimeException error) {
        explain(error);
      }
    }
    channel.shutdownNow();
  }

  private static ChatMessage message(String role, String content) {
    return ChatMessage.newBuilder().setRole(role).setContent(content).build();
  }

  /** Prints the answer as it comes, and returns it. */
  private static String answer(InferenceServiceBlockingStub client, String model, List<ChatMessage> messages) {
    GenerateRequest generate =
        GenerateRequest.newBuilder()
            .setModel(model)
            .setPrompt(Prompt.newBuilder().setChat(ChatPrompt.newBuilder().addAllMessages(messages)))
            .setSampling(SamplingParams.newBuilder().setMaxTokens(256))
            .build();
    StringBuilder text = new StringBuilder();
    Iterator<StreamGenerateResponse> events =
        client.streamGenerate(StreamGenerateRequest.newBuilder().setGenerate(generate).build());
    while (events.hasNext()) {
      StreamGenerateResponse event = events.next();
      if (event.hasDelta()) {
        text.append(event.getDelta().getText());
        System.out.print(event.getDelta().getText());
        System.out.flush();
      } else if (event.hasFinished()) {
        System.out.printf("%n[%d tokens]%n", event.getFinished().getUsage().getOutputTokens());
      }
    }
    return text.toString();
  }

  /** Prints what the router says about an error. */
  private static void explain(StatusRuntimeException error) {
    System.err.printf("%s: %s%n", error.getStatus().getCode(), error.getStatus().getDescription());
    com.google.rpc.Status status = StatusProto.fromThrowable(error);
    if (status == null) {
      return;
    }
    try {
      for (Any detail : status.getDetailsList()) {
        if (detail.is(ErrorInfo.class)) {
          System.err.printf("  reason: %s%n", detail.unpack(ErrorInfo.class).getReason());
        } else if (detail.is(BadRequest.class)) {
          for (BadRequest.FieldViolation violation : detail.unpack(BadRequest.class).getFieldViolationsList()) {
            System.err.printf("  %s: %s%n", violation.getField(), violation.getDescription());
          }
        } else if (detail.is(RetryInfo.class)) {
          System.err.printf("  try again in %d s%n", detail.unpack(RetryInfo.class).getRetryDelay().getSeconds());
        }
      }
    } catch (InvalidProtocolBufferException broken) {
      System.err.println("  its details cannot be read: " + broken.getMessage());
    }
  }

  private Chat() {}
}
