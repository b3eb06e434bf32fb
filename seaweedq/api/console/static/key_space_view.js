// The contents of the picture of the key space, as plain data: the part of time and keys that is seen, boxes, changes,
// colours, and which box is at a place. Nothing here draws, asks a broker, or knows the page.

import { KEY_SPACE } from "./format.js";

const LEAST_MS = 20_000;
const LEAST_KEYS = 1_000;
const DECADES = 4;
const SHADES = 48; // so few colours are made, and set, once for many boxes
const KNOWN_TIMES = 200_000;
// Of viridis, which goes by lightness, so that it can be read without telling red from green.
const RAMP = [[68, 1, 84], [70, 50, 126], [54, 92, 141], [39, 127, 142], [31, 161, 135], [74, 193, 109], [160, 218, 57], [253, 231, 37]];

const times = new Map(); // of the texts of the last answers: most of an answer is as it was in the one before

function parsed(text) {
  let found = times.get(text);
  if (found === undefined) {
    if (times.size >= KNOWN_TIMES) times.clear();
    times.set(text, (found = Date.parse(text)));
  }
  return found;
}

/** The part of the plane that is seen: times in ms, key hashes. */
export const ALL_KEYS = { low: 0, high: KEY_SPACE };

/** Returns a part within `bounds`, moved into it and no smaller than can be seen. */
export function within(part, bounds) {
  const [since, until] = clamped(part.since, part.until, bounds.since, bounds.until, LEAST_MS);
  const [low, high] = clamped(part.low, part.high, 0, KEY_SPACE, LEAST_KEYS);
  return { since, until, low, high };
}

function clamped(from, to, least, most, smallest) {
  const length = Math.min(Math.max(to - from, smallest), Math.max(most - least, smallest));
  const begin = Math.max(least, Math.min(from, most - length));
  return [begin, begin + length];
}

/** Returns a part that is `factor` times as large in time and in keys, with the place `at` where it was. */
export function zoomed(part, factor, at, bounds) {
  const x = { since: at.time - (at.time - part.since) * factor.time, until: at.time + (part.until - at.time) * factor.time };
  const y = { low: at.key - (at.key - part.low) * factor.keys, high: at.key + (part.high - at.key) * factor.keys };
  return within({ ...x, ...y }, bounds);
}

/** Returns a part moved by these shares of its own size. */
export function moved(part, time, keys, bounds) {
  const [ms, hashes] = [(part.until - part.since) * time, (part.high - part.low) * keys];
  return within({ since: part.since + ms, until: part.until + ms, low: part.low + hashes, high: part.high + hashes }, bounds);
}

/** Returns cells of the route with their times as ms. */
export function cellsOf(history) {
  return history.cells.map((one) => {
    const since = Date.parse(one.time);
    return { ...one, since, until: since + one.seconds * 1000, rate: one.messages_per_s, isNow: false };
  });
}

/** Returns a box for each open segment, of what came in since the newest cell, by the owner's average over 10 s. */
export function presentOf(segments, since, now) {
  if (now <= since) return [];
  return segments.filter((one) => one.state === "open" && one.rates && one.rates.messages_per_s[0] > 0).map((one) => ({
    since: Math.max(since, parsed(one.created_at)), until: now, low: one.low, high: one.high, segment: one.id, isNow: true,
    rate: one.rates.messages_per_s[0], messages_per_s: one.rates.messages_per_s[0], bytes_per_s: one.rates.bytes_per_s[0], hot_key: one.hot_key,
  })).filter((one) => one.until > one.since);
}

/** Returns the segments of the map with the times of their lives as ms, those that reach into [since, until) alone. */
export function livesOf(segments, since, until, now) {
  const found = [];
  for (const one of segments) {
    const begin = parsed(one.created_at);
    const end = one.sealed_at ? parsed(one.sealed_at) : now;
    if (end > since && begin < until) found.push({ id: one.id, low: one.low, high: one.high, since: begin, until: end });
  }
  return found;
}

/** Returns the splits, merges and other replacements within [since, until): time, kind, range, segments before and after. */
export function changesOf(segments, since, until) {
  const found = new Map();
  for (const one of segments) {
    const time = one.sealed_at ? parsed(one.sealed_at) : 0;
    if (time < since || time >= until || one.successors.length === 0) continue;
    const key = Math.min(...one.successors); // all that were sealed together have the same ones
    const known = found.get(key);
    if (known) Object.assign(known, { low: Math.min(known.low, one.low), high: Math.max(known.high, one.high), sealed: [...known.sealed, one.id] });
    else found.set(key, { time, low: one.low, high: one.high, sealed: [one.id], successors: one.successors });
  }
  return [...found.values()].map((one) => ({ ...one, kind: kindOf(one) })).sort((a, b) => a.time - b.time);
}

function kindOf({ sealed, successors }) {
  if (sealed.length === 1) return successors.length === 1 ? "roll" : "split";
  return successors.length === 1 ? "merge" : "recut";
}

/** Returns the box at a place: of the boxes that overlap there, the one that was drawn last. */
export function boxAt(boxes, { time, key }) {
  for (let i = boxes.length - 1; i >= 0; i -= 1) {
    const one = boxes[i];
    if (time >= one.since && time < one.until && key >= one.low && key < one.high) return one;
  }
  return null;
}

/** Returns the ends of the colours: whole decades, the highest of which has the largest rate. */
export function scaleOf(boxes) {
  const most = boxes.reduce((found, one) => Math.max(found, one.rate), 0);
  const high = Math.ceil(Math.log10(Math.max(most, 1)) - 1e-9);
  return { low: high - DECADES, high };
}

/** Returns which of the shades a rate has: the more, the further from the page's own lightness. */
export function shadeOf(rate, scale) {
  const share = (Math.log10(Math.max(rate, 1e-9)) - scale.low) / (scale.high - scale.low);
  return Math.round(Math.max(0, Math.min(1, share)) * SHADES);
}

/** Returns the colour of a shade. */
export function colourOf(shade, isDark) {
  const share = shade / SHADES;
  const at = (isDark ? 0.12 + 0.88 * share : 0.97 * (1 - share)) * (RAMP.length - 1);
  const [i, left] = [Math.min(Math.floor(at), RAMP.length - 2), at - Math.min(Math.floor(at), RAMP.length - 2)];
  return `rgb(${RAMP[i].map((one, n) => Math.round(one + (RAMP[i + 1][n] - one) * left)).join()})`;
}

/** Returns times at which to write a time, about `most` of them: whole steps of the local clock. */
export function timesOf({ since, until }, most) {
  const least = (until - since) / Math.max(1, most);
  const step = [1, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600].map((s) => s * 1000).find((one) => one >= least) || 7_200_000;
  const found = [];
  for (let at = Math.ceil(since / step) * step; at <= until; at += step) found.push(at);
  return found;
}

/** Returns the shares of the key space at which to write one, in percent. */
export function sharesOf({ low, high }, most) {
  const [from, to] = [(low / KEY_SPACE) * 100, (high / KEY_SPACE) * 100];
  const least = (to - from) / Math.max(1, most);
  const step = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 25, 50].find((one) => one >= least) || 100;
  const found = [];
  for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-9; n += 1) found.push(n * step);
  return found;
}
