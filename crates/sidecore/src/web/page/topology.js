// The drawing: each switch, router, group, wire and pipe is a bar with its ports below, each at an edge that carries its rate.
// Ports that join two of them are drawn as ports of the one, with a line to the other.

import { attribute, bits, el, frames, percent, requests, segment, svg, text, words } from "./dom.js";
import { drops, listen, live, row } from "./live.js";

const GAP = 12, STUB = 16, BAR = 30, LANE = 7;
/** How long a drop is shown after its second, in milliseconds. */
const GLOW = 3000;

const inner = (port) => ({ switch: "switch", group: "group", router: "router" })[port.kind];

/** Which bar a port hangs on. */
function hub(port) {
  if (port.group) return `group:${port.group.split("/")[0]}`;
  for (const kind of ["switch", "router", "wire", "pipe"]) if (port[kind]) return `${kind}:${port[kind]}`;
  return "disks:";
}

/** Bars with their ports, in a fixed order: switches, routers, groups, then the rest by name. */
function hubs(scene) {
  const found = new Map();
  const add = (key) => found.get(key) ?? found.set(key, { key, ports: [] }).get(key);
  scene.switches.forEach((it) => add(`switch:${it.name}`));
  scene.routers.forEach((it) => add(`router:${it.name}`));
  scene.groups.forEach((it) => add(`group:${it.name}`));
  const number = (a, b) => a.localeCompare(b, "en", { numeric: true });
  scene.ports
    .map((port, at) => ({ port, at }))
    .sort(({ port: a }, { port: b }) => number(a.group ?? "", b.group ?? "") || Boolean(inner(b)) - Boolean(inner(a)) || number(a.name, b.name))
    .forEach((it) => add(hub(it.port)).ports.push(it));
  const rank = ["switch", "router", "group", "wire", "pipe", "disks"];
  const kind = (it) => rank.indexOf(it.key.split(":")[0]);
  // The switch that is always there is not drawn where nothing hangs on it.
  const shown = [...found.values()].filter((it) => it.ports.length || it.key !== "switch:lan");
  return shown.sort((a, b) => kind(a) - kind(b) || b.ports.length - a.ports.length || a.key.localeCompare(b.key));
}

/** Places of bars and ports for a width: bars side by side where they fit. */
export function layout(scene, width) {
  const all = hubs(scene), many = scene.ports.length > 60;
  const least = (many ? 150 : 190) + STUB + GAP;
  const links = all.flatMap((from) => from.ports
    .filter(({ port }) => inner(port))
    .map(({ port, at }) => ({ at, from: from.key, to: `${inner(port)}:${port.where}` }))
    .filter((link) => all.some((it) => it.key === link.to)));
  const gutter = links.length ? GAP + links.length * LANE : 0;
  const room = Math.max(least, width - gutter - 2);
  const most = Math.max(1, Math.floor((room + GAP) / least));
  const column = Math.floor((room + GAP) / most);
  const card = { w: column - STUB - GAP, h: many ? 38 : 62 };
  const bars = [], shelves = [];
  let x = 0, y = 0, high = 0;
  const channel = () => 14 + links.length * LANE;
  const begin = () => {
    y += high ? high + GAP : 0;
    shelves.push(y);
    y += links.length ? channel() : GAP;
    x = 0;
    high = 0;
  };
  begin();
  for (const { key, ports } of all) {
    const rows = Math.max(1, Math.ceil(ports.length / most));
    const columns = Math.max(1, Math.ceil(ports.length / rows));
    const w = columns * column;
    if (x > 0 && x + w - GAP > room) begin();
    const bar = { key, x: gutter + x, y, w: w - GAP, shelf: shelves.length - 1, ports: [] };
    ports.forEach((it, place) => {
      const px = bar.x + Math.floor(place / rows) * column + STUB;
      const py = y + BAR + GAP + (place % rows) * (card.h + (many ? 5 : GAP));
      bar.ports.push({ ...it, x: px, y: py });
    });
    bars.push(bar);
    high = Math.max(high, BAR + GAP + rows * (card.h + (many ? 5 : GAP)));
    x += w;
  }
  const find = (key) => bars.find((bar) => bar.key === key);
  const ends = new Map();
  const end = (bar) => {
    const used = ends.get(bar.key) ?? 0;
    ends.set(bar.key, used + 1);
    return bar.x + bar.w - 14 - used * LANE * 2;
  };
  const lanes = links.map(({ at, from, to }, lane) => {
    const [a, b] = [find(from), find(to)];
    const [ax, bx, off] = [end(a), end(b), 6 + lane * LANE];
    const [ay, by] = [shelves[a.shelf] + off, shelves[b.shelf] + off];
    const left = GAP / 2 + lane * LANE;
    const middle = a.shelf === b.shelf ? `H${bx}` : `H${left}V${by}H${bx}`;
    return { at, d: `M${ax},${a.y}V${ay}${middle}V${b.y}`, to: { x: bx, y: b.y } };
  });
  return { card, many, bars, lanes, width: Math.max(width, gutter + least), height: y + high + GAP };
}

