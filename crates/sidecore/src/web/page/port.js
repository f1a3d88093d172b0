// The page of a port: what is wrong, numbers over time, queues, disks, its share, its VMM; capture, and with --write changes.

import { bits, bytes, el, field, frames, get, nanoseconds, percent, post, requests, segment, session, table, text, whole, words } from "./dom.js";
import { charts, spans } from "./chart.js";
import { listen, live } from "./live.js";
import { state, who } from "./topology.js";

const EVERY = 2000;

function list(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return el("dl", null, shown.flatMap(([name, value]) => [el("dt", null, name), el("dd", null, value)]));
}

function diagnosis({ checks }) {
  return el("ul", { class: "checks" }, checks.map((check) => {
    const grade = check.wrong ? "wrong" : check.name ? "note" : "fine";
    return el("li", { class: grade }, el("strong", null, `${check.about}: ${grade}`), ` ${check.text}`,
      check.mend && el("span", { class: "mend" }, "To mend it: ", el("code", null, check.mend)));
  }));
}

function counters({ counters }) {
  const { drops, ...rest } = counters;
  const rows = Object.entries(rest).map(([name, value]) => [words(name), whole(value)]);
  return table("Counters since the port was made", ["counter", ">number"], rows);
}

function lost({ counters, state }) {
  const last = state.flow?.last_drop_ms ?? {};
  const ago = (ms) => (ms === undefined ? "" : `${whole(Math.round(ms / 1000))} s ago`);
  const rows = Object.entries(counters.drops).map(([reason, count]) => [words(reason), whole(count), ago(last[reason])]);
  return rows.length ? table("Dropped frames", ["reason", ">frames", ">last"], rows) : el("p", { class: "note" }, "It has dropped no frame.");
}

function queues(all) {
  const rows = all.map((queue) => [
    `${queue.direction} ${queue.index}`, queue.state, queue.kind, whole(queue.size), queue.served ? `core ${queue.served.core}, ${queue.served.heat}` : "",
    queue.served ? nanoseconds(queue.served.wait_p50_ns) : "", queue.served ? nanoseconds(queue.served.wait_p99_ns) : "",
    queue.served ? whole(queue.served.items) : "",
  ]);
  return rows.length ? table("Queues now", ["queue", "state", "kind", ">entries", "served by", ">wait p50", ">wait p99", ">frames"], rows)
    : el("p", { class: "note" }, "It has no queues now.");
}

function disk(it) {
  const latency = (of) => `${nanoseconds(of.p50_ns)}, ${nanoseconds(of.p99_ns)}`;
  return el("section", null, el("h3", null, "Disk"), list([
    ["file", it.file], ["medium", it.medium], ["access", it.access], ["capacity", bytes(it.capacity)], ["cache", it.cache],
    ["requests in flight", whole(it.in_flight)], ["reads", `${whole(it.reads)}, ${bytes(it.read_bytes)}`],
    ["writes", `${whole(it.writes)}, ${bytes(it.written_bytes)}`], ["flushes", whole(it.flushes)],
    ["latency of reads, p50 and p99", latency(it.read_latency)], ["latency of writes", latency(it.write_latency)],
    ["errors", Object.entries(it.errors).map(([why, count]) => `${words(why)} ${whole(count)}`).join(", ")],
  ]));
}

function facts({ state: now }, standing) {
  const joint = ["switch", "router", "wire", "pipe", "group"].filter((kind) => now[kind]).map((kind) => `${kind} ${now[kind]}`);
  const { service } = now;
  const granted = service?.granted_ppm ? `${percent(service.granted_ppm)} of an I/O core in each ${nanoseconds(service.period_ns)}` : "by its weight";
  return list([
    ["kind", now.kind], ["where", now.where], ["joined to", joint.join(", ")],
    ["link", `${now.link}${now.link_wanted === "down" ? ", as configured" : ""}`], ["peer", now.peer], ["detail", now.detail], ["fault", now.fault],
    ["VMM", standing?.vm && `${standing.vm}, process ${now.pid}`], ["MTU", now.mtu && `${whole(now.mtu)} bytes`],
    ["memory of the VMM", now.memory?.mappings ? `${whole(now.memory.mappings)} mappings` : undefined],
    ["features", now.features?.join(", ")], ["tenant", now.tenant],
    ["granted", service && `${granted}; weight ${service.weight}, class ${service.class}`],
    ["used", service && `${percent(service.used_ppm)} of an I/O core${service.throttled_ppm ? `; held back ${percent(service.throttled_ppm)} of the time` : ""}`],
    ["most frames", service?.rate && frames(service.rate)], ["most bits", service?.bit_rate && bits(service.bit_rate)],
    ["hint", now.hint],
    ["options", Object.entries(now.options ?? {}).map(([key, value]) => `${key}=${value}`).join(" ")],
  ]);
}

