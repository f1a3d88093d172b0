// Looks at the page in Chromium: node page.mjs URL SOCKET NAME B PACKAGES
// SOCKET is the daemon's, NAME what the VM at its port a is called, B the process of the one at port b. They send to each other.

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { request } from "node:http";
import { createRequire } from "node:module";

const [url, socketPath, name, b, packages] = process.argv.slice(2);
const require = createRequire(`${packages}/package.json`);
const puppeteer = require("puppeteer-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const LIMIT = 20_000;

/** What the daemon itself says. */
const api = (path) => new Promise((resolve, reject) => {
  request({ socketPath, path, headers: { host: "x" } }, (response) => {
    const pieces = [];
    response.on("data", (piece) => pieces.push(piece));
    response.on("end", () => resolve(JSON.parse(Buffer.concat(pieces))));
  }).on("error", reject).end();
});

const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find(existsSync);
assert(executablePath, "there is no Chromium: apt-get install chromium");
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
const wrong = [];
page.on("pageerror", (error) => wrong.push(String(error)));
page.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
page.on("dialog", (dialog) => wrong.push(`a dialog: ${dialog.message()}`));
page.on("request", (asked) => {
  const to = new URL(asked.url());
  if (to.protocol !== "data:" && to.host !== new URL(url).host) wrong.push(`a request to ${asked.url()}`);
});
page.setDefaultTimeout(LIMIT);

const port = (name, classes = "") => `[data-port="${name}"]${classes}`;
const content = (selector) => page.$eval(selector, (node) => node.textContent);
const go = (hash) => page.evaluate((hash) => { location.hash = hash; }, hash);
/** The number in a table's row. */
const number = (row) => page.evaluate((row) => {
  const found = [...document.querySelectorAll("tr")].find((it) => it.cells[0].textContent === row);
  return found ? Number(found.cells[1].textContent.replaceAll(",", "")) : null;
}, row);
async function until(what, done) {
  const end = Date.now() + LIMIT;
  for (;;) {
    const value = await done();
    if (value) return value;
    assert(Date.now() < end, `not within ${LIMIT} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
/** Clicks the button with this text when it is there. */
const press = (label) => page.locator(`::-p-xpath(//button[.="${label}"])`).click();
async function accessible(where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const serious = violations.filter((it) => ["serious", "critical"].includes(it.impact));
  assert.deepEqual(serious.map((it) => [where, it.id, it.nodes[0].html]), []);
}
/** Nothing that a text named became an element. */
async function markup() {
  assert.equal(await page.$$eval("img, b, script:not([src]), [onclick]", (all) => all.length), 0);
}

try {
  await page.setViewport({ width: 1280, height: 900 });
  await page.goto(url);
  await page.waitForSelector(port("a", ".busy"));
  await page.waitForSelector(port("b", ".busy"));
  assert.equal(page.url(), new URL("/", url).href, "the token has left the address");
  assert.equal(await page.evaluate(() => document.cookie), "", "scripts do not see the cookie");

  // What a VM and a configuration call themselves is text.
  assert((await content(port("a"))).includes(name));
  assert((await content(port("a"))).includes("a<b onclick=x>.sock"));
  // One without a name is called as its process.
  assert((await content(port("b"))).includes(readFileSync(`/proc/${b}/comm`, "utf8").trim()));
  await markup();

  // The counters go on.
  await go("#/port/a");
  await page.waitForSelector(".checks li");
  const before = (await api("/v1/ports/a")).counters.in_frames;
  await until("counter of frames", async () => await number("in frames") > before);
  await until("chart", () => page.$eval(".chart", (node) => node.getAttribute("aria-label")?.includes("frames/s at the end")));
  await markup();
  await accessible("port");

  // A frame's way, as the daemon explains it.
  await go("#/why");
  await page.waitForSelector('[name="frame"]');
  await page.click('form [type="submit"]');
  await page.waitForSelector("main table td");
  const steps = await page.$$eval("main table tbody tr", (rows) => rows.map((row) => row.cells[1].textContent));
  assert.equal(steps[0], "a");
  await page.waitForSelector(port("a", ".way"));

  // The way of the next pings.
  await page.select('[name="by"]', "a");
  await page.type('[name="filter"]', "icmp and dst 10.0.0.3");
  await press("Trace");
  await page.waitForFunction(() => document.querySelectorAll(".traced").length === 3);
  const ways = await page.$$eval(".traced", (all) => all.map((it) => [...it.querySelectorAll("tbody tr")].map((row) => row.cells[1].textContent)));
  assert.deepEqual(ways, Array(3).fill(["a", "b"]));
  await page.waitForSelector(port("b", ".way"));
  await accessible("why");
  await go("#/cores");
  await page.waitForSelector(".chart canvas");
  await accessible("cores");
  await go("#/events");
  await page.waitForFunction(() => document.querySelector("h2")?.textContent === "Events");
  await accessible("events");

  // A guest that is killed turns its edge off within two seconds.
  await go("#/");
  await page.waitForSelector(port("b", ".up"));
  const since = Date.now();
  process.kill(Number(b), "SIGKILL");
  await page.waitForSelector(port("b", ".down"));
  assert(Date.now() - since <= 2000, `${Date.now() - since} ms`);

  // Now what is sent is dropped, and the drawing says why.
  const lit = await until("drop", () => page.$$eval(".port.drop", (all) => all.map((node) => [node.dataset.port, node.querySelector(".rate").textContent])[0]));
  const { drops } = await api("/v1/drops");
  const reasons = drops.filter((drop) => drop.port === lit[0]).map((drop) => drop.reason.replaceAll("_", " "));
  assert(reasons.some((reason) => lit[1].startsWith(reason)), `${lit} ${JSON.stringify(drops)}`);
  await accessible("topology");

  // Turned back, it was up; and the keyboard does it.
  await page.keyboard.press("p");
  await page.waitForFunction(() => document.querySelector("#pause").textContent === "Go on");
  await page.focus("#seek");
  await page.keyboard.press("Home");
  // The first seconds may be from before it came.
  await until("a second with b up", async () => { await page.keyboard.press("ArrowRight"); return page.$(port("b", ".up")); });
  await page.click("#pause");
  await page.waitForSelector(port("b", ".down"));

  // What changes is written, and read.
  await go("#/port/a");
  await press("Link down");
  await until("link down", async () => (await api("/v1/ports/a")).state.link_wanted === "down");
  // Now the guest sends no more, and all numbers are the daemon's.
  await until("the daemon's numbers", async () => {
    const { drops, ...counters } = (await api("/v1/ports/a")).counters;
    const all = Object.entries({ ...counters, ...drops });
    const shown = await Promise.all(all.map(([name]) => number(name.replaceAll("_", " "))));
    return all.every(([, value], at) => value === shown[at]);
  });
  await go("#/port/m0");
  for (const [label, state] of [["Drain g/m", "drained"], ["Undrain g/m", "active"]]) {
    await press(label);
    await until(state, async () => (await api("/v1/groups")).groups[0].members[0].state === state);
  }

  // Narrow and dark.
  await page.click("#theme");
  for (const hash of ["#/", "#/port/a", "#/cores", "#/why"]) {
    await page.setViewport({ width: 360, height: 740 });
    await go(hash);
    await page.waitForSelector("main h2");
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 360, hash);
    await accessible(`${hash} dark`);
  }
  assert.deepEqual(wrong, []);
} catch (error) {
  console.error(String(await content("main").catch(() => "")).slice(0, 2000));
  console.error(wrong.join("\n"));
  throw error;
} finally {
  await browser.close();
}
