"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");

const { liveValues } = loadScripts();
const { AT, OK, FAILED, IN_FLIGHT_AT, USED_S } = liveValues;

// A point of the history at a second, with so many answered requests so far.
function point(at, ok, more = {}) {
  const made = [];
  [made[AT], made[OK], made[FAILED], made[IN_FLIGHT_AT], made[USED_S]] = [at, ok, [], at, 0];
  return Object.assign(made, more);
}
const okOf = (one) => one[OK];

test("a rate is over the last five seconds, whichever points are left", () => {
  const points = [1, 2, 3, 4, 5, 6, 7, 8].map((at) => point(at, 10 * at));
  assert.deepEqual(plain(liveValues.findRates(points, [], okOf)), [10, 10, 10, 10, 10, 10, 10, 10]);
  const thinned = [2, 4, 6, 8].map((at) => point(at, 10 * at));
  assert.deepEqual(plain(liveValues.findRates(thinned, [], okOf)), [10, 10, 10, 10]);
});

test("failed requests are in no rate of answered ones", () => {
  const points = [1, 2, 3, 4].map((at) => point(at, 2 * Math.min(at, 2), { [FAILED]: [at < 3 ? 0 : 30] }));
  assert.equal(liveValues.findRates(points, [], okOf).at(-1), 0.67);   // 2 of 4 since second 1, over 3 s
  assert.equal(liveValues.findRates(points, [], (one) => liveValues.sum(one[FAILED])).at(-1), 10);
});

test("a hole in the readings is in no rate", () => {
  // 10/s up to second 3; nothing is read until 18; then 10/s again, and 500 that ended meanwhile are known at once
  const points = [...[1, 2, 3].map((at) => point(at, 10 * at)), ...[18, 19, 20].map((at) => point(at, 500 + 10 * at))];
  assert.deepEqual(plain(liveValues.findRates(points, [[3, 18]], okOf)), [10, 10, 10, null, 10, 10]);
});

test("a hole breaks the lines, and nothing else does", () => {
  const points = [1, 2, 18, 19].map((at) => point(at, at));
  const { x, columns } = plain(liveValues.breakAtHoles(points, [[2, 18]], [[5, 6, 7, 8]]));
  assert.deepEqual([x, columns], [[1, 2, 10, 18, 19], [[5, 6, null, 7, 8]]]);
  assert.deepEqual(plain(liveValues.breakAtHoles(points, [], [[5, 6, 7, 8]])).x, [1, 2, 18, 19]);
});

test("the time axis goes to the planned end, if that is near", () => {
  assert.equal(liveValues.findEnd(5, 60), 30);
  assert.equal(liveValues.findEnd(50, 60), 60);
  assert.equal(liveValues.findEnd(50, 3600), 80);
  assert.equal(liveValues.findEnd(50, null), 50);
  assert.equal(liveValues.findEnd(70, 60), 70);
});

test("progress by pencil", () => {
  const timed = { phase: "profiling", share: null, segments: [["warmup", 10, 10], ["measured", 60, 25]] };
  assert.equal(liveValues.findPlanned(timed), 70);
  assert.equal(liveValues.findShare(timed), 0.5);
  const counted = { phase: "profiling", share: 0.25, segments: [["measured", null, 12]] };
  assert.equal(liveValues.findPlanned(counted), null);
  assert.equal(liveValues.findShare(counted), 0.25);
  assert.equal(liveValues.findShare({ phase: "profiling", share: null, segments: [["measured", null, 12]] }), null);
});

test("a page without news says so after three seconds", () => {
  assert.equal(liveValues.describeSilence(2900), null);
  assert.match(liveValues.describeSilence(7200).text, /^No news from the load generator for 7 s/);
  assert.equal(liveValues.describeSilence(7200).level, "bad");
});

test("a percentile of too few values is marked, beside the charts as in the table", () => {
  assert.equal(liveValues.describeCount(100), "last 10 s, 100 requests");
  assert.equal(liveValues.describeCount(33), "last 10 s, 33 requests; too few for p99");
  assert.equal(liveValues.describeCount(19), "last 10 s, 19 requests; too few for p95, p99");
  assert.equal(liveValues.describeCount(0), "last 10 s");
  assert.deepEqual(["p50", "p90", "p95", "p99"].map((name) => liveValues.isFew(name, 33)), [false, false, false, true]);
  const marked = [liveValues.markPercentile("12", "p95", 19), liveValues.markPercentile("12", "p95", 20),
    liveValues.markPercentile("12", "p95", 20, ["p50", "p95"]), liveValues.markPercentile("12", "p99", 20, ["p99"])];
  assert.deepEqual(marked, ["12*", "12", "~12", "~12*"]);
});

test("after the end the server's values are those of the last reading", () => {
  const facts = ["4 running", "0 waiting"];
  assert.equal(liveValues.describeEngine(facts, false), "4 running · 0 waiting");
  assert.equal(liveValues.describeEngine(facts, true), "At the last reading: 4 running · 0 waiting");
  assert.equal(liveValues.describeEngine([], true), "Its metrics have no answer.");
});
