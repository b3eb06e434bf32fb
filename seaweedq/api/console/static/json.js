// JSON whose numbers keep their digits. JavaScript's numbers are floats: 12345678901234567890 and 1.0 would be shown as
// other texts than were published.

const KEPT = "\u0000number:";
// Between its escapes a string is taken at once: one that is taken by characters overflows the stack beyond some MiB.
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Parses JSON; a number that a float would show otherwise is a text that `pretty` knows. */
export function parse(text) {
  return JSON.parse(text.replace(TOKENS, (token) =>
    token[0] === '"' || String(Number(token)) === token ? token : JSON.stringify(KEPT + token)));
}

/** Returns JSON text, indented if `indent` is given. */
export function pretty(value, indent) {
  const text = JSON.stringify(value, null, indent);
  return text === undefined ? "" : text.replace(/"\\u0000number:([^"]*)"/g, "$1");
}

/** Returns why a text is no JSON, with its line; "" where it is. */
export function whyInvalid(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    const at = /position (\d+)/.exec(error.message);
    const line = at ? text.slice(0, Number(at[1])).split("\n").length : 0;
    return line > 1 ? `line ${line}: ${error.message}` : error.message;
  }
}
