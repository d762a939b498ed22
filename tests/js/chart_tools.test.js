"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");

const { chartTools } = loadScripts();
const ttft = { name: "TTFT" }, itl = { name: "ITL" };
const points = [
  { series: ttft, index: 0, x: 1, left: 10, top: 100 },
  { series: ttft, index: 2, x: 9, left: 90, top: 50 },
  { series: ttft, index: 1, x: 5, left: 50, top: 20 },
  { series: itl, index: 0, x: 6, left: 60, top: 22 },
];
const describe = (point) => (point ? [point.series.name, point.index] : null);

test("the nearest point is found, and none that is too far", () => {
  assert.deepEqual(describe(chartTools.findNearest(points, 53, 22)), ["TTFT", 1]);
  assert.deepEqual(describe(chartTools.findNearest(points, 57, 22)), ["ITL", 0]);
  assert.equal(chartTools.findNearest(points, 200, 200), null);
  assert.equal(chartTools.findNearest(points, 90, 63, 12), null);
  assert.equal(chartTools.findNearest([], 0, 0), null);
});

test("arrow keys go from point to point along x, and to the other series", () => {
  const walk = (from, key, step) => describe(chartTools.findNeighbour(points, from, key, step));
  assert.deepEqual(walk(null, "ArrowRight"), ["TTFT", 0]);
  assert.deepEqual(walk(points[0], "ArrowRight"), ["TTFT", 1]);
  assert.deepEqual(walk(points[2], "ArrowRight"), ["TTFT", 2]);
  assert.deepEqual(walk(points[1], "ArrowRight"), ["TTFT", 2]);
  assert.deepEqual(walk(points[1], "ArrowLeft", 10), ["TTFT", 0]);
  assert.deepEqual(walk(points[0], "End"), ["TTFT", 2]);
  assert.deepEqual(walk(points[1], "ArrowDown"), ["ITL", 0]);
  assert.deepEqual(walk(points[3], "ArrowUp"), ["TTFT", 1]);
  assert.deepEqual(walk(points[0], "ArrowUp"), ["TTFT", 0]);
  assert.equal(chartTools.findNeighbour([], null, "ArrowRight"), null);
});

test("CSV has a row for each x and a column for each series", () => {
  const plot = {
    x: { label: "time since the start", unit: "s" }, y: { unit: "ms" },
    series: [{ name: "p50", x: [1, 2], y: [10, null] }, { name: 'p95, "late"', x: [2, 3], y: [20, 30] }],
  };
  const chart = { plot, unitOf: () => "ms" };
  assert.equal(chartTools.writeCsv(chart),
    'time since the start (s),p50 (ms),"p95, ""late"" (ms)"\n1,10,\n2,,20\n3,,30\n');
  assert.deepEqual(plain(chartTools.tabulate(chart))[2], [2, null, 20]);
});
