"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");
const cases = require("../data/request_cases.json");  // by pandas and numpy: tests/support/request_cases.py

const { requestTable, requestPlots } = loadScripts();
const table = requestTable.readTable(cases.sample);
const view = (address) => requestTable.readAddress(`#${address}`, table);
const idsOf = (rows) => plain(rows.map((row) => table.ids[row]));

function assertClose(found, wanted, about = "") {
  if (wanted === null) return assert.equal(found, null, about);
  return assert.ok(Math.abs(found - wanted) <= 1e-6 * Math.max(1, Math.abs(wanted)), `${about}: ${found}, not ${wanted}`);
}
const assertAllClose = (found, wanted, about) => {
  assert.equal(found.length, wanted.length, about);
  wanted.forEach((value, i) => assertClose(found[i], value, `${about} ${i}`));
};

test("percentiles are numpy's, of repeated values too", () => {
  for (const { values, weights, percent, value } of cases.percentiles) {
    assertClose(requestTable.percentile(values, percent, weights), value, `p${percent} of ${values}`);
  }
  assert.equal(requestTable.percentile([], 50), null);
  assert.equal(requestTable.percentile([null, NaN], 50), null);
});

for (const wanted of cases.views) {
  test(`the figures of #${wanted.address} are those of pandas`, () => {
    const chosen = view(wanted.address), rows = requestTable.filterRows(table, chosen), ok = rows.filter(table.isOk);
    const seconds = chosen.from === null ? table.seconds : chosen.to - chosen.from;
    const sums = requestTable.summarise(table, rows, seconds);
    assert.deepEqual(idsOf(rows), wanted.ids);
    assert.deepEqual(idsOf(requestTable.sortBy(ok, (row) => table.column("ttft")[row], true)), wanted.slowest);
    for (const key of ["failed", "requestsPerS", "tokensPerS"]) assertClose(sums[key], wanted[key], key);
    for (const column of ["ttft", "itl"]) {
      for (const [percent, value] of Object.entries(wanted[column])) assertClose(sums.at(column, Number(percent)), value, `${column} p${percent}`);
    }
  });
}

test("a rate is over the time of what was chosen", () => {
  const columns = { at: [0, 10, 12, 50], took: [1000, 2000, 4000, 1000] };
  const outcome = { key: "outcome", labels: ["ok"], codes: [0, 0, 0, 0], start: -1 };
  const stage = { key: "stage", labels: ["1", "2"], codes: [0, 1, 1, 0], start: -1 };
  const limit = { key: "limit", labels: ["3", "4"], codes: [0, 1, 1, 0], start: -1 };
  const name = { key: "name", labels: ["rare", "often"], codes: [1, 0, 1, 1], start: -1 };
  const made = requestTable.readTable({
    ids: ["a", "b", "c", "d"], failed: [], ok: 0, weights: [], errors: [], total: 4, seconds: 60, columns, dimensions: [outcome, stage, limit, name],
  });
  const over = (address) => requestTable.secondsOf(made, requestTable.readAddress(`#${address}`, made));
  assert.equal(over("outcome=ok"), 60);
  assert.equal(over("time=5-15"), 10);
  assert.equal(over("stage=2"), 6);  // from 10 s to 12 s + 4 s
  assert.equal(over("stage=2&name=rare"), 6);  // one request of the stage
  assert.equal(over("stage=2&time=0-60"), 6);
  assert.equal(over("stage=2&time=11-60"), 5);
  assert.equal(over("stage=2&time=20-60"), null);
  assert.equal(over("limit=3&time=5-15"), null);
});

test("a stage has the rates of the table of the stages, and is measured for a part of its time", () => {
  // 2 of its 3 requests end in the 4 s that are measured: 0.5/s, and not 3 in the 6 s from the first send to the last end
  const columns = { at: [0, 1, 2, 50], took: [3000, 3000, 4000, 1000], output: [8, 8, 8, 8] };
  const outcome = { key: "outcome", labels: ["ok"], codes: [0, 0, 0, 0], start: -1 };
  const stage = { key: "stage", labels: ["1", "2"], codes: [0, 0, 0, 1], start: -1, rates: [[4, 0.5, 4.5, null], [null, null, null, null]] };
  const name = { key: "name", labels: ["rare", "often"], codes: [0, 1, 1, 1], start: -1 };
  const made = requestTable.readTable({
    ids: ["a", "b", "c", "d"], failed: [], ok: 0, weights: [], errors: [], total: 4, seconds: 60, columns, dimensions: [outcome, stage, name],
  });
  const ratesOf = (address) => {
    const chosen = requestTable.readAddress(`#${address}`, made);
    const { requestsPerS, tokensPerS, seconds } = requestTable.summariseView(made, requestTable.filterRows(made, chosen), chosen);
    return plain([requestsPerS, tokensPerS, seconds ?? requestTable.secondsOf(made, chosen)]);
  };
  assert.deepEqual(ratesOf("stage=1"), [0.5, 4.5, 4]);
  assert.deepEqual(ratesOf("stage=1&name=rare"), [0.25, 2, 4]);  // its own tokens over the measured time
  assert.deepEqual(ratesOf("stage=1&time=0-5"), [0.6, 4.8, 5]);
  assert.deepEqual(ratesOf("stage=2"), [1, 8, 1]);  // without a measured time
});

