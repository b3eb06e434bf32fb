// Requests to the broker. All of them go through `call`, and their headers come from `headers` alone: what a request
// needs to show who sends it belongs there, and nowhere else. All URLs are relative to the page.

import { parse } from "./json.js";

const TIMEOUT_MS = 15_000;
const SLOW_MS = 120_000; // a deletion answers once all is deleted

let token = ""; // in this page's memory alone: in no cookie, no URL, no storage, so a reload forgets it
let refused = () => {};

/** Returns the headers of every request. */
function headers(more) {
  const shown = token ? { authorization: `Bearer ${token}` } : {};
  return { accept: "application/json", ...shown, ...more };
}

/** Tells whether requests show a token. */
export function hasToken() {
  return token !== "";
}

/** Shows a token with every request from now on, if the broker takes it. Throws Problem, and Error for what is none. */
export async function giveToken(text) {
  if (!/^[!-~]+$/.test(text)) throw new Error("A token has no blanks, and no characters beyond ASCII.");
  token = text;
  try {
    await call("v1/whoami");
  } catch (error) {
    token = "";
    throw error;
  }
}

/** Shows no token any more. */
export function forgetToken() {
  token = "";
}

/** Calls `told` whenever a request gets 401 with what is shown now. */
export function onRefused(told) {
  refused = told;
}

/** An answer that is no success; `status` is 0 if there was no answer. */
export class Problem extends Error {
  constructor(status, document) {
    super(document.detail || document.title || `The broker answered ${status}.`);
    this.status = status;
    this.slug = (document.type || "").split("/").pop();
    this.hint = document.hint || "";
    this.errors = document.errors || [];
  }
}

/** Returns a path whose inserted parts are encoded: path`v1/topics/${name}`. */
export function path(fixed, ...parts) {
  return fixed.reduce((left, text, i) => left + encodeURIComponent(parts[i - 1]) + text);
}

/** Sends a request and returns its document, null if there is none. Throws Problem. `body` is JSON text;
 * with `exact` numbers keep their digits (json.js). */
export async function call(url, { method = "GET", body, signal, exact = false } = {}) {
  const limit = AbortSignal.timeout(method === "DELETE" ? SLOW_MS : TIMEOUT_MS);
  const more = body === undefined ? {} : { "content-type": "application/json" };
  const shown = token;
  let answer, text;
  try {
    answer = await fetch(url, {
      method, body, headers: headers(more), credentials: "same-origin",
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem(0, { detail: limit.aborted ? "The broker has not answered in time." : "The broker does not answer." });
  }
  if (!answer.ok) throw problemOf(answer, text, shown);
  if (!text) return null;
  return exact ? parse(text) : JSON.parse(text);
}

/** Returns what is at a URL as a Blob, however long that takes. Throws Problem. */
export async function bytesOf(url) {
  const shown = token;
  try {
    const answer = await fetch(url, { headers: headers({ accept: "*/*" }), credentials: "same-origin" });
    if (answer.ok) return await answer.blob();
    throw problemOf(answer, await answer.text(), shown);
  } catch (error) {
    if (error instanceof Problem) throw error;
    throw new Problem(0, { detail: "The broker has not sent the whole answer." });
  }
}

/** Returns a list that comes in pages: `all` of it, and those that are `unreadable` for this broker. */
export async function pages(url, name, signal) {
  const found = { all: [], unreadable: [] };
  let next = "";
  do {
    const page = await call(next ? `${url}?page_token=${encodeURIComponent(next)}` : url, { signal });
    found.all.push(...page[name]);
    found.unreadable.push(...(page.unreadable || []));
    next = page.next_page_token;
  } while (next);
  return found;
}

/** Runs `work` over items, `most` at a time, and returns the results in their order. */
export async function gather(items, work, most = 4) {
  const results = new Array(items.length);
  let next = 0;
  const lane = async () => {
    for (let i = next++; i < items.length; i = next++) results[i] = await work(items[i]);
  };
  await Promise.all(Array.from({ length: Math.min(most, items.length) }, lane));
  return results;
}

/** Returns the Problem of an answer. A 401 to a token that was changed meanwhile tells nothing of the new one. */
function problemOf(answer, text, shown) {
  if (answer.status === 401 && shown === token) refused();
  return new Problem(answer.status, documentOf(text));
}

function documentOf(text) {
  try {
    const found = JSON.parse(text);
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}
