// Numbers, sizes and times as texts.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const stamp = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const NONE = "–";

/** Returns a count with its thousands apart. */
export function count(value) {
  return value == null ? NONE : whole.format(value);
}

/** Returns a count with what it counts. */
export function counted(value, thing) {
  return `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
}

/** Returns a rate, with three digits where it is small. */
export function rate(value) {
  if (value == null) return NONE;
  return value < 1000 ? short.format(value) : whole.format(Math.round(value));
}

/** Returns a size in binary units. */
export function size(value) {
  if (value == null) return NONE;
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? short.format(value) : whole.format(Math.round(value))} ${SIZES[unit]}`;
}

/** Returns a duration in its largest unit. */
export function duration(seconds) {
  if (seconds == null) return NONE;
  for (const [unit, of] of [["d", 86_400], ["h", 3_600], ["min", 60]]) {
    if (seconds >= 2 * of) return `${Math.floor(seconds / of)} ${unit}`;
  }
  return `${seconds < 10 ? short.format(seconds) : Math.floor(seconds)} s`;
}

/** Returns a time of the API as local time. */
export function time(text) {
  return text ? stamp.format(new Date(text)) : NONE;
}

/** Returns how long ago a time was. */
export function age(text, now = Date.now()) {
  return text ? duration(Math.max(0, (now - Date.parse(text)) / 1000)) : NONE;
}

/** Returns a part of the key space as a share of it. */
export function share(low, high) {
  return `${short.format(((high - low) / KEY_SPACE) * 100)}%`;
}

export const KEY_SPACE = 2 ** 31 - 1;
