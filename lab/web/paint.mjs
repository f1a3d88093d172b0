// Prints how long the page takes until its first paint, when it is loaded a second time: node paint.mjs URL PACKAGES
// The page stays open until the input ends.

import { existsSync } from "node:fs";
import { createRequire } from "node:module";

const [url, packages] = process.argv.slice(2);
const puppeteer = createRequire(`${packages}/package.json`)("puppeteer-core");
const executablePath = ["/usr/bin/chromium", "/usr/bin/chromium-browser"].find(existsSync);
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
await page.goto(url);
await page.waitForSelector("[data-port]");
await page.reload();
await page.waitForSelector("[data-port]");
const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime);
console.log(`${paint.toFixed(0)} ms`);
process.stdin.resume().on("end", () => browser.close());