test("groups have the figures of pandas' groups", () => {
  for (const [key, wanted] of Object.entries(cases.groups)) {
    const groups = requestTable.groupRows(table, view(""), key.replace("_label", ""));
    assert.deepEqual(plain(groups.map(({ label }) => label)).sort(), wanted.map(({ label }) => label).sort());
    for (const { label, figures } of wanted) {
      const found = groups.find((group) => group.label === label).figures;
      for (const [name, value] of Object.entries(figures)) assertClose(found[name], value, `${key} ${label} ${name}`);
    }
  }
});

test("the filter of a dimension does not narrow the table by it", () => {
  assert.equal(requestTable.groupRows(table, view("name=rag"), "name").length, 2);
  assert.equal(requestTable.groupRows(table, view("name=rag"), "input").length, 1);
});

test("lines, edges, rates and the spectrum are the report's own", () => {
  const ok = requestTable.filterRows(table, view("")).filter(table.isOk);
  const lines = requestTable.percentileLines(table, ok, "ttft");
  assert.deepEqual(plain(lines.map(({ name }) => name)), cases.lines.map(({ name }) => name));
  cases.lines.forEach(({ name, x, y }, i) => {
    assertAllClose(lines[i].x, x, `${name} x`);
    assertAllClose(lines[i].y, y, `${name} y`);
  });
  for (const { low, high, count, edges } of cases.edges) assertAllClose(requestTable.roundEdges(low, high, count), edges, `edges of ${low} to ${high}`);
  assertAllClose(requestTable.spreadAmounts(cases.spread.spans, cases.spread.edges), cases.spread.sums, "spread");
  const { x, y } = requestTable.spectrum(table, ok, "ttft");
  assertAllClose(x, cases.spectrum.x, "spectrum x");
  assertAllClose(y, cases.spectrum.y, "spectrum y");
});

test("an address and its view are each other's", () => {
  for (const address of ["", "name=rag", "phase=*&turn=2&time=20-40.25", "name=chat&by=turn&bysort=-ttft95&sort=at&search=reset+by&request=r30"]) {
    const read = view(address);
    assert.deepEqual(plain(view(requestTable.writeAddress(read))), plain(read));
    assert.equal(requestTable.writeAddress(read), address);
  }
});

test("an address of a section, or of what is not there, filters nothing", () => {
  for (const address of ["s-notes", "name=nobody", "time=9-3", "nothing=1", "request=zzz", "by=nothing", "%"]) {
    assert.equal(requestTable.filterRows(table, view(address)).length, requestTable.filterRows(table, view("")).length, address);
    assert.equal(requestTable.isFiltered(view(address)), false, address);
  }
});

test("the start of a dimension is no filter", () => {
  const warm = requestTable.setFilter(table, view(""), "phase", "warmup");
  assert.equal(requestTable.isFiltered(warm), true);
  assert.equal(requestTable.isFiltered(requestTable.setFilter(table, warm, "phase", "profiling")), false);
});

test("what is missing comes last either way, and digits count as numbers", () => {
  assert.deepEqual(plain(requestTable.sortBy([3, null, 1, 2], (value) => value)), [1, 2, 3, null]);
  assert.deepEqual(plain(requestTable.sortBy([3, null, 1, 2], (value) => value, true)), [3, 2, 1, null]);
  assert.deepEqual(plain(requestTable.sortBy(["turn 10", "turn 9"], (value) => value)), ["turn 9", "turn 10"]);
});

test("a search finds ids, labels and errors", () => {
  const rows = requestTable.filterRows(table, view(""));
  assert.deepEqual(idsOf(requestTable.searchRows(table, rows, " R30 ")), ["r30"]);
  assert.equal(requestTable.searchRows(table, rows, "reset by peer").length, 4);
  assert.equal(requestTable.searchRows(table, rows, "").length, rows.length);
});

