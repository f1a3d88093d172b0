// Numbers over time, drawn by uPlot: the history first, then each second as it comes.

import { clock, el, get, nanoseconds, percent, segment, short, text } from "./dom.js";
import { listen, live, row } from "./live.js";

const HEIGHT = 140;
/** Beside an axis there is room for a number; what it counts is in the title. */
const axis_of = (format) => ([percent, nanoseconds].includes(format) ? format : short);
const colours = ["--line-1", "--line-2", "--line-3"];
const SPANS = [["5 minutes", 300], ["15 minutes", 900], ["1 hour", 3600]];
/** How many seconds all charts show. */
let span = 300;

/** The choice of that. */
export function spans() {
  const choice = el("select", null, SPANS.map(([label, seconds]) => el("option", { value: seconds, selected: seconds === span }, label)));
  choice.addEventListener("change", () => { span = Number(choice.value); dispatchEvent(new Event("span")); });
  return el("label", { class: "span" }, el("span", null, "The last"), choice);
}

/**
 * Charts of one row. `charts`: title, format, and series of [label, column of the row]. Ends when the function that it returns is called.
 */
export function charts(place, kind, name, all) {
  let data = null, ended = false, parts = [];
  const stage = el("div", { class: "charts" });
  place.append(stage);
  const place_of = () => {
    const list = { port: live.scene?.ports.map((port) => port.name), core: live.scene?.cores.map(String), tenant: live.scene?.tenants }[kind];
    return list?.indexOf(name) ?? -1;
  };

  function make() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    parts.forEach((part) => part.plot.destroy());
    parts = all.map(({ title, format, series, top }) => {
      const box = el("div", { class: "chart" });
      const heading = el("h4", null, title), now = el("p", { class: "now" });
      const node = el("div", { class: "figure" }, heading, now, box);
      stage.append(node);
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
      const plot = new uPlot({
        width: 300,
        height: HEIGHT,
        ms: 1,
        cursor: { y: false },
        legend: { show: false },
        scales: { x: { time: true }, y: { range: (_, low, high) => [0, top ?? Math.max(high || 0, 1) * 1.1] } },
        axes: [{ ...axis, values: (_, ticks) => ticks.map(clock), space: 80, size: 28 }, { ...axis, size: 62, values: (_, ticks) => ticks.map(axis_of(format)) }],
        series: [{}, ...series.map(([label], at) => ({ label, stroke: colour(colours[at]), width: 1.5, points: { show: false } }))],
      }, [[], ...series.map(() => [])], box);
      const words = series.map(([label], at) => el("span", { class: `key key-${at + 1}` }, label));
      const numbers = series.map(() => el("span"));
      now.append(...words.flatMap((word, at) => [word, " ", numbers[at], " "]));
      return { plot, box, node, numbers, series, format, title };
    });
  }

  function draw() {
    if (!data || ended) return;
    const till = live.paused && live.sample ? live.sample.time : data.times.at(-1) ?? 0;
    const from = data.times.findIndex((time) => time >= till - span * 1000);
    let to = data.times.findIndex((time) => time > till);
    if (to < 0) to = data.times.length;
    const times = from < 0 ? [] : data.times.slice(from, to);
    for (const part of parts) {
      const columns = part.series.map(([, column]) => (from < 0 ? [] : data.columns[column].slice(from, to)));
      const width = Math.max(200, part.box.clientWidth);
      if (part.plot.width !== width) part.plot.setSize({ width, height: HEIGHT });
      part.plot.setData([times, ...columns]);
      part.plot.setScale("x", { min: till - span * 1000, max: till });
      const last = columns.map((column) => column.at(-1));
      part.numbers.forEach((node, at) => text(node, part.format(last[at] ?? null)));
      part.box.setAttribute("role", "img");
      part.box.setAttribute("aria-label", `${part.title} over the last ${span / 60} minutes: ${part.series.map(([label], at) => `${label} ${part.format(last[at] ?? null)} at the end`).join(", ")}`);
    }
  }

  async function load() {
    data = await get(`/api/history?row=${segment(`${kind}:${name}`)}`);
    draw();
  }

  function add() {
    const { sample } = live;
    if (!data || live.paused || !sample || sample.time <= (data.times.at(-1) ?? 0)) return draw();
    // A page that slept asks for what it missed.
    if (sample.time - (data.times.at(-1) ?? 0) > 2500) return load().catch(() => {});
    const numbers = row(kind, place_of());
    data.times.push(sample.time);
    data.columns.forEach((column, at) => column.push(numbers?.[at] ?? null));
    if (data.times.length > 3700) [data.times, ...data.columns].forEach((column) => column.splice(0, 100));
    draw();
  }

  const again = () => { stage.replaceChildren(); make(); draw(); };
  addEventListener("theme", again);
  addEventListener("span", draw);
  const resized = new ResizeObserver(() => draw());
  resized.observe(stage);
  const deaf = listen((what) => { if (what === "sample" || what === "time") add(); });
  make();
  load().catch((error) => stage.prepend(el("p", { class: "error" }, error.message)));
  return () => {
    ended = true;
    removeEventListener("theme", again);
    removeEventListener("span", draw);
    resized.disconnect();
    deaf();
    parts.forEach((part) => part.plot.destroy());
  };
}
