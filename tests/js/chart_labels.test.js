"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");

const { chartLabels } = loadScripts();
const measure = (text) => 6 * text.length;
const assign = (marks) => chartLabels.assignLanes(marks.map(([at, text]) => ({ at, text })), measure, [0, 600]);

function assertApart(placed) {
  for (const one of placed) {
    for (const other of placed) {
      if (one === other || one.lane !== other.lane) continue;
      const isApart = one.left + measure(one.text) <= other.left || other.left + measure(other.text) <= one.left;
      assert.ok(isApart, `${one.text} covers ${other.text}`);
    }
  }
}

test("marks that are apart share a lane", () => {
  const { placed, lanes } = assign([[100, "limit 1"], [300, "limit 8"]]);
  assert.equal(lanes, 1);
  assert.deepEqual(plain(placed.map(({ text, lane }) => [text, lane])), [["limit 1", 0], ["limit 8", 0]]);
});

test("marks close to each other keep their texts, in lanes", () => {
  const { placed, lanes } = assign([[300, "limit 8"], [311, "limit 1"], [322, "40 users"], [500, "limit 5"]]);
  assert.equal(lanes, 3);
  assert.deepEqual(plain(placed.map(({ text }) => text)).sort(), ["40 users", "limit 1", "limit 5", "limit 8"]);
  assertApart(placed);
});

test("marks at one place have one text, those of another colour their own", () => {
  const close = [{ at: 300, text: "limit 1" }, { at: 302, text: "limit 8" }, { at: 303, text: "stood still", hue: "fail" }];
  const { placed } = chartLabels.assignLanes(close, measure, [0, 600]);
  assert.deepEqual(plain(placed.map(({ text }) => text)), ["limit 1, limit 8", "stood still"]);
});

test("a text at the edge stays inside", () => {
  const { placed } = assign([[0, "limit 1"], [600, "limit 8"]]);
  assert.deepEqual(plain(placed.map(({ left }) => left)), [0, 600 - measure("limit 8")]);
});

test("a gate that is turned twelve times within six seconds of a minute keeps all its texts", () => {
  const marks = Array.from({ length: 12 }, (_, i) => [300 + 5 * i, `limit ${i + 1}`]);
  const { placed } = assign(marks);
  const texts = placed.map(({ text }) => text).join(", ").split(", ");
  assert.deepEqual(plain(texts).sort(), marks.map(([, text]) => text).sort());
});

test("where all lanes are taken the text joins the one before, and the last stays readable", () => {
  const { placed, lanes } = assign(Array.from({ length: 20 }, (_, i) => [200 + 11 * i, `limit ${i}${"0".repeat(40)}`]));
  assert.equal(lanes, 5);
  assert.ok(placed.some(({ text }) => text.endsWith(`limit 19${"0".repeat(40)}`)));
});

test("a box that meets nothing is chosen first, else the one that meets fewest", () => {
  const taken = [[0, 0, 10, 10], [5, 0, 15, 10]];
  assert.deepEqual(plain(chartLabels.chooseBox([[2, 2, 4, 4], [20, 0, 30, 10]], taken)), [20, 0, 30, 10]);
  assert.deepEqual(plain(chartLabels.chooseBox([[6, 2, 9, 4], [11, 2, 14, 4]], taken)), [11, 2, 14, 4]);
});
