// A chat in the terminal. Answers appear as they are generated.
//
// Usage: go run . [MODEL]
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	penstockv1 "example.com/chat/gen/penstock/v1"
)

func main() {
	target, model := "127.0.0.1:50051", "demo"
	if value := os.Getenv("PENSTOCK_TARGET"); value != "" {
		target = value
	}
	if len(os.Args) > 1 {
		model = os.Args[1]
	}
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := penstockv1.NewInferenceServiceClient(connection)

	ctx := context.Background()
	if key := os.Getenv("PENSTOCK_API_KEY"); key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
	}
	var messages []*penstockv1.ChatMessage
	fmt.Print("> ")
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 4<<20) // A scanner ends at a line of more than 64 KiB otherwise.
	for ; input.Scan(); fmt.Print("> ") {
		asked := append(messages, &penstockv1.ChatMessage{Role: "user", Content: input.Text()})
		text, err := answer(ctx, client, model, asked)
		if err != nil {
			explain(err)
			continue
		}
		messages = append(asked, &penstockv1.ChatMessage{Role: "assistant", Content: text})
	}
	if err := input.Err(); err != nil {
		log.Fatal(err)
	}
}

// answer prints the answer as it comes, and returns it.
func answer(
	ctx context.Context, client penstockv1.InferenceServiceClient, model string, messages []*penstockv1.ChatMessage,
) (string, error) {
	// Returning early would cancel the call, and with it the request.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	maxTokens := uint32(256)
	stream, err := client.StreamGenerate(ctx, &penstockv1.StreamGenerateRequest{
		Generate: &penstockv1.GenerateRequest{
			Model:    model,
			Prompt:   &penstockv1.Prompt{Kind: &penstockv1.Prompt_Chat{Chat: &penstockv1.ChatPrompt{Messages: messages}}},
			Sampling: &penstockv1.SamplingParams{MaxTokens: &maxTokens},
		},
	})
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return text.String(), nil
		}
		if err != nil {
			return "", err
		}
		if delta := event.GetDelta(); delta != nil {
			text.WriteString(delta.GetText())
			fmt.Print(delta.GetText())
		} else if finished := event.GetFinished(); finished != nil {
			fmt.Printf("\n[%d tokens]\n", finished.GetUsage().GetOutputTokens())
		}
	}
}

// explain prints what the router says about an error.
func explain(err error) {
	state := status.Convert(err)
	fmt.Fprintf(os.Stderr, "%s: %s\n", code.Code(state.Code()), state.Message())
	for _, detail := range state.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Fprintf(os.Stderr, "  reason: %s\n", detail.GetReason())
		case *errdetails.BadRequest:
			for _, violation := range detail.GetFieldViolations() {
				fmt.Fprintf(os.Stderr, "  %s: %s\n", violation.GetField(), violation.GetDescription())
			}
		case *errdetails.RetryInfo:
			fmt.Fprintf(os.Stderr, "  try again in %s\n", detail.GetRetryDelay().AsDuration())
		}
	}
}
