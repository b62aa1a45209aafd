// Draws the charts of a page from the figures that stand beside them.
"use strict";
(() => {
  const drawn = new Map(); // by the element: the chart, and how it was drawn
  const DASHES = [[], [6, 4], [2, 3], [10, 4, 2, 4]];
  const HEIGHT = 180;

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function duration(seconds) {
    if (seconds === 0) return "0";
    if (seconds < 1e-3) return `${+(seconds * 1e6).toPrecision(3)} µs`;
    return seconds < 1 ? `${+(seconds * 1e3).toPrecision(3)} ms` : `${+seconds.toPrecision(3)} s`;
  }

  function size(bytes) {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    for (; bytes >= 1000 && unit < units.length - 1; unit++) bytes /= 1000;
    return `${+bytes.toPrecision(3)} ${units[unit]}/s`;
  }

  function rate(value) {
    return `${value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 })}/s`;
  }

  // Seconds are shown where all times are within few minutes.
  function clock(_plot, times) {
    const isFine = times.length > 1 && times[1] - times[0] < 60;
    return times.map((time) => new Date(time * 1000).toISOString().slice(11, isFine ? 19 : 16));
  }

  const SHOW = { rate, bytes: size, duration };

  function options(element, data) {
    const show = (value) => (value === null || value === undefined ? "–" : SHOW[data.unit](value));
    const names = ["--one", "--two", "--three", "--four"];
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    return {
      width: element.clientWidth, height: HEIGHT, legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, values: clock, space: 80 },
        { ...axis, size: 74, values: (_plot, values) => values.map(show) },
      ],
      series: [{}, ...data.series.map((line, n) => ({
        label: line.label, stroke: colour(names[n % names.length]), width: 2,
        dash: DASHES[n % DASHES.length], points: { show: false }, spanGaps: false,
      }))],
      hooks: { setCursor: [(plot) => tell(element, plot, data, show)] },
    };
  }

  // What the lines say where the pointer is.
  function tell(element, plot, data, show) {
    const at = plot.cursor.idx;
    element.title = at === null || at === undefined ? "" :
      [new Date(plot.data[0][at] * 1000).toISOString().slice(11, 19),
        ...data.series.map((line, n) => `${line.label}: ${show(plot.data[n + 1][at])}`)].join("\n");
  }

  function draw(figure) {
    const element = figure.querySelector(".plot"), source = figure.querySelector("script");
    if (!element || !source || !window.uPlot) return;
    const data = JSON.parse(source.textContent);
    const values = [data.times, ...data.series.map((line) => line.values)];
    const known = drawn.get(element);
    if (known && element.contains(known.root)) {
      known.setData(values);
      return;
    }
    const plot = new uPlot(options(element, data), values, element);
    drawn.set(element, plot);
    new ResizeObserver(() => {
      const now = drawn.get(element);
      if (now && element.clientWidth) now.setSize({ width: element.clientWidth, height: HEIGHT });
    }).observe(element);
  }

  function drawAll() {
    for (const element of drawn.keys()) if (!element.isConnected) drawn.delete(element);
    for (const figure of document.querySelectorAll("[data-chart]")) draw(figure);
  }

  function drawAnew() {
    for (const [element, plot] of drawn) {
      plot.destroy();
      drawn.delete(element);
    }
    drawAll();
  }

  document.addEventListener("DOMContentLoaded", drawAll);
  document.addEventListener("htmx:afterSettle", drawAll);
  document.addEventListener("streamd:theme", drawAnew);
})();