/** As many letters as fit; a letter is about so many pixels wide. */
const cut = (name, width, letter = 7) => {
  const most = Math.floor(width / letter);
  return name.length > most ? `${name.slice(0, Math.max(1, most - 1))}…` : name;
};

/** Who is at the other end of a port. */
export function who(port) {
  if (inner(port)) return `${inner(port)} ${port.where}`;
  if (port.group) return `member ${port.group.split("/")[1]}${port.vm ? `, ${port.vm}` : ""}`;
  if (port.vm) return port.vm;
  if (["tap", "packet", "xdp"].includes(port.kind)) return `interface ${port.where}`;
  if (port.kind === "vxlan") return `tunnel ${port.where}`;
  return port.peer === "running" ? "a program" : port.peer;
}

export function state(port) {
  if (port.fault || port.peer === "faulted") return "faulted";
  if (port.link === "up") return "up";
  return port.link_wanted === "down" ? "off" : "down";
}

/** The drawing in `place`, until the function that it returns is called. `marks`: the way of a frame, port by port. */
export function topology(place, { marks } = {}) {
  const picture = svg("svg", { class: "topology", role: "group", "aria-label": "Topology" });
  place.append(picture);
  let parts = new Map(), bars = [], glow = new Map(), lanes = new Map(), drawn = 0, shown = marks;

  function draw() {
    const { scene } = live;
    if (!scene) return;
    drawn = place.clientWidth;
    const plan = layout(scene, drawn);
    parts = new Map();
    bars = [];
    lanes = new Map();
    const { card } = plan;
    const nodes = plan.lanes.map((lane) => {
      const line = svg("path", { class: "lane", d: lane.d });
      lanes.set(lane.at, line);
      return svg("g", null, line, svg("circle", { class: "lane-end", cx: lane.to.x, cy: lane.to.y, r: 3 }));
    });
    for (const bar of plan.bars) {
      const [kind, name] = [bar.key.split(":")[0], bar.key.slice(bar.key.indexOf(":") + 1)];
      const sum = svg("text", { class: "sum", x: bar.x + bar.w - 10, y: bar.y + 20, "text-anchor": "end" });
      const title = `${kind} ${name}`.trim();
      const head = svg("text", { class: "head", x: bar.x + 10, y: bar.y + 20 }, cut(title, bar.w - 120, 7.5));
      const columns = new Set(bar.ports.map((port) => port.x));
      const trunks = [...columns].map((x) => {
        const last = Math.max(...bar.ports.filter((port) => port.x === x).map((port) => port.y));
        return svg("path", { class: "trunk", d: `M${x - STUB + 4},${bar.y + BAR}V${last + card.h / 2}` });
      });
      nodes.push(svg("g", { role: "group", "aria-label": title },
        trunks,
        svg("rect", { class: `bar ${kind}`, x: bar.x, y: bar.y, width: bar.w, height: BAR, rx: 6 }),
        head, sum, bar.ports.map((it) => port(it, card, plan.many))));
      bars.push({ sum, ports: bar.ports, wide: bar.w > 400 });
    }
    picture.setAttribute("viewBox", `0 0 ${plan.width} ${plan.height}`);
    picture.setAttribute("width", plan.width);
    picture.setAttribute("height", plan.height);
    const focus = document.activeElement?.dataset?.port;
    picture.replaceChildren(...nodes);
    if (focus) picture.querySelector(`[data-port="${CSS.escape(focus)}"]`)?.focus();
    update();
    mark();
  }

  function port({ port, at, x, y }, card, many) {
    const room = card.w - 34;
    const part = {
      port,
      // What is read aloud, and shown under the pointer.
      title: svg("title"),
      edge: svg("path", { class: "edge", d: `M${x - STUB + 4},${y + card.h / 2}H${x}` }),
      rate: svg("text", { class: "rate", x: x + 10, y: y + card.h - 9 }),
      badge: svg("text", { class: "badge", x: x + card.w - 22, y: y + 17, "text-anchor": "end" }),
      room: card.w - 16,
    };
    const lines = [svg("text", { class: "name", x: x + 10, y: y + (many ? 15 : 18) }, cut(port.name, room, 7.5))];
    if (!many) lines.push(svg("text", { class: "who", x: x + 10, y: y + 35 }, cut(who(port), card.w - 16, 6.6)));
    part.node = svg("a", { href: `#/port/${segment(port.name)}`, "data-port": port.name },
      part.title,
      part.edge,
      svg("rect", { class: "card", x, y, width: card.w, height: card.h, rx: 6 }),
      svg("circle", { class: "dot", cx: x + card.w - 12, cy: y + (many ? 11 : 14), r: 4 }),
      lines, part.rate, part.badge);
    parts.set(at, part);
    return part.node;
  }

  function update() {
    if (!live.sample || !parts.size) return;
    const now = live.sample.time, dropped = drops();
    const unit = (port) => (port.kind === "blk" ? requests : frames);
    for (const [at, part] of parts) {
      const { port } = part, numbers = row("port", at) ?? [];
      const [from, , to] = numbers, own = dropped.get(port.name);
      if (own) glow.set(port.name, { time: now, reason: own.sort((a, b) => b[1] - a[1])[0][0], rate: numbers[4] });
      const drop = glow.get(port.name);
      const lit = drop && now >= drop.time && now - drop.time <= GLOW;
      const traffic = (from ?? 0) + (to ?? 0);
      const classes = ["port", state(port), traffic > 0 ? "busy" : "", lit ? "drop" : "", port.wrong.length ? "wrong" : ""];
      attribute(part.node, "class", classes.filter(Boolean).join(" "));
      // From a hair to ten pixels, by the order of magnitude.
      attribute(part.edge, "stroke-width", String(traffic > 0 ? Math.min(10, 1.5 + Math.log10(1 + traffic) * 1.2).toFixed(1) : 1.5));
      const short = (rate) => unit(port)(rate).replace(/ ?(frames|requests)/, "");
      const rates = state(port) === "up" ? `in ${short(from)}  out ${short(to)}` : { off: "off", down: "no link" }[state(port)] ?? port.fault ?? "faulted";
      text(part.rate, cut(lit ? `${words(drop.reason)}: drops ${short(drop.rate)}` : rates, part.room, 6.4));
      const { name, kind, detail, wrong } = port;
      text(part.title, `${name}, port: ${part.rate.textContent}; ${state(port)}; ${kind} ${port.where}; ${who(port)}; ${detail}`
        + `${wrong.length ? `; wrong: ${wrong.map(words).join(", ")}` : ""}`);
    }
    for (const bar of bars) {
      const sum = bar.ports.reduce((sum, { at }) => sum + (row("port", at)?.[0] ?? 0), 0);
      const rate = bar.ports.reduce((sum, { at }) => sum + (row("port", at)?.[1] ?? 0), 0);
      text(bar.sum, bar.wide ? `${bar.ports.length} ports, ${frames(sum)}, ${bits(rate)}` : bar.ports.length > 1 ? frames(sum) : "");
    }
  }

  function mark() {
    const steps = new Map();
    (shown ?? []).forEach((step, at) => steps.set(step.port, [...(steps.get(step.port) ?? []), at + 1]));
    for (const [at, part] of parts) {
      const own = steps.get(part.port.name);
      part.node.classList.toggle("way", Boolean(own));
      lanes.get(at)?.classList.toggle("way", Boolean(own));
      text(part.badge, own ? own.join(", ") : "");
    }
    picture.classList.toggle("marked", steps.size > 0);
  }

  const resized = new ResizeObserver(() => { if (Math.abs(place.clientWidth - drawn) > 1) draw(); });
  resized.observe(place);
  const deaf = listen((what) => {
    if (what === "scene") draw();
    if (what === "sample") { update(); mark(); }
  });
  draw();
  return {
    mark(steps) { shown = steps; mark(); },
    end() { resized.disconnect(); deaf(); },
  };
}

/** The view. */
export function view(place) {
  const empty = el("p", { class: "note" }, "There are no ports yet: `sidecore add` makes them.");
  const busiest = el("p", { class: "note" });
  const stage = el("div", { class: "stage" });
  place.append(el("h2", null, "Topology"), busiest, empty, stage);
  const drawing = topology(stage);
  const note = () => {
    empty.hidden = !live.scene || live.scene.ports.length > 0;
    if (!live.scene || !live.sample) return;
    const cores = live.scene.cores.map((number, at) => `I/O core ${number} ${percent(row("core", at)?.[0])} busy`);
    const down = live.scene.ports.filter((port) => state(port) === "down" || state(port) === "faulted").length;
    const wrong = live.scene.ports.filter((port) => port.wrong.length).length;
    const lost = live.sample.drops.reduce((sum, [, , count]) => sum + count, 0);
    text(busiest, [`${live.scene.ports.length} ports`, `${down} without link`, `${wrong} with something wrong`, `${frames(lost).replace("frames", "drops")}`, ...cores].join("; "));
  };
  const deaf = listen((what) => { if (what === "scene" || what === "sample") note(); });
  note();
  return () => { deaf(); drawing.end(); };
}