function changes(name, standing, refresh) {
  const said = el("p", { role: "status" });
  const act = async (path, body) => {
    try {
      const { changes } = await post(path, body);
      text(said, changes.length ? changes.map((it) => `${it.verb} ${it.what} ${it.name}${it.details.length ? `: ${it.details.join(", ")}` : ""}`).join("; ") : "It is so already.");
      refresh();
    } catch (error) {
      text(said, error.message);
    }
  };
  const set = (values) => act(`/api/set/${segment(name)}`, values);
  const key = field("Key", { name: "key", required: true, placeholder: "mtu" });
  const value = field("Value (none: the default)", { name: "value", placeholder: "9000" });
  const form = el("form", { class: "row", onsubmit: (event) => {
    event.preventDefault();
    set({ [key.input.value.trim()]: value.input.value.trim() || null });
  } }, key.node, value.node, el("button", { type: "submit" }, "Set"));
  const button = (label, click) => el("button", { type: "button", onclick: click }, label);
  const member = standing?.group;
  return el("section", { class: "changes" }, el("h3", null, "Change"),
    el("div", { class: "row" }, button("Link up", () => set({ link: "up" })), button("Link down", () => set({ link: "down" })),
      member && button(`Drain ${member}`, () => act(`/api/drain/${member}`, { drain: true })),
      member && button(`Undrain ${member}`, () => act(`/api/drain/${member}`, { drain: false }))),
    form, said);
}

function capture(name) {
  const seconds = field("Seconds", { type: "number", min: 1, max: 600, value: 10 });
  const link = el("a", { class: "button", download: `${name}.pcapng` }, "Capture its frames");
  const aim = () => link.setAttribute("href", `/api/capture/${segment(name)}?seconds=${Number(seconds.input.value) || 10}`);
  seconds.input.addEventListener("input", aim);
  aim();
  return el("section", null, el("h3", null, "Capture"),
    el("div", { class: "row" }, seconds.node, link), el("p", { class: "note" }, "A pcapng file, which Wireshark and tcpdump read. Dropped frames have the reason in a comment."));
}

export function view(place, name) {
  const standing = () => live.scene?.ports.find((port) => port.name === name);
  const first = standing();
  const disks = first?.kind === "blk";
  const line = el("p", { class: "note" });
  const parts = Object.fromEntries(["doctor", "facts", "lost", "counters", "queues", "disk"].map((part) => [part, el("div")]));
  const section = (title, part) => el("section", null, el("h3", null, title), part);
  const wide = el("section", { class: "wide" }, el("h3", null, "Over time"), spans());
  const failed = el("p", { class: "error" });
  failed.hidden = true;
  place.append(el("p", null, el("a", { href: "#/" }, "Topology")), el("h2", null, `Port ${name}`), line, failed);
  const deeds = el("div", { class: "stack" }, capture(name));
  const columns = el("div", { class: "columns" }, section("Diagnosis", parts.doctor), section("What it is", parts.facts), deeds, wide,
    el("section", { class: "wide" }, el("h3", null, "Queues"), parts.queues), section("Counters", parts.counters), section("Dropped", parts.lost), parts.disk);
  place.append(columns);
  let ended = false, timer, asked = new AbortController();

  async function refresh() {
    clearTimeout(timer);
    const at = segment(name), { signal } = asked;
    try {
      const [one, found, all, disks] = await Promise.all([
        get(`/api/v1/ports/${at}`, signal), get(`/api/doctor/${at}`, signal).catch((error) => ({ checks: [{ about: "doctor", wrong: false, name: "unknown", text: error.message }] })),
        get("/api/v1/queues", signal), get("/api/v1/disks", signal),
      ]);
      if (ended) return;
      failed.hidden = true;
      const own = disks.disks.find((disk) => disk.port === name);
      put("doctor", diagnosis(found ?? { checks: [] }));
      put("facts", facts(one, standing()));
      put("lost", lost(one));
      put("counters", counters(one));
      put("queues", queues(all.queues.filter((queue) => queue.port === name)));
      if (own) put("disk", disk(own));
    } catch (error) {
      if (ended) return;
      failed.hidden = false;
      text(failed, `What is below is not of now: ${error.message}`);
    }
    timer = setTimeout(refresh, EVERY);
  }

  /** Only what changed is put anew, so that what somebody has selected, or has the focus, stays. */
  function put(part, node) {
    if (!parts[part].firstChild || !parts[part].firstChild.isEqualNode(node)) parts[part].replaceChildren(node);
  }

  function note() {
    const port = standing();
    text(line, port ? `${who(port)}; ${state(port)}${live.paused ? "; tables are of now, charts end at the time shown" : ""}` : "There is no port of this name now.");
  }

  if (session.write) deeds.append(changes(name, first, refresh));
  const rate = disks ? requests : frames;
  const [into, out] = disks ? ["writes", "reads"] : ["in, from it", "out, to it"];
  const end = charts(wide, "port", name, [
    { title: disks ? "Requests a second" : "Frames a second", format: rate, series: [[into, 0], [out, 2]] },
    { title: "Bits a second", format: bits, series: [[into, 1], [out, 3]] },
    { title: disks ? "Errors a second" : "Drops a second", format: rate, series: [[disks ? "failed" : "dropped", 4]] },
    { title: "Share of an I/O core", format: percent, series: [["used", 5]] },
    { title: "Wait of its slowest queue", format: nanoseconds, series: [["p99", 6]] },
  ]);
  const deaf = listen((what) => { if (what !== "event") note(); });
  note();
  refresh();
  return () => { ended = true; clearTimeout(timer); asked.abort(); end(); deaf(); };
}
