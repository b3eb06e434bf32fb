// Publishes messages over gRPC and consumes them, from queue.proto alone.
// Run the commands in examples/README.md first. Kill and restart the broker in the middle: no message is lost.
import { randomUUID } from "node:crypto";
import * as path from "node:path";
import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";

// proto-loader reads the file at run time, so the compiler does not know the services. The messages used here:
type Client = grpc.Client & Record<string, any>;
type Message = { id: string; value: Buffer };
type SubscribeResponse =
  | { response: "delivery"; delivery: { messages: Message[] } }
  | { response: "acked"; acked: { acked: string } }
  | { response: "refusal"; refusal: { message: string } };

const COUNT = 300;
const IN_FLIGHT = 8; // batches without an answer: a segment recognizes repeats of a producer's last 8 batches
const TOPIC = "node";
const SUBSCRIPTION = "example";
const PROTO = path.join(__dirname, "..", "..", "proto");

const loaded = loader.loadSync("seaweedq/v1/queue.proto", { includeDirs: [PROTO], keepCase: true, oneofs: true });
const api = (grpc.loadPackageDefinition(loaded) as any).seaweedq.v1;

// Waits if the broker is away. Throws any other error.
async function waitBeforeRetry(error: grpc.ServiceError): Promise<void> {
  if (error.code !== grpc.status.UNAVAILABLE) throw error;
  await new Promise((resolve) => setTimeout(resolve, 200));
}

function call(client: Client, method: string, request: object): Promise<object> {
  return new Promise((resolve, reject) =>
    client[method](request, (error: grpc.ServiceError | null, answer: object) => (error ? reject(error) : resolve(answer))),
  );
}

// Publishes each message once: a batch without an answer is sent again, with the same sequence.
async function publish(queue: Client): Promise<void> {
  const producer = randomUUID();
  let done = 0;
  const once = () =>
    new Promise<void>((resolve, reject) => {
      const begun = done;
      const stream = queue.PublishStream();
      stream.on("data", (answer: { batches: string }) => {
        done = begun + Number(answer.batches);
        if (done === COUNT / 3) console.log(`published ${done}`);
        send();
      });
      stream.on("error", reject);
      stream.on("end", resolve);
      let at = begun;
      const send = () => {
        if (at === COUNT) return;
        const messages = [{ key: `k${at % 7}`, value: Buffer.from(String(at)) }];
        stream.write({ topic: TOPIC, messages, producer_id: producer, producer_sequence: at });
        at += 1;
        if (at === COUNT) stream.end();
      };
      for (let sent = 0; sent < IN_FLIGHT; sent += 1) send();
    });
  while (done < COUNT) await once().catch(waitBeforeRetry);
  console.log(`published ${done}`);
}

// Acks each message. An ack without an answer is sent again on the next stream.
async function consume(queue: Client): Promise<void> {
  const acked = new Set<string>();
  const seen = new Set<string>();
  const unanswered: string[][] = [];
  const once = () =>
    new Promise<void>((resolve, reject) => {
      const stream = queue.Subscribe();
      stream.on("error", reject);
      stream.on("end", resolve);
      stream.on("data", (response: SubscribeResponse) => {
        if (response.response === "delivery") {
          response.delivery.messages.forEach((one) => seen.add(one.value.toString()));
          const ids = response.delivery.messages.map((one) => one.id);
          unanswered.push(ids);
          stream.write({ ack: { ids } });
        } else if (response.response === "acked") {
          const before = acked.size;
          unanswered.shift()!.forEach((id) => acked.add(id));
          if (before < COUNT / 3 && acked.size >= COUNT / 3) console.log(`acked ${acked.size}`);
          if (acked.size === COUNT) stream.end(); // ends the stream behind the last answer
        } else if (response.response === "refusal") {
          reject(new Error(response.refusal.message));
          stream.cancel();
        }
      });
      stream.write({ start: { topic: TOPIC, subscription: SUBSCRIPTION, max_in_flight: 20 } });
      unanswered.forEach((ids) => stream.write({ ack: { ids } }));
    });
  while (acked.size < COUNT) await once().catch(waitBeforeRetry);
  console.log(`acked ${acked.size} of ${seen.size} messages`);
}

async function main(): Promise<void> {
  const target = process.argv[2] || "127.0.0.1:9090";
  const options = { "grpc.initial_reconnect_backoff_ms": 100, "grpc.max_reconnect_backoff_ms": 500 };
  const credentials = grpc.credentials.createInsecure();
  const admin: Client = new api.AdminService(target, credentials, options);
  const queue: Client = new api.QueueService(target, credentials, options);
  await call(admin, "CreateTopic", { topic: TOPIC });
  const start = { end: "earliest" };
  await call(admin, "CreateSubscription", { topic: TOPIC, subscription: SUBSCRIPTION, mode: "shared", start });
  await publish(queue);
  await consume(queue);
  admin.close();
  queue.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
