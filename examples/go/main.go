// Publishes messages over gRPC and consumes them, from queue.proto alone.
// Run the commands in examples/README.md first. Kill and restart the broker in the middle: no message is lost.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	pb "example/queuepb"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	count        = 300
	inFlight     = 8 // batches without an answer: a segment recognizes repeats of a producer's last 8 batches
	topic        = "go"
	subscription = "example"
)

// waitBeforeRetry waits if the broker is away. It returns any other error.
func waitBeforeRetry(err error) error {
	if status.Code(err) != codes.Unavailable {
		return err
	}
	time.Sleep(200 * time.Millisecond)
	return nil
}

// publish publishes each message once: a batch without an answer is sent again, with the same sequence.
func publish(ctx context.Context, queue pb.QueueServiceClient) error {
	producer, done := rand.Text(), 0
	for done < count {
		if err := publishFrom(ctx, queue, producer, &done); err != nil {
			if err = waitBeforeRetry(err); err != nil {
				return err
			}
		}
	}
	fmt.Printf("published %d\n", done)
	return nil
}

func publishFrom(ctx context.Context, queue pb.QueueServiceClient, producer string, done *int) error {
	stream, err := queue.PublishStream(ctx)
	if err != nil {
		return err
	}
	begun, room := *done, make(chan bool, inFlight)
	go func() {
		for at := begun; at < count; at++ {
			select {
			case room <- true:
			case <-stream.Context().Done():
				return
			}
			key, sequence := fmt.Sprintf("k%d", at%7), int64(at)
			message := &pb.NewMessage{Key: &key, Value: []byte(strconv.Itoa(at))}
			batch := &pb.PublishStreamRequest{
				Topic:            topic,
				Messages:         []*pb.NewMessage{message},
				ProducerId:       &producer,
				ProducerSequence: &sequence,
			}
			if stream.Send(batch) != nil {
				return // Recv has the reason
			}
		}
		stream.CloseSend()
	}()
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		*done = begun + int(answer.Batches)
		<-room
		if *done == count/3 {
			fmt.Printf("published %d\n", *done)
		}
	}
}

// consumer has the messages that it has seen and acked, and the acks without an answer.
type consumer struct {
	seen, acked map[string]bool
	unanswered  [][]string
}

// consume acks each message. An ack without an answer is sent again on the next stream.
func (c *consumer) consume(ctx context.Context, queue pb.QueueServiceClient) error {
	for len(c.acked) < count {
		if err := c.follow(ctx, queue); err != nil {
			if err = waitBeforeRetry(err); err != nil {
				return err
			}
		}
	}
	fmt.Printf("acked %d of %d messages\n", len(c.acked), len(c.seen))
	return nil
}

func (c *consumer) follow(ctx context.Context, queue pb.QueueServiceClient) error {
	stream, err := queue.Subscribe(ctx)
	if err != nil {
		return err
	}
	most := int64(20)
	start := &pb.SubscribeStart{Topic: topic, Subscription: subscription, MaxInFlight: &most}
	// Send fails only if the stream has ended: then Recv has the reason.
	stream.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Start{Start: start}})
	ack := func(ids []string) {
		stream.Send(&pb.SubscribeRequest{Request: &pb.SubscribeRequest_Ack{Ack: &pb.Ack{Ids: ids}}})
	}
	for _, ids := range c.unanswered {
		ack(ids)
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch got := response.Response.(type) {
		case *pb.SubscribeResponse_Delivery:
			var ids []string
			for _, one := range got.Delivery.Messages {
				c.seen[string(one.Value)] = true
				ids = append(ids, one.Id)
			}
			c.unanswered = append(c.unanswered, ids)
			ack(ids)
		case *pb.SubscribeResponse_Acked:
			before := len(c.acked)
			for _, id := range c.unanswered[0] {
				c.acked[id] = true
			}
			c.unanswered = c.unanswered[1:]
			if before < count/3 && len(c.acked) >= count/3 {
				fmt.Printf("acked %d\n", len(c.acked))
			}
			if len(c.acked) == count {
				stream.CloseSend() // ends the stream behind the last answer
			}
		case *pb.SubscribeResponse_Refusal:
			return errors.New(got.Refusal.Message)
		}
	}
}

func run(target string) error {
	ctx := context.Background()
	retry := grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 5 * time.Second}
	retry.Backoff.BaseDelay, retry.Backoff.MaxDelay = 100*time.Millisecond, 500*time.Millisecond
	credentials := grpc.WithTransportCredentials(insecure.NewCredentials())
	connection, err := grpc.NewClient(target, credentials, grpc.WithConnectParams(retry))
	if err != nil {
		return err
	}
	defer connection.Close()
	admin, queue := pb.NewAdminServiceClient(connection), pb.NewQueueServiceClient(connection)
	if _, err := admin.CreateTopic(ctx, &pb.CreateTopicRequest{Topic: topic}); err != nil {
		return err
	}
	mode, start := "shared", &pb.Place{Place: &pb.Place_End{End: "earliest"}}
	wanted := &pb.CreateSubscriptionRequest{Topic: topic, Subscription: subscription, Mode: &mode, Start: start}
	if _, err := admin.CreateSubscription(ctx, wanted); err != nil {
		return err
	}
	if err := publish(ctx, queue); err != nil {
		return err
	}
	return (&consumer{seen: map[string]bool{}, acked: map[string]bool{}}).consume(ctx, queue)
}

func main() {
	target := "127.0.0.1:9090"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	if err := run(target); err != nil {
		log.Fatal(err)
	}
}
