// A line over time. uPlot draws it on a canvas; its values are in the text beside it, too.

import { html, onTheme, useEffect, useRef } from "./ui.js";

const HEIGHT = 180;
const LEAST_S = 60; // of time, on the axis
const TIME_PX = 80; // between two times, so that they do not touch
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

/** `data` is [seconds since 1970, values]. */
export function Chart({ data, label }) {
  const box = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const place = box.current; // which is no more in `box` when this ends
    const make = () => {
      plot.current?.destroy();
      plot.current = new window.uPlot(options(place, label), data, place);
    };
    const fit = new ResizeObserver(() => plot.current?.setSize({ width: place.clientWidth, height: HEIGHT }));
    const forget = onTheme(make);
    make();
    fit.observe(place);
    return () => {
      fit.disconnect();
      forget();
      plot.current.destroy();
    };
  }, []);
  useEffect(() => plot.current.setData(data), [data]);
  return html`<div ref=${box} class="chart" role="img" aria-label=${label}></div>`;
}

function options(place, label) {
  const style = getComputedStyle(place);
  const [text, line, accent] = ["--pico-color", "--pico-muted-border-color", "--accent"].map((one) => style.getPropertyValue(one).trim());
  const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  return {
    width: place.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    scales: { x: { range: shown }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.1 : 1] } },
    axes: [{ ...axis, space: TIME_PX, values: (_, times) => times.map((one) => clock.format(one * 1000)) }, { ...axis, size: 60 }],
    series: [{}, { label, stroke: accent, width: 2, value: (_, value) => (value == null ? "–" : value.toFixed(1)) }],
  };
}

function shown(plot) {
  const times = plot.data[0];
  const newest = times.at(-1) ?? Date.now() / 1000;
  return [Math.min(times[0] ?? newest, newest - LEAST_S), newest];
}
