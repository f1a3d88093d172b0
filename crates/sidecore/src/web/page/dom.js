// Elements, numbers with units, and requests. Text becomes text nodes only: what a VMM or a configuration calls itself is
// never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return node;
}

export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Changes a node's text or attribute only if it is another one: most of a page stays as it is from second to second. */
export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}
export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

const STEPS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** A number with three digits or so: 1234567 is 1.23 M. */
export function short(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "– ";
  for (const [step, letter] of STEPS) {
    if (Math.abs(number) >= step) {
      const value = number / step;
      return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${letter}`;
    }
  }
  return `${Math.round(number * 10) / 10} `;
}
const counted = (what) => (number) => `${short(number).replace(/ ?$/, " ")}${what}/s`;
export const frames = counted("frames");
export const requests = counted("requests");
export const bits = (number) => `${short(number)}bit/s`;
export const percent = (ppm) => (ppm === null || ppm === undefined ? "–" : `${(ppm / 1e4).toFixed(ppm < 1e5 ? 1 : 0)} %`);
/** Digits in groups of three. */
export const whole = (number) => (number === undefined || number === null ? "–" : Number(number).toLocaleString("en"));
export function nanoseconds(number) {
  if (number === null || number === undefined) return "–";
  if (number >= 1e9) return `${(number / 1e9).toFixed(1)} s`;
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)} ms`;
  return `${(number / 1e3).toFixed(number < 1e4 ? 1 : 0)} µs`;
}
export function bytes(number) {
  const steps = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];
  const [step, unit] = steps.find(([step]) => number >= step) ?? [1, "bytes"];
  return `${Math.round((number / step) * 10) / 10} ${unit}`;
}
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** A reason such as queue_full as words. */
export const words = (name) => name.replaceAll("_", " ");

export const session = { token: "", write: false, program: "" };

async function answer(response) {
  const kind = response.headers.get("content-type") ?? "";
  const body = kind.includes("json") ? await response.json() : { error: await response.text() };
  if (!response.ok) throw new Error(body.error || `status ${response.status}`);
  return body;
}
export const get = async (path, signal) => answer(await fetch(path, { signal }));
export const post = async (path, body) =>
  answer(await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", "x-sidecore-token": session.token },
    body: JSON.stringify(body),
  }));
export const segment = encodeURIComponent;

/** A table with its head; rows are lists of texts or nodes. Columns whose name begins with > hold numbers. */
export function table(label, heads, rows) {
  const side = heads.map((head) => (head.startsWith(">") ? "number" : undefined));
  const cell = (tag) => (content, at) => el(tag, { class: side[at], scope: tag === "th" ? "col" : undefined }, content ?? "");
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    el("table", null,
      el("caption", null, label),
      el("thead", null, el("tr", null, heads.map((head) => head.replace(">", "")).map(cell("th")))),
      el("tbody", null, rows.map((row) => el("tr", null, row.map(cell("td")))))));
}

/** A labelled field of a form. */
export function field(label, attributes, choices) {
  const input = choices
    ? el("select", attributes, choices.map((choice) => el("option", { value: choice }, choice)))
    : el("input", attributes);
  return { input, node: el("label", null, el("span", null, label), input) };
}
