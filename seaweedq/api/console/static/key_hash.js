// The hash of a key, which says what segment a message belongs to: that of seaweedq/segments/keyhash.py, murmur3_x86_32
// over its UTF-8 bytes, without the sign bit, modulo the key space.

import { KEY_SPACE } from "./format.js";

/** Returns the hash of a key. */
export function hashOf(key) {
  const bytes = new TextEncoder().encode(key);
  const whole = bytes.length - (bytes.length % 4);
  const words = new DataView(bytes.buffer);
  let hash = 0;
  for (let i = 0; i < whole; i += 4) hash = Math.imul(rotated(hash ^ mixed(words.getUint32(i, true)), 13), 5) + 0xe6546b64;
  let rest = 0;
  for (let i = bytes.length - 1; i >= whole; i -= 1) rest = (rest << 8) | bytes[i];
  hash ^= mixed(rest) ^ bytes.length;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) & 0x7fffffff) % KEY_SPACE;
}

function mixed(word) {
  return Math.imul(rotated(Math.imul(word, 0xcc9e2d51), 15), 0x1b873593);
}

function rotated(word, bits) {
  return (word << bits) | (word >>> (32 - bits));
}
