"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");

const { chartScale } = loadScripts();
const linear = { unit: "ms" }, logarithmic = { unit: "ms", log: 10 };
const line = (x, y, more = {}) => ({ name: "p50", hue: "p50", x, y, ...more });

test("y begins at zero and has room above", () => {
  const [low, high] = chartScale.findYRange(linear, [line([0, 1], [50, 100])], []);
  assert.equal(low, 0);
  assert.ok(high > 100 && high < 110);
});

test("y follows what is zoomed", () => {
  const series = [line([0, 10, 20, 30], [1000, 10, 20, 1000])];
  assert.ok(chartScale.findYRange(linear, series, [], [5, 25])[1] < 22);
  assert.ok(chartScale.findYRange(linear, series, [])[1] > 1000);
  assert.ok(chartScale.findYRange(linear, series, [], [11, 12])[1] > 1000, "nothing in sight: as without a zoom");
});

test("a dot is in sight at its own x alone", () => {
  const dots = [line([0, 60, 100], [1, 900, 300], { kind: "dots" })];
  assert.ok(chartScale.findYRange(linear, dots, [], [80, 110])[1] < 400);
});

test("a step holds up to the next x", () => {
  const steps = [line([0, 10, 20], [5, 100, 100], { kind: "steps" })];
  assert.ok(chartScale.findYRange(linear, steps, [], [2, 8])[1] < 6);
});

test("a limit near the values stretches the axis, one far above does not", () => {
  const series = [line([0, 1], [50, 100])];
  assert.ok(chartScale.findYRange(linear, series, [200])[1] > 200);
  assert.ok(chartScale.findYRange(linear, series, [3000])[1] < 150);
  assert.ok(chartScale.findYRange(logarithmic, series, [900])[1] > 900);
});

test("an axis without values has a range all the same", () => {
  for (const axis of [linear, logarithmic]) {
    const [low, high] = chartScale.findYRange(axis, [line([], [])], []);
    assert.ok(low < high && (!axis.log || low > 0));
    const [left, right] = chartScale.findXRange(axis, [line([], [])]);
    assert.ok(left < right && (!axis.log || left > 0));
  }
});

test("zero and below are not on a logarithmic axis", () => {
  assert.ok(chartScale.findYRange(logarithmic, [line([0, 1, 2], [0, -5, 10])], [])[0] > 5);
});

test("ticks of a logarithmic axis", () => {
  const ticks = (...given) => plain(chartScale.findLogTicks(...given));
  assert.deepEqual(ticks(10, 1, 100, 9), [1, 2, 5, 10, 20, 50, 100]);
  assert.deepEqual(ticks(10, 1, 1e6, 4), [1, 100, 10000, 1000000]);
  assert.deepEqual(ticks(2, 1, 16, 9), [1, 2, 4, 8, 16]);
});

test("a hole in the readings breaks the line", () => {
  const [x, y] = chartScale.breakAtGaps([12, 13, 14, 30, 31], [1, 2, 3, 4, 5], 4);
  assert.deepEqual(plain(x), [12, 13, 14, 22, 30, 31]);
  assert.deepEqual(plain(y), [1, 2, 3, null, 4, 5]);
  assert.deepEqual(plain(chartScale.breakAtGaps([1, 9], [1, 2], 0)), [[1, 9], [1, 2]]);
});

test("stacked series stand on each other", () => {
  assert.deepEqual(plain(chartScale.stack([[1, 2, null], [10, 20, 30]])), [[1, 2, null], [11, 22, 30]]);
});

test("the value that holds at an x", () => {
  assert.deepEqual([-1, 0, 5, 10, 99].map((at) => chartScale.findIndexAt([0, 10, 20], at)), [-1, 0, 0, 1, 2]);
});

test("a brush chooses a range in either direction, within the axis, and none by a twitch", () => {
  assert.deepEqual(plain(chartScale.makeRange(84, 51, [0, 120])), [51, 84]);
  assert.deepEqual(plain(chartScale.makeRange(100, 150, [0, 120])), [100, 120]);
  assert.equal(chartScale.makeRange(51, 51.1, [0, 120]), null);
});

test("a logarithmic axis of less than a decade has more than one tick", () => {
  assert.deepEqual(plain(chartScale.findLogTicks(10, 64, 165, 8)), [70, 100, 150]);
  assert.deepEqual(plain(chartScale.findLogTicks(10, 64, 165, 2)), [100]);
});

test("the ends of intervals are within the x axis", () => {
  const [low, high] = plain(chartScale.findXRange({ log: 10 }, [{ x: [90], x_low: [70], x_high: [160] }]));
  assert.ok(low < 70 && high > 160);
});
