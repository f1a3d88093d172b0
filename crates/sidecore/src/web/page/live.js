// What the page's process tells as it comes, and what it was earlier.

import { get } from "./dom.js";

const listeners = new Set();

export const live = {
  /** How it stands: state, text. */
  status: { state: "starting", text: "" },
  /** What is shown: that of now, or of the time to which the page was turned back. */
  scene: null,
  sample: null,
  /** The oldest time there is, and the newest. */
  first: 0,
  last: 0,
  events: [],
  paused: false,
};

let newest = { scene: null, sample: null };

/** Calls `tell` with what changed ("status", "scene", "sample", "event", "time"), until the function that it returns is called. */
export function listen(tell) {
  listeners.add(tell);
  return () => listeners.delete(tell);
}

function told(what) {
  for (const tell of [...listeners]) tell(what);
}

function show({ scene, sample }) {
  const other = live.scene !== scene;
  live.scene = scene;
  live.sample = sample;
  if (other) told("scene");
  told("sample");
}

function status(value) {
  live.status = value;
  told("status");
}

export function connect() {
  const source = new EventSource("/api/live");
  const on = (name, act) => source.addEventListener(name, (event) => act(JSON.parse(event.data)));
  on("status", status);
  on("scene", (scene) => { newest = { scene, sample: null }; });
  on("sample", (sample) => {
    newest = { scene: newest.scene, sample };
    live.first = sample.first;
    live.last = sample.time;
    if (!live.paused) show(newest);
    told("time");
  });
  on("event", (event) => {
    // A new connection tells the old ones again.
    if (live.events.some((old) => old.seq === event.seq && old.time_ms === event.time_ms)) return;
    live.events.push(event);
    if (live.events.length > 500) live.events.shift();
    told("event");
  });
  source.addEventListener("error", () => {
    const closed = source.readyState === EventSource.CLOSED;
    status({
      state: "gone",
      text: closed
        ? "`sidecore web` does not know this page any more, since it was started again: open the URL that it printed"
        : "`sidecore web` does not answer: it was ended, or the way to it was. The page tries again",
    });
  });
}

export function pause() {
  live.paused = true;
  told("time");
}

export function resume() {
  live.paused = false;
  if (newest.sample) show(newest);
  told("time");
}

let wanted = 0;
/** Turns the page to a time of the last hour. */
export async function seek(time) {
  live.paused = true;
  wanted = time;
  const then = await get(`/api/at?time=${Math.round(time)}`);
  // Only what was asked for last.
  if (!live.paused || wanted !== time) return;
  // A scene that is shown already stays: its drawing does, too.
  const same = live.scene && JSON.stringify(live.scene) === JSON.stringify(then.scene);
  show(same ? { scene: live.scene, sample: then.sample } : then);
  told("time");
}

/** The row of a port, an I/O core or a tenant: its place is that of the scene. */
export function row(kind, at) {
  const { scene, sample } = live;
  if (!scene || !sample) return null;
  const before = { port: 0, core: scene.ports.length, tenant: scene.ports.length + scene.cores.length }[kind];
  const found = sample.rows[before + at];
  return found === 0 ? [0, 0, 0, 0, 0, 0, 0] : found ?? null;
}

/** Drops of this second: by the name of the port, a list of reason and count. */
export function drops() {
  const found = new Map();
  for (const [at, reason, count] of live.sample?.drops ?? []) {
    const name = live.scene.ports[at]?.name;
    found.set(name, [...(found.get(name) ?? []), [reason, count]]);
  }
  return found;
}
