"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");

const { ruleRows } = loadScripts();
const TTFT = { word: "ttft", units: ["s", "ms", "us"], has_statistic: true, less_is_better: true };
const ERRORS = { word: "error_rate", units: ["%"], has_statistic: false, less_is_better: true };
const TOKENS = { word: "output_tokens_per_s", units: ["/s"], has_statistic: false, less_is_better: false };
const METRICS = new Map([TTFT, ERRORS, TOKENS].map((metric) => [metric.word, metric]));
const parse = (text) => plain(ruleRows.parseRule(text, METRICS));
const written = (text) => ruleRows.formatRule(parse(text));

test("a rule is the parts of a row, and its text again", () => {
  assert.deepEqual(parse("ttft p95 < 500ms"), { metric: "ttft", stat: "p95", op: "<", number: "500", unit: "ms" });
  assert.deepEqual(parse(" TTFT  p99.9<=1.5 S"), { metric: "ttft", stat: "p99.9", op: "<=", number: "1.5", unit: "s" });
  assert.deepEqual(parse("error_rate < 1%"), { metric: "error_rate", stat: "", op: "<", number: "1", unit: "%" });
  assert.equal(written("output_tokens_per_s >= 2500"), "output_tokens_per_s >= 2500/s");
  assert.equal(written("ttft p95<500ms"), "ttft p95 < 500ms");
});

test("a tolerance to the base has units of its own", () => {
  assert.deepEqual(parse("ttft p95 within 5% of base"), { metric: "ttft", stat: "p95", op: "within", number: "5", unit: "%" });
  assert.equal(written("error_rate within 1pp of base"), "error_rate within 1pp of base");
  assert.deepEqual(parse("error_rate within 1% of base"), { text: "error_rate within 1% of base" });
});

test("what no row can hold stays as it was written", () => {
  const texts = ["warn: ttft p95 < 1s", "ttft{input=1k..4k} p95 < 1s", "goodput >= 5/s given ttft < 1s", "ttft < 1s", "error_rate p95 < 1%",
    "ttft p95 within 5% of reports/base", "ttft p95 < 5 minutes", "nonsense"];
  for (const text of texts) assert.deepEqual([parse(text), written(text)], [{ text }, text]);
});

test("a new row lacks its limit alone", () => {
  const row = ruleRows.newRow(TTFT);
  assert.equal(ruleRows.formatRule(row), "ttft p95 < ms");
  assert.deepEqual(parse("ttft p95 < ms"), plain(row));
  assert.equal(ruleRows.formatRule({ ...row, number: "500" }), "ttft p95 < 500ms");
});

test("another metric or operator keeps what fits", () => {
  const row = parse("ttft p99 < 500ms");
  assert.equal(ruleRows.formatRule(ruleRows.changeMetric(row, ERRORS)), "error_rate < 500%");
  assert.equal(ruleRows.formatRule(ruleRows.changeMetric(row, TOKENS)), "output_tokens_per_s >= 500/s");
  assert.equal(ruleRows.formatRule(ruleRows.changeOperator(row, "within", TTFT)), "ttft p99 within 500% of base");
  assert.equal(ruleRows.formatRule(ruleRows.changeOperator(parse("ttft p99 within 5% of base"), "<", TTFT)), "ttft p99 < 5ms");
});

test("a mistake is named", () => {
  const mistake = (number, text = "ttft p95 < 1ms") => ruleRows.findMistake({ ...parse(text), number });
  assert.equal(mistake("500"), "");
  assert.equal(mistake(".5"), "");
  assert.equal(mistake(" "), "Give a limit.");
  assert.equal(mistake("fast"), "The limit is a number such as 500 or 0.5, not fast.");
  assert.equal(mistake("101", "error_rate < 1%"), "A share is at most 100 %.");
  assert.equal(mistake("150", "ttft p95 within 5% of base"), "");
  assert.match(ruleRows.findMistake({ text: " " }), /^Write an SLO/);
  assert.equal(ruleRows.findMistake({ text: "nonsense" }), "");
});

test("a refusal is of its row", () => {
  const texts = ["ttft p95 < 1s", "ttff p95 < 1s", `ttft p95 < ${"9".repeat(90)}`];
  assert.deepEqual(plain(ruleRows.findRefused("SLO 'ttff p95 < 1s': unknown metric ttff", texts)), { index: 1, why: "unknown metric ttff" });
  assert.deepEqual(plain(ruleRows.findRefused(`SLO 'ttft p95 < ${"9".repeat(60)}...': too long`, texts)), { index: 2, why: "too long" });
  assert.equal(ruleRows.findRefused("SLO 'gone p95 < 1s': unknown metric", texts), null);
  assert.equal(ruleRows.findRefused("--model gpt is not there", texts), null);
});
