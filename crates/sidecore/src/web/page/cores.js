// I/O cores and tenants over time, and who has how much.

import { el, frames, nanoseconds, percent, segment, table } from "./dom.js";
import { charts, spans } from "./chart.js";
import { listen, live, row } from "./live.js";

const MOST = 20;

export function view(place) {
  const shares = el("div"), stages = el("div");
  let ends = [], drawn = "";
  place.append(el("h2", null, "Cores and tenants"), spans(), stages, el("section", null, el("h3", null, "Who has how much"), shares));

  function draw() {
    const { scene } = live;
    if (!scene) return;
    const now = JSON.stringify([scene.cores, scene.tenants]);
    if (now !== drawn) {
      drawn = now;
      ends.forEach((end) => end());
      ends = [];
      stages.replaceChildren();
      const stage = (title, kind, name, all) => {
        const node = el("section", null, el("h3", null, title));
        stages.append(node);
        ends.push(charts(node, kind, name, all));
      };
      scene.cores.forEach((number) => stage(`I/O core ${number}`, "core", String(number), [
        { title: "Time", format: percent, top: 1e6, series: [["busy", 0], ["idle", 1], ["asleep", 2]] },
        { title: "Frames a second", format: frames, series: [["frames", 3]] },
      ]));
      scene.tenants.forEach((name) => stage(`Tenant ${name}`, "tenant", name, [
        { title: "Share of an I/O core", format: percent, series: [["used", 0], ["held back", 1]] },
        { title: "Wait of its slowest queue", format: nanoseconds, series: [["p99", 2]] },
      ]));
    }
    const rows = scene.ports.map((port, at) => ({ port, numbers: row("port", at) }))
      .filter(({ numbers }) => numbers?.[5] > 0)
      .sort((a, b) => b.numbers[5] - a.numbers[5])
      .slice(0, MOST)
      .map(({ port, numbers }) => [el("a", { href: `#/port/${segment(port.name)}` }, port.name), port.tenant ?? "", percent(numbers[5]), nanoseconds(numbers[6]), frames(numbers[0])]);
    shares.replaceChildren(rows.length
      ? table(`Ports by their share, ${MOST} at most`, ["port", "tenant", ">share of an I/O core", ">wait p99", ">in"], rows)
      : el("p", { class: "note" }, "No port takes time of an I/O core in this second."));
  }
  const deaf = listen((what) => { if (what === "sample") draw(); });
  draw();
  return () => { deaf(); ends.forEach((end) => end()); };
}
