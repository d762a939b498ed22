"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");
const cases = require("../data/request_cases.json");

const { requestTable, reportTools, termTips } = loadScripts();

function sideOf(name, sample) {
  const table = requestTable.readTable(sample);
  return { name, table, rows: requestTable.filterRows(table, requestTable.newView()), view: requestTable.newView() };
}
// The same requests with every TTFT twice as long.
const slower = structuredClone(cases.sample);
slower.columns.ttft = slower.columns.ttft.map((value) => (value === null ? null : 2 * value));

test("twice as long is a difference of 100 %, the same is none", () => {
  const rows = reportTools.compareFigures(sideOf("a", cases.sample), sideOf("b", slower));
  const found = new Map(rows.map((row) => [row.name, row]));
  const ttft = found.get("TTFT p95"), itl = found.get("ITL p50"), count = found.get("Requests");
  assert.equal(ttft.other, 2 * ttft.own);
  assert.equal(Math.round(ttft.percent), 100);
  assert.equal(itl.percent, 0);
  assert.deepEqual([count.own, count.other], [110, 110]);
});

test("nothing is divided by zero", () => {
  const silent = structuredClone(cases.sample);
  silent.failed = [];
  const rows = reportTools.compareFigures(sideOf("a", silent), sideOf("b", cases.sample));
  assert.equal(rows.find(({ name }) => name === "Failed").percent, null);
});

test("both percentile lines are laid over each other, by the names of the runs", () => {
  const [own, other] = [sideOf("a", cases.sample), sideOf("b", slower)];
  const plot = reportTools.overlaySpectra({ x: { log: 10 } }, "ttft", "TTFT", own, other);
  assert.deepEqual(plain(plot.series.map(({ name }) => name)), ["a", "b"]);
  assert.equal(plot.series[1].y.at(-1), 2 * plot.series[0].y.at(-1));
  assert.equal(reportTools.overlaySpectra({ x: {} }, "none", "None", own, other), null);
});

test("JSON has what the page shows: the rules, the choice and its requests", () => {
  const own = sideOf("a", cases.sample);
  const view = requestTable.readAddress("#name=rag", own.table);
  const page = { view, rows: requestTable.filterRows(own.table, view) };
  const saved = plain(reportTools.describeView({ name: "a", rules: [{ rule: "ttft p95 < 1s" }] }, own.table, page));
  assert.equal(saved.rules[0].rule, "ttft p95 < 1s");
  assert.deepEqual(saved.chosen.filters, { name: "rag" });
  assert.equal(saved.chosen.requests, page.rows.length);
  assert.equal(saved.requests.length, page.rows.length);
  assert.ok(saved.requests.every((request) => request.by_name === "rag" && request.input === 4000 || request.error));
});

const TERMS = { TTFT: "a", "TTFT from due": "b", "Time to First Token": "a", "Inter Token Latency": "c", stall: "d", failed: "e" };

test("a text has the longest term that it begins with, whatever its case and its hyphens", () => {
  const of = (text) => termTips.findTerm(text, TERMS)?.[1] ?? null;
  assert.equal(of("TTFT, p95"), "a");
  assert.equal(of("TTFT from due, p95"), "b");
  assert.equal(of("Inter-token latency"), "c");
  assert.equal(of("Time to first token"), "a");
  assert.equal(of("stall p90"), "d");
});

test("a word that only begins like a term is none", () => {
  for (const text of ["stalled", "failedover", "a TTFT", "", "p95"]) assert.equal(termTips.findTerm(text, TERMS), null, text);
});
