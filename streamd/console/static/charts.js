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

  // A spike would press all else flat: the scale ends above what 95 of 100 values reach, where the
  // highest one is far beyond; how high that is stands in the drawing.
  const FAR = 3;

  function ceiling(plot) {
    let most = 0, usual = 0;
    for (const values of plot.data.slice(1)) {
      const known = values.filter((value) => value !== null).sort((a, b) => a - b);
      if (!known.length) continue;
      most = Math.max(most, known[known.length - 1]);
      usual = Math.max(usual, known[Math.ceil((known.length - 1) * 0.95)]);
    }
    return usual > 0 && most > FAR * usual ? usual * 1.5 : most * 1.1 || 1;
  }

  function markSpikes(plot, show) {
    const top = plot.scales.y.max, { ctx, bbox } = plot, scale = devicePixelRatio;
    let best = null;
    ctx.save();
    ctx.fillStyle = colour("--text");
    plot.data.slice(1).forEach((values) => values.forEach((value, n) => {
      if (value === null || value <= top) return;
      const x = plot.valToPos(plot.data[0][n], "x", true), y = bbox.top - 10 * scale;
      if (!best || value > best.value) best = { value, x };
      ctx.beginPath();
      ctx.moveTo(x, y);
      ctx.lineTo(x - 5 * scale, y + 8 * scale);
      ctx.lineTo(x + 5 * scale, y + 8 * scale);
      ctx.fill();
    }));
    if (best) {
      const isRight = best.x > bbox.left + bbox.width / 2;
      const text = show(best.value), x = best.x + (isRight ? -8 : 8) * scale;
      ctx.font = `${12 * scale}px system-ui, sans-serif`;
      ctx.textAlign = isRight ? "right" : "left";
      const width = ctx.measureText(text).width;
      ctx.clearRect(isRight ? x - width : x, bbox.top - 14 * scale, width, 13 * scale);
      ctx.fillText(text, x, bbox.top - 2 * scale);
    }
    ctx.restore();
  }

  function options(element, data) {
    const show = (value) => (value === null || value === undefined ? "–" : SHOW[data.unit](value));
    const names = ["--one", "--two", "--three", "--four"];
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 },
      ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    return {
      width: element.clientWidth, height: HEIGHT, legend: { show: false },
      padding: [18, null, null, null],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { y: { range: (plot) => [0, ceiling(plot)] } },
      axes: [
        { ...axis, values: clock, space: 80 },
        { ...axis, size: 74, values: (_plot, values) => values.map(show) },
      ],
      series: [{}, ...data.series.map((line, n) => ({
        label: line.label, stroke: colour(names[n % names.length]), width: 2,
        dash: DASHES[n % DASHES.length], points: { show: false }, spanGaps: false,
      }))],
      hooks: {
        setCursor: [(plot) => tell(element, plot, show)],
        draw: [(plot) => markSpikes(plot, show)],
      },
    };
  }

  // Above the chart stand the latest values, and those where the pointer is while there is one.
  function tell(element, plot, show) {
    const at = plot.cursor.idx, head = element.closest("[data-chart]").querySelector(".latest");
    const isOver = at !== null && at !== undefined && plot.cursor.left >= 0;
    const texts = [...plot.data.slice(1).map((values) => show(values[at])),
      isOver ? `at ${new Date(plot.data[0][at] * 1000).toISOString().slice(11, 19)}` : ""];
    head.querySelectorAll("strong, .at").forEach((place, n) => {
      place.dataset.latest ??= place.textContent;
      place.textContent = isOver ? texts[n] : place.dataset.latest;
    });
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
