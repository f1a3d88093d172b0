// Why a frame goes where it goes: `explain` and `trace`, with the way on the topology.

import { el, field, get, post, segment, table, text, words } from "./dom.js";
import { live } from "./live.js";
import { topology } from "./topology.js";

const DOES = { pass: "passes", out: "leaves by it", route: "comes to its router", group: "is for a member of its group", drop: "is dropped" };

export function view(place) {
  const ports = () => live.scene?.ports.filter((port) => port.kind !== "blk").map((port) => port.name) ?? [];
  const routers = () => live.scene?.routers.map((router) => router.name) ?? [];
  const result = el("div", { "aria-live": "polite" }), stage = el("div", { class: "stage" });
  let stop = new AbortController();

  const say = (node, way) => { result.replaceChildren(node); drawing.mark(way); };
  const form = (title, note, fields, label, act) => {
    const node = el("form", { class: "ask", onsubmit: async (event) => {
      event.preventDefault();
      stop.abort();
      stop = new AbortController();
      try {
        await act(stop.signal);
      } catch (error) {
        if (error.name !== "AbortError") say(el("p", { class: "error" }, error.message), []);
      }
    } }, el("h3", null, title), el("p", { class: "note" }, note), el("div", { class: "row" }, fields.map((it) => it.node), el("button", { type: "submit" }, label)));
    return node;
  };

  const from = field("Comes in by port", { name: "from" }, ports());
  const frame = field("Frame", { name: "frame", required: true, class: "long",
    value: "dst-mac=ff:ff:ff:ff:ff:ff src-mac=02:00:00:00:00:01 src=10.0.0.1 dst=10.0.0.2 proto=udp dport=53" });
  const explain = form("Explain a frame", "Nothing is sent. Fields: src-mac, dst-mac, vlan, type, src, dst, proto, sport, dport, icmp, flags, len; or hexadecimal digits.",
    [from, frame], "Explain", async () => {
      const { steps } = await post(`/api/explain/${segment(from.input.value)}`, { what: frame.input.value });
      const routed = (it) => (it ? ` ${it.action}${it.why ? `: ${words(it.why)}` : ""}${it.route ? `, route ${it.route.prefix}` : ""}` : "");
      const rows = steps.map((step, at) => [`${at + 1}`, step.port, `${DOES[step.action] ?? step.action}${routed(step.routed)}`, [step.why && words(step.why), step.about].filter(Boolean).join("; ")]);
      say(table("What becomes of the frame", ["step", "port", "what", "why"], rows), steps);
    });

  const router = field("Router", { name: "router" }, routers());
  const to = field("Address", { name: "to", required: true, placeholder: "10.1.2.3" });
  const lookup = form("Explain a route", "What a router does with a packet for an address.", [router, to], "Explain", async () => {
    const it = await get(`/api/v1/routers/${segment(router.input.value)}/explain?to=${segment(to.input.value.trim())}`);
    const hops = (it.hops ?? []).map((hop) => [hop.gateway ?? "", hop.port ?? "", hop.mac ?? "", hop.state ?? ""]);
    say(el("div", null,
      el("p", null, `Packets for ${it.to}: ${it.action}${it.why ? `, ${words(it.why)}` : ""}${it.route ? `, by route ${it.route.prefix} (${it.route.origin})` : ""}`),
      hops.length ? table("Next hops", ["gateway", "port", "station", "state"], hops) : null), (it.hops ?? []).filter((hop) => hop.port));
  });

  const by = field("Port", { name: "by" }, ports());
  const many = field("Frames", { type: "number", min: 1, max: 100, value: 3 });
  const filter = field("Filter, as tcpdump's", { name: "filter", placeholder: "icmp or arp" });
  const trace = form("Trace the next frames of a port", "Waits 30 seconds at most.", [by, many, filter], "Trace", async (signal) => {
    const waiting = el("p", { class: "note" }, "Waiting for frames."), list = el("div");
    say(el("div", null, waiting, list), []);
    const query = `next=${many.input.value || 1}&filter=${segment(filter.input.value)}`;
    const response = await fetch(`/api/trace/${segment(by.input.value)}?${query}`, { signal });
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", seen = 0;
    for (;;) {
      const { value, done } = await reader.read();
      rest += value ?? "";
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines.filter(Boolean)) {
        const it = JSON.parse(line);
        if (it.error) throw new Error(it.error);
        seen += 1;
        const rows = it.steps.map((step, at) => [`${at + 1}`, step.port, step.direction, `${(step.after_ns / 1000).toFixed(1)} µs`, step.dropped ? `dropped: ${words(step.dropped)}` : ""]);
        const show = () => drawing.mark(it.steps);
        list.append(el("div", { class: "traced" }, table(`${it.number}: ${it.frame}`, ["step", "port", "way", ">after", "dropped"], rows),
          el("button", { type: "button", onclick: show }, `Show the way of frame ${it.number}`)));
        show();
      }
      if (done) break;
    }
    text(waiting, seen ? `${seen} frames` : "No frame came in by it.");
  });

  place.append(el("h2", null, "Why"), el("div", { class: "columns" }, explain, trace, routers().length ? lookup : null), result, stage);
  const drawing = topology(stage);
  return () => { stop.abort(); drawing.end(); };
}
