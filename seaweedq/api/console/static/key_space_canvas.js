// Draws the key space over time on a canvas: lives of segments, cells by rate, changes, hot keys, axes.

import { KEY_SPACE } from "./format.js";
import { colourOf, shadeOf, sharesOf, timesOf } from "./key_space_view.js";

const FONT = "12px system-ui, sans-serif";
const LEAST_PX = 4; // of a segment, below which its edge would hide it
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const minutes = new Intl.DateTimeFormat("en-GB", { timeStyle: "short" });

/** The room around the plane. */
export function roomOf(width) {
  return { left: width < 500 ? 42 : 48, right: 8, top: 14, bottom: 24 };
}

/** Returns where places of the plane are on a canvas of this size, and back. */
export function projection(part, width, height) {
  const room = roomOf(width);
  const [w, h] = [Math.max(1, width - room.left - room.right), Math.max(1, height - room.top - room.bottom)];
  const [ms, keys] = [part.until - part.since, part.high - part.low];
  return {
    room, w, h,
    x: (time) => room.left + ((time - part.since) / ms) * w,
    y: (key) => room.top + h - ((key - part.low) / keys) * h,
    placeOf: (x, y) => ({
      time: part.since + (Math.max(0, Math.min(w, x - room.left)) / w) * ms,
      key: Math.min(KEY_SPACE - 1, Math.floor(part.low + (1 - Math.max(0, Math.min(h, y - room.top)) / h) * keys)),
    }),
  };
}

/** Returns the colours of the page, as they are now. */
export function coloursOf(place) {
  const style = getComputedStyle(place);
  const [text, line, idle, bad, back] = ["--pico-color", "--pico-muted-border-color", "--mark-back", "--bad", "--pico-background-color"].map((one) => style.getPropertyValue(one).trim());
  const [r, g, b] = (style.color.match(/[0-9.]+/g) || [0, 0, 0]).map(Number);
  return { text, line, idle, bad, back, isDark: r + g + b > 384 };
}

/** Makes a canvas as large as its place, at the screen's resolution; returns what draws on it. */
export function fitted(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const draw = canvas.getContext("2d");
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  return draw;
}

/** Draws all but the pointer. */
export function paint(draw, size, part, { lives, boxes, changes, begin, scale }, colours) {
  const on = projection(part, size.width, size.height);
  draw.clearRect(0, 0, size.width, size.height);
  draw.save();
  draw.beginPath();
  draw.rect(on.room.left, on.room.top, on.w, on.h);
  draw.clip();
  draw.fillStyle = colours.idle;
  for (const one of onPixels(on, lives, scale)) draw.fillRect(one.x, one.y, one.w, one.h);
  for (const [shade, several] of byShade(onPixels(on, boxes, scale))) {
    draw.fillStyle = colourOf(shade, colours.isDark);
    for (const one of several) draw.fillRect(one.x, one.y, one.w, one.h);
  }
  edges(draw, on, lives, colours);
  unknown(draw, on, begin, colours);
  drawChanges(draw, on, changes, colours);
  for (const one of boxes) if (one.hot_key) hot(draw, on, one, colours);
  draw.restore();
  axes(draw, on, part, size, colours);
}

/** Returns whole pixels, so that neighbours leave no seam; of those that would lie on the same row the most, once. */
function onPixels(on, boxes, scale) {
  const [found, thin] = [[], new Map()];
  for (const one of boxes) {
    const [x, y] = [Math.round(on.x(one.since)), Math.round(on.y(one.high))];
    const [w, h] = [Math.max(1, Math.round(on.x(one.until)) - x), Math.max(1, Math.round(on.y(one.low)) - y)];
    if (x + w < on.room.left || x > on.room.left + on.w || y + h < on.room.top || y > on.room.top + on.h) continue;
    const shade = one.rate === undefined ? 0 : shadeOf(one.rate, scale);
    const key = (x * 8192 + y) * 8192 + w;
    const same = h === 1 ? thin.get(key) : undefined;
    if (same) {
      same.shade = Math.max(same.shade, shade);
      continue;
    }
    const rectangle = { x, y, w, h, shade };
    found.push(rectangle);
    if (h === 1) thin.set(key, rectangle);
  }
  return found;
}

function byShade(rectangles) {
  const found = new Map();
  for (const one of rectangles) {
    const several = found.get(one.shade);
    if (several) several.push(one);
    else found.set(one.shade, [one]);
  }
  return found;
}

function edges(draw, on, lives, colours) {
  draw.strokeStyle = colours.back;
  draw.lineWidth = 1;
  draw.beginPath();
  for (const one of lives) {
    const [top, bottom] = [on.y(one.high), on.y(one.low)];
    if (bottom - top < LEAST_PX || bottom < on.room.top || top > on.room.top + on.h) continue;
    const y = Math.round(top) + 0.5;
    draw.moveTo(on.x(one.since), y);
    draw.lineTo(on.x(one.until), y);
  }
  draw.stroke();
}

