// The frame of the page: views by the address, time, status, keys.

import { clock, el, get, session, table, text } from "./dom.js";
import { connect, listen, live, pause, resume, seek } from "./live.js";
import { view as topology } from "./topology.js";
import { view as port } from "./port.js";
import { view as cores } from "./cores.js";
import { view as why } from "./why.js";

const $ = (id) => document.getElementById(id);
const main = $("main");
const views = { "": topology, port, cores, why, events };
let end = () => {};

function events(place) {
  const rows = el("div");
  place.append(el("h2", null, "Events"), rows);
  const draw = () => {
    const about = (it) => [it.port, it.switch, it.router, it.tenant, it.group].filter(Boolean).join(" ");
    const newest = [...live.events].reverse().map((it) => [clock(it.time_ms), it.event, about(it), it.text]);
    rows.replaceChildren(newest.length
      ? table("Events, the newest first", ["time", "event", "of", "what"], newest)
      : el("p", { class: "note" }, "No event has come since this page's process was started, or the daemon is one that tells none."));
  };
  draw();
  return listen((what) => { if (what === "event") draw(); });
}

function route(focus) {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  end();
  main.replaceChildren();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const what = rest.map(decodeURIComponent).join("/");
  document.title = `${what || name || "topology"} – sidecore`;
  const ended = (views[name] ?? topology)(main, what);
  end = typeof ended === "function" ? ended : () => {};
  if (focus) main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function status() {
  const { state, text: why } = live.status;
  $("status").className = state;
  text($("status"), state === "running" || state === "starting" ? why : `Nothing new is shown: ${why}`);
}

function time() {
  const [button, range] = [$("pause"), $("seek")];
  text(button, live.paused ? "Go on" : "Pause");
  button.setAttribute("aria-pressed", String(live.paused));
  range.min = live.first;
  range.max = live.last;
  const shown = live.sample?.time ?? live.last;
  if (document.activeElement !== range || !live.paused) range.value = shown;
  range.setAttribute("aria-valuetext", shown ? clock(shown) : "");
  text($("when"), shown ? `${clock(shown)}${live.paused ? "" : ", live"}` : "");
  document.body.classList.toggle("paused", live.paused);
}

const said = (error) => { live.status = { state: "error", text: error.message }; status(); };
$("pause").addEventListener("click", () => (live.paused ? resume() : pause()));
$("seek").addEventListener("input", (event) => seek(Number(event.target.value)).catch(said));

const themes = ["dark", "light"];
const dark = matchMedia("(prefers-color-scheme: dark)");
function theme(name) {
  document.documentElement.dataset.theme = name;
  text($("theme"), name === "dark" ? "Light" : "Dark");
  $("theme").setAttribute("aria-label", `Colours: change to ${name === "dark" ? "light" : "dark"}`);
  dispatchEvent(new Event("theme"));
}
$("theme").addEventListener("click", () => {
  const next = themes.find((name) => name !== document.documentElement.dataset.theme);
  localStorage.setItem("theme", next);
  theme(next);
});
dark.addEventListener("change", () => localStorage.getItem("theme") || theme(dark.matches ? "dark" : "light"));
theme(localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light"));

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName) && event.target.type !== "range") return;
  const place = { t: "#/", c: "#/cores", w: "#/why", e: "#/events" }[event.key];
  if (place) location.hash = place;
  if (event.key === "p") $("pause").click();
});

addEventListener("hashchange", () => route(true));
listen((what) => {
  if (what === "status") status();
  if (what === "time" || what === "sample") time();
});
connect();
get("/api/session").then((answer) => Object.assign(session, answer)).catch(said).finally(() => route(false));
