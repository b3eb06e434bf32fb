"""Publishes messages over gRPC and consumes them, without the package seaweedq: from queue.proto alone.

Run the commands in examples/README.md first. Kill and restart the broker in the middle: no message is lost.
"""

import sys
import time
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Semaphore
from uuid import uuid4

import grpc
import queue_pb2 as pb
import queue_pb2_grpc as rpc

COUNT = 300
IN_FLIGHT = 8  # batches without an answer: a segment recognizes repeats of a producer's last 8 batches
TOPIC, SUBSCRIPTION = "grpc-python", "example"


def wait_before_retry(error: grpc.RpcError) -> None:
    """Waits if the broker is away. Raises any other error."""
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        raise error
    time.sleep(0.2)


def create(channel: grpc.Channel) -> None:
    """Creates the topic and a subscription of all its messages."""
    admin = rpc.AdminServiceStub(channel)
    admin.CreateTopic(pb.CreateTopicRequest(topic=TOPIC))
    start = pb.Place(end="earliest")
    admin.CreateSubscription(
        pb.CreateSubscriptionRequest(topic=TOPIC, subscription=SUBSCRIPTION, mode="shared", start=start)
    )


def publish(channel: grpc.Channel) -> None:
    """Publishes each message once: a batch without an answer is sent again, with the same sequence."""
    queue, producer, done = rpc.QueueServiceStub(channel), uuid4().hex, 0

    def batches(begin: int, room: Semaphore) -> Iterator[pb.PublishStreamRequest]:
        for at in range(begin, COUNT):
            room.acquire()
            message = pb.NewMessage(key=f"k{at % 7}", value=b"%d" % at)
            yield pb.PublishStreamRequest(topic=TOPIC, messages=[message], producer_id=producer, producer_sequence=at)

    while done < COUNT:
        begun, room = done, Semaphore(IN_FLIGHT)
        try:
            for answer in queue.PublishStream(batches(begun, room)):
                done = begun + answer.batches
                room.release()
                if done == COUNT // 3:
                    print(f"published {done}", flush=True)
        except grpc.RpcError as error:
            wait_before_retry(error)
            room.release()  # lets the thread that sends see that the stream has ended
    print(f"published {done}", flush=True)


def consume(channel: grpc.Channel) -> None:
    """Acks each message. An ack without an answer is sent again on the next stream."""
    queue, acked, seen = rpc.QueueServiceStub(channel), set[str](), set[bytes]()
    unanswered: deque[list[str]] = deque()
    start = pb.SubscribeStart(topic=TOPIC, subscription=SUBSCRIPTION, max_in_flight=20)
    while len(acked) < COUNT:
        requests: SimpleQueue[pb.SubscribeRequest | None] = SimpleQueue()
        requests.put(pb.SubscribeRequest(start=start))
        for ids in unanswered:
            requests.put(pb.SubscribeRequest(ack=pb.Ack(ids=ids)))
        try:
            for response in queue.Subscribe(iter(requests.get, None)):
                kind = response.WhichOneof("response")
                if kind == "delivery":
                    messages = response.delivery.messages
                    seen.update(one.value for one in messages)
                    unanswered.append([one.id for one in messages])
                    requests.put(pb.SubscribeRequest(ack=pb.Ack(ids=unanswered[-1])))
                elif kind == "acked":
                    before = len(acked)
                    acked.update(unanswered.popleft())
                    if before < COUNT // 3 <= len(acked):
                        print(f"acked {len(acked)}", flush=True)
                    if len(acked) == COUNT:
                        requests.put(None)  # ends the stream behind the last answer
                elif kind == "refusal":
                    raise RuntimeError(response.refusal.message)
        except grpc.RpcError as error:
            wait_before_retry(error)
        finally:
            requests.put(None)
    print(f"acked {len(acked)} of {len(seen)} messages", flush=True)


def main() -> None:
    """Publishes, and then consumes."""
    target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9090"
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
    with grpc.insecure_channel(target, options=options) as channel:
        create(channel)
        publish(channel)
        consume(channel)


if __name__ == "__main__":
    main()
