"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");
const cases = require("../data/format_cases.json");

const { chartFormat } = loadScripts();

for (const [name, rows] of Object.entries(cases)) {
  test(`${name} writes as Python does`, () => {
    for (const { arguments: given, text } of rows) assert.equal(chartFormat[name](...given), text, JSON.stringify(given));
  });
}

test("a value is written by the unit of its axis", () => {
  assert.equal(chartFormat.writeValue("ms", 607.4), "607 ms");
  assert.equal(chartFormat.writeValue("ms", 1234), "1.23 s");
  assert.equal(chartFormat.writeValue("s", 84), "1:24");
  assert.equal(chartFormat.writeValue("s", 84.26), "1:24.3");
  assert.equal(chartFormat.writeValue("%", 61.04), "61%");
  assert.equal(chartFormat.writeValue("/s", 26987), "26,987");
  assert.equal(chartFormat.writeValue("ms", null), "-");
});

test("a count has its noun", () => {
  assert.equal(chartFormat.count(1, "request"), "1 request");
  assert.equal(chartFormat.count(12346, "request"), "12,346 requests");
  assert.equal(chartFormat.count(2, "class", "classes"), "2 classes");
});

test("the ticks of an axis have one unit and as many decimals", () => {
  const ticks = (...given) => plain(chartFormat.ticks(...given));
  assert.deepEqual(ticks("ms", [0, 500, 1000, 1500]), ["0", "0.5 s", "1.0 s", "1.5 s"]);
  assert.deepEqual(ticks("ms", [0, 50, 100]), ["0", "50 ms", "100 ms"]);
  assert.deepEqual(ticks("ms", [0, 0.05, 0.1]), ["0", "0.05 ms", "0.10 ms"]);
  assert.deepEqual(ticks("ms", [1, 10, 100, 1000, 10000], true), ["1 ms", "10 ms", "100 ms", "1 s", "10 s"]);
  assert.deepEqual(ticks("", [0, 5000, 10000]), ["0", "5k", "10k"]);
  assert.deepEqual(ticks("", [0, 500, 1000]), ["0", "500", "1,000"]);
  assert.deepEqual(ticks("", [-1, 0, 1]), ["-1", "0", "1"]);
  assert.deepEqual(ticks("%", [0, 50, 100]), ["0", "50%", "100%"]);
});

test("times have one clock format, zoomed in or not", () => {
  const ticks = (...given) => plain(chartFormat.ticks("s", ...given));
  assert.deepEqual(ticks([0, 15, 30, 45]), ["0:00", "0:15", "0:30", "0:45"]);
  assert.deepEqual(ticks([60, 90, 120]), ["1:00", "1:30", "2:00"]);
  assert.deepEqual(ticks([60, 60.5, 61]), ["1:00.0", "1:00.5", "1:01.0"]);
  assert.deepEqual(ticks([3540, 3600, 3660]), ["59:00", "1:00:00", "1:01:00"]);
});
