"use strict";
const assert = require("node:assert/strict");
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const { test } = require("node:test");
const { SIGHTS, ciede2000, difference } = require("./color_difference.js");
const { STATIC } = require("./load_scripts.js");

const css = readFileSync(join(STATIC, "plots.css"), "utf-8");
const readColors = (text) => Object.fromEntries([...text.matchAll(/--([\w-]+): (#[0-9a-f]{6})/g)].map(([, name, hex]) => [name, hex]));
const [light, dark] = css.split("@media").slice(0, 2).map(readColors);

// What stands beside each other in one chart, and in legends side by side.
const TOGETHER = {
  "latencies over time": ["p50", "p95", "p99", "dot", "faint", "fail"],
  "the gate": ["prefill", "decode", "wait", "limit"],
  "replicas of a server": ["p50", "prefill", "decode", "p99", "ok", "p95", "limit", "faint"],
  "answers and failures by class": ["p50", "ok", "fail", "prefill", "p99", "p95", "faint"],
  "stages of a sweep": ["p50", "p95", "p99", "decode", "ok", "fail", "faint", "knee"],
  "runs by result": ["ok", "fail", "dot", "p99"],
};
const LEAST = 11;   // CIEDE2000; 2.3 is what an eye can just tell
const PARTS = [...css.matchAll(/--part-([\w]+):/g)].map(([, name]) => `part-${name}`);

function listPairs(names) {
  return names.flatMap((name, i) => names.slice(0, i).map((other) => [other, name]));
}
function assertDifferent(names, least, where) {
  for (const [theme, colors] of Object.entries({ light, dark: { ...light, ...dark } })) {
    for (const [a, b] of listPairs(names)) {
      for (const sight of Object.keys(SIGHTS)) {
        const found = difference(colors[a], colors[b], sight);
        assert.ok(found >= least, `${where}, ${theme}, ${sight}: ${a} and ${b} differ by ${found.toFixed(1)} only`);
      }
    }
  }
}

// The first pairs of the table by Sharma, Wu and Dalal.
test("the difference is the one of the standard", () => {
  const pairs = [
    [[50, 2.6772, -79.7751], [50, 0, -82.7485], 2.0425],
    [[50, -1.3802, -84.2814], [50, 0, -82.7485], 1.0],
    [[50, 2.49, -0.001], [50, -2.49, 0.0011], 7.2195],
    [[60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644],
    [[2.0776, 0.0795, -1.135], [0.9033, -0.0636, -0.5514], 0.9082],
  ];
  for (const [a, b, expected] of pairs) assert.ok(Math.abs(ciede2000(a, b) - expected) < 1e-4);
});

test("red and green of one lightness are told apart with full sight only", () => {
  assert.ok(difference("#b07d00", "#d9730d", "protanopia") < 1);
  assert.ok(difference("#b07d00", "#d9730d", "full") > 10);
});

for (const [where, names] of Object.entries(TOGETHER)) {
  test(`colours of ${where} are told apart by everybody`, () => assertDifferent(names, LEAST, where));
}

test("the parts of a latency are told apart by everybody", () => {
  assert.ok(PARTS.length >= 12);
  assertDifferent(PARTS, LEAST, "parts");
});
