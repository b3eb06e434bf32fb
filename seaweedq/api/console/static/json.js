// JSON whose numbers keep their digits. JavaScript's numbers are floats: 12345678901234567890 and 1.0 would be shown as
// other texts than were published.

const KEPT = "\u0000number:";
const NUMBERS = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/** Parses JSON; a number that a float would show otherwise is a text that `pretty` knows. */
export function parse(text) {
  const pieces = [];
  let at = 0;
  while (at < text.length) {
    const begin = found(text, at);
    pieces.push(text.slice(at, begin).replace(NUMBERS, (one) => String(Number(one)) === one ? one : JSON.stringify(KEPT + one)));
    at = endOfString(text, begin);
    pieces.push(text.slice(begin, at));
  }
  return JSON.parse(pieces.join(""));
}

function found(text, at) {
  const quote = text.indexOf('"', at);
  return quote < 0 ? text.length : quote;
}

/** Returns where the string ends whose quote is at `begin`. A pattern would overflow the stack at a million escapes. */
function endOfString(text, begin) {
  let quote = begin;
  for (let escapes = 1; escapes % 2; ) {
    quote = found(text, quote + 1);
    for (escapes = 0; text[quote - 1 - escapes] === "\\"; escapes += 1);
    if (quote === text.length) break;
  }
  return quote + 1;
}

/** Returns JSON text, indented if `indent` is given. */
export function pretty(value, indent) {
  const text = JSON.stringify(value, null, indent);
  return text === undefined ? "" : text.replace(/"\\u0000number:([^"]*)"/g, "$1");
}

/** Returns why a text is no JSON, with its line; "" if it is. */
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
