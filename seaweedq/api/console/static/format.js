// Numbers, sizes and times as texts.

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const UNITS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const stamp = new Intl.DateTimeFormat("en-GB", {
  day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23",
});

export const NONE = "–";

/** Returns a count with its thousands apart. */
export function count(value) {
  return value == null ? NONE : whole.format(value);
}

/** Returns a count with what it counts. */
export function counted(value, thing) {
  return `${count(value)} ${thing}${value === 1 ? "" : "s"}`;
}

/** Returns a rate, with three digits if it is small. */
export function rate(value) {
  if (value == null) return NONE;
  return value < 100 ? short.format(value) : whole.format(Math.round(value));
}

/** Returns a size in binary units. */
export function size(value) {
  if (value == null) return NONE;
  let unit = 0;
  while (value >= 1024 && unit < SIZES.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? rate(value) : whole.format(Math.round(value))} ${SIZES[unit]}`;
}

/** Returns a duration in its largest unit and the one below, rounded down; with `isWhole` in all units. */
export function duration(seconds, isWhole = false) {
  if (seconds == null) return NONE;
  if (seconds < 60) return `${short.format(seconds)} s`;
  const first = UNITS.findIndex(([, of]) => seconds >= of);
  let left = seconds;
  return UNITS.slice(first, isWhole ? undefined : first + 2).map(([unit, of], i, taken) => {
    const part = isWhole && i === taken.length - 1 ? short.format(left) : Math.floor(left / of);
    left %= of;
    return Number(part) ? `${part} ${unit}` : "";
  }).filter(Boolean).join(" ");
}

/** Returns a time of the API as local time, with all digits of its second; or that of milliseconds since 1970. */
export function time(of) {
  if (!of) return NONE;
  const digits = typeof of === "string" && /\.\d{3}(\d+)/.exec(of); // which a Date does not hold
  return stamp.format(new Date(of)) + (digits ? digits[1] : "");
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