test("CSV quotes, leaves what is missing empty, and disarms formulas", () => {
  assert.equal(requestTable.toCsv(["a", "b"], [['x,"y"', null], ["=1+1", 2.5], ["-3 ms", -3]]), 'a,b\r\n"x,""y""",\r\n\'=1+1,2.5\r\n\'-3 ms,-3\r\n');
});

test("neighbours are those in flight at the same time", () => {
  const row = table.ids.indexOf("r30"), { shown, all } = requestTable.findNeighbours(table, row);
  const own = requestTable.momentsOf(table, row);
  const beside = requestTable.allRows(table).filter((other) => {
    const at = requestTable.momentsOf(table, other);
    return other !== row && at.sent < own.end && at.end > own.due;
  });
  assert.equal(all, beside.length);
  assert.deepEqual(idsOf(shown.map(({ row: other }) => other)).sort(), idsOf(beside).sort());
  assert.equal(requestTable.findNeighbours(table, row, 1).shown.length, 1);
});

test("the parts of a request stand one after the other, those after the first token from it on", () => {
  const row = table.ids.indexOf("r30"), own = requestTable.momentsOf(table, row);
  const only = (value) => cases.sample.ids.map((_, i) => (i === row ? value : null));
  const split = requestTable.readTable({ ...cases.sample, parts: { gate: only(125), queue: only(100), prefill: only(400), decode: only(90) } });
  const parts = requestTable.partsOf(split, row);
  assert.deepEqual(plain(parts.map(({ name }) => name)), ["gate", "queue", "prefill", "decode"]);
  assertAllClose(parts.map(({ from }) => from - own.due), [0, 0.125, 0.225, own.first - own.due], "begins");
  assertClose(parts[3].to - parts[3].from, 0.09);
  assert.deepEqual(plain(requestTable.partsOf(table, row).map(({ name }) => name)), ["late", "gate", "server", "decode"]);
});

test("levels are those of a pencil", () => {
  const row = table.ids.indexOf("r30"), at = requestTable.momentsOf(table, row);  // rag: 528 ms, then 7 gaps of 60 ms
  assertClose(at.sent - at.gate, 0.125, "gate");
  assertClose(at.sent - at.due, 0.25, "due");
  const { waiting, prefill, decoding } = requestTable.levelsOverTime(table, [row], [14.875, 15, 15.25, 16.25]);
  assertAllClose(waiting, [1, 0, 0], "waiting");
  assertAllClose(prefill, [0, 1, at.first - 15.25], "prefill");
  assertAllClose(decoding, [0, 0, at.end - at.first], "decoding");
});

test("a sample counts each request by its weight", () => {
  const weighted = requestTable.readTable({ ...cases.sample, weights: cases.sample.ids.map(() => 3) });
  const rows = requestTable.filterRows(weighted, requestTable.newView());
  const once = requestTable.summarise(table, rows, 50), thrice = requestTable.summarise(weighted, rows, 50);
  assert.equal(thrice.requests, 3 * once.requests);
  assertClose(thrice.tokensPerS, 3 * once.tokensPerS);
  assertClose(thrice.failed, once.failed);
});

test("an unfiltered sample shows the figures of all requests", () => {
  const dimensions = cases.sample.dimensions.map((one) => ({ ...one, whole: one.labels.map((_, i) => requestTable.FIGURES.map((__, n) => 100 * i + n)) }));
  const weighted = requestTable.readTable({ ...cases.sample, dimensions, weights: cases.sample.ids.map(() => 3) });
  assert.equal(requestTable.groupRows(weighted, view(""), "name")[1].figures.requests, 100);
  assert.notEqual(requestTable.groupRows(weighted, view("turn=1"), "name")[1].figures.requests, 100);
});

test("a chart has the requests that were chosen, and the report's lines where nothing is", () => {
  const line = { name: "p50", hue: "p50", x: [1], y: [2] };
  const plot = { key: "ttft", caption: "all", x: { unit: "s", low: 0, high: 60 }, y: { unit: "ms" }, series: [line], marks: [{ text: "limit", y: 3000 }] };
  const all = requestPlots.choose(plot, table, view(""));
  assert.deepEqual(plain(all.series.map(({ name }) => name)), ["warmup", "request", "p50"]);
  const some = requestPlots.choose(plot, table, view("name=rag&time=20-40"));
  assert.deepEqual(plain([some.x.low, some.x.high]), [20, 40]);
  assert.ok(some.series[0].rows.every((row) => table.label("name", row) === "rag"));
  assert.equal(some.marks[0].y, 3000);
  assert.equal(requestPlots.choose({ ...plot, key: "" }, table, view("name=rag")).series[0], line);
});