/** Before the leader began to record, nobody knows what came in: hatched. */
function unknown(draw, on, begin, colours) {
  const right = Math.min(on.x(begin), on.room.left + on.w);
  if (right <= on.room.left) return;
  draw.save();
  draw.beginPath();
  draw.rect(on.room.left, on.room.top, right - on.room.left, on.h);
  draw.clip();
  draw.strokeStyle = colours.line;
  draw.beginPath();
  for (let x = on.room.left - on.h; x < right; x += 8) {
    draw.moveTo(x, on.room.top + on.h);
    draw.lineTo(x + on.h, on.room.top);
  }
  draw.stroke();
  draw.restore();
}

/** Changes: a line where each happened, over its range, with a mark that opens to the side with more segments. */
function drawChanges(draw, on, changes, colours) {
  const seen = changes.map((one) => ({ ...one, x: Math.round(on.x(one.time)) + 0.5, top: on.y(one.high), bottom: on.y(one.low) }))
    .filter((one) => one.x >= on.room.left && one.x <= on.room.left + on.w && one.bottom >= on.room.top && one.top <= on.room.top + on.h);
  draw.beginPath();
  for (const one of seen) {
    draw.moveTo(one.x, one.top);
    draw.lineTo(one.x, one.bottom);
  }
  for (const [colour, width] of [[colours.back, 4], [colours.text, 1.5]]) {
    draw.strokeStyle = colour;
    draw.lineWidth = width;
    draw.stroke();
  }
  draw.beginPath();
  for (const one of seen) if (one.bottom - one.top >= 2 * LEAST_PX) mark(draw, one);
  draw.fillStyle = colours.text;
  draw.strokeStyle = colours.back;
  draw.stroke();
  draw.fill();
}

function mark(draw, { x, top, bottom, sealed, successors }) {
  const way = Math.sign(successors.length - sealed.length);
  const y = (top + bottom) / 2;
  if (way === 0) {
    draw.moveTo(x + 4, y);
    draw.arc(x, y, 4, 0, 7);
    return;
  }
  draw.moveTo(x - way * 5, y);
  draw.lineTo(x + way * 5, y - 6);
  draw.lineTo(x + way * 5, y + 6);
  draw.closePath();
}

/** A hot key: a dashed line at its hash. */
function hot(draw, on, one, colours) {
  const y = Math.round(on.y(one.hot_key.hash)) + 0.5;
  for (const [colour, width, dash] of [[colours.back, 5, []], [colours.bad, 3, [6, 3]]]) {
    draw.strokeStyle = colour;
    draw.lineWidth = width;
    draw.setLineDash(dash);
    draw.beginPath();
    draw.moveTo(on.x(one.since), y);
    draw.lineTo(on.x(one.until), y);
    draw.stroke();
  }
  draw.setLineDash([]);
}

function axes(draw, on, part, size, colours) {
  draw.fillStyle = colours.text;
  draw.font = FONT;
  draw.textBaseline = "middle";
  draw.textAlign = "right";
  for (const share of sharesOf(part, on.h / 50)) {
    draw.fillText(`${Number(share.toFixed(3))}%`, on.room.left - 5, Math.max(8, on.y((share / 100) * KEY_SPACE)));
  }
  draw.textBaseline = "alphabetic";
  draw.textAlign = "center";
  const times = timesOf(part, on.w / 80);
  const format = times.some((one) => one % 60_000) ? clock : minutes;
  for (const time of times) {
    const x = on.x(time);
    if (x < on.room.left + 15 || x > size.width - 22) continue;
    draw.fillText(format.format(time), x, size.height - 6);
    draw.fillRect(Math.round(x), on.room.top + on.h, 1, 4);
  }
}

/** Draws the pointer: a cross, the box that it is in, and the part that a drag chooses. */
export function point(draw, size, part, at, box, drag, colours) {
  const on = projection(part, size.width, size.height);
  draw.clearRect(0, 0, size.width, size.height);
  draw.strokeStyle = colours.text;
  draw.lineWidth = 1;
  if (at) {
    const [x, y] = [Math.round(on.x(at.time)) + 0.5, Math.round(on.y(at.key)) + 0.5];
    draw.setLineDash([2, 3]);
    draw.beginPath();
    draw.moveTo(x, on.room.top);
    draw.lineTo(x, on.room.top + on.h);
    draw.moveTo(on.room.left, y);
    draw.lineTo(on.room.left + on.w, y);
    draw.stroke();
    draw.setLineDash([]);
  }
  if (box) framed(draw, on, box, colours);
  if (drag) draw.strokeRect(Math.min(drag.x, drag.toX), Math.min(drag.y, drag.toY), Math.abs(drag.toX - drag.x), Math.abs(drag.toY - drag.y));
}

function framed(draw, on, box, colours) {
  const [left, right] = [Math.max(on.x(box.since), on.room.left), Math.min(on.x(box.until), on.room.left + on.w)];
  const [top, bottom] = [Math.max(on.y(box.high), on.room.top), Math.min(on.y(box.low), on.room.top + on.h)];
  for (const [colour, width] of [[colours.back, 4], [colours.text, 2]]) {
    draw.strokeStyle = colour;
    draw.lineWidth = width;
    draw.strokeRect(left, top, Math.max(1, right - left), Math.max(1, bottom - top));
  }
}
