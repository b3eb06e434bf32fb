// Finds messages of a topic over the routes of its segments. Nothing of this needs a subscription, or acks anything.

import { call, gather, path } from "./api.js";
import { hashOf } from "./key_hash.js";

const PAGE = 1_000;
const MOST_SEGMENTS = 32; // of one look: each costs a request

/** Returns the newest messages, the newest first: of the open segments, and of those that were sealed since the oldest
 * of these, or while some are missing. `older` tells about how many others there are. */
export async function newest(topic, map, limit, signal) {
  const [open, sealed] = [map.segments.filter((one) => one.state === "open"), map.segments.filter((one) => one.state !== "open")];
  const looked = [...open].sort((a, b) => last(b) - last(a)).slice(0, MOST_SEGMENTS);
  const found = (await gather(looked, (one) => range(topic, one, one.end_offset - limit, one.end_offset, signal))).flat();
  const best = () => found.sort(byTime).reverse().slice(0, limit);
  let leftOut = open.length - looked.length;
  for (const [i, one] of sealed.sort((a, b) => Date.parse(b.sealed_at) - Date.parse(a.sealed_at)).entries()) {
    const shown = best();
    if (shown.length >= limit && Date.parse(one.sealed_at) < Date.parse(shown.at(-1).timestamp)) break;
    if (i >= MOST_SEGMENTS) {
      leftOut += sealed.length - i;
      break;
    }
    found.push(...await range(topic, one, one.end_offset - limit, one.end_offset, signal));
  }
  const [messages, all] = [best(), map.segments.reduce((sum, one) => sum + one.end_offset - one.start_offset, 0)];
  return { messages, leftOut, older: messages.length < limit ? 0 : all - messages.length };
}

/** Returns the first messages from a time on, in the order of time; `isCut` tells that there are more. */
export async function fromTime(topic, map, timestamp, limit, signal) {
  const { offsets } = await call(`${path`v1/topics/${topic}/offsets`}?timestamp=${encodeURIComponent(timestamp)}`, { signal });
  const all = map.segments.filter((one) => one.id in offsets && offsets[one.id] < one.end_offset).sort((a, b) => a.id - b.id);
  const looked = all.slice(0, MOST_SEGMENTS);
  const found = (await gather(looked, (one) => range(topic, one, offsets[one.id], Math.min(one.end_offset, offsets[one.id] + limit), signal))).flat();
  const isCut = found.length > limit || looked.some((one) => offsets[one.id] + limit < one.end_offset);
  return { messages: found.sort(byTime).slice(0, limit), leftOut: all.length - looked.length, isCut };
}

/** Returns messages of one segment from an offset on. */
export async function fromOffset(topic, segment, offset, limit, signal) {
  const page = await fetchPage(topic, segment, offset, limit, signal);
  return { messages: page.messages, next: page.next_offset, isEnd: page.next_offset === offset, successors: page.successors };
}

/** Returns the newest messages of a key, of so many that are looked at, the newest first, in segments that can have it. */
export async function ofKey(topic, map, key, limit, depth, signal) {
  const hash = hashOf(key);
  const segments = map.segments.filter((one) => one.low <= hash && hash < one.high).sort((a, b) => (a.state === "open" ? 0 : 1) - (b.state === "open" ? 0 : 1) || b.id - a.id);
  const found = [];
  let searched = 0;
  let isWhole = true;
  for (const one of segments) {
    if (found.length >= limit) {
      isWhole = false;
      break;
    }
    let high = one.end_offset;
    while (high > one.start_offset && searched < depth) {
      const low = Math.max(one.start_offset, high - PAGE);
      found.push(...(await range(topic, one, low, high, signal)).filter((message) => message.key === key));
      searched += high - low;
      high = low;
    }
    isWhole &&= high <= one.start_offset;
  }
  return { messages: found.sort(byTime).reverse().slice(0, limit), searched, isWhole, isCut: found.length > limit };
}

async function range(topic, segment, low, high, signal) {
  const found = [];
  for (let at = Math.max(low, segment.start_offset); at < high; ) {
    const page = await fetchPage(topic, segment.id, at, Math.min(PAGE, high - at), signal);
    if (page.next_offset === at) break;
    found.push(...page.messages);
    at = page.next_offset;
  }
  return found;
}

function fetchPage(topic, segment, offset, limit, signal) {
  return call(`${path`v1/topics/${topic}/segments/${segment}/messages`}?offset=${offset}&limit=${limit}`, { signal, exact: true });
}

function last(segment) {
  return segment.rates ? segment.rates.messages_per_s[0] : 0;
}

function byTime(a, b) {
  return a.timestamp < b.timestamp ? -1 : a.timestamp > b.timestamp ? 1 : a.segment - b.segment || a.offset - b.offset;
}
