"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { loadScripts, plain } = require("./load_scripts.js");

const { runGoals } = loadScripts();
const goal = (name, values, more = {}) => ({ name, values, fields: ["run_time", "slo"], axes: [], has_load: false, ...more });
const LOOK = goal("look", { sweep: "", find_max: "false", fixed_schedule: "false" }, { has_load: true });
const RISING = { sweep: "concurrency=1..64", fixed_schedule: "false", user_count: "" };
const CAPACITY = goal("capacity", { ...RISING, find_max: "true" }, { axes: ["concurrency", "input-tokens"], fields: ["sweep", "run_time"] });
const CURVE = goal("curve", { ...RISING, find_max: "false" }, { axes: ["concurrency", "input-tokens"], fields: ["sweep", "run_time"] });
const LIMIT = goal("limit", { sweep: "prefill-concurrency=1..8", find_max: "false", fixed_schedule: "false" }, { axes: ["prefill-concurrency"], has_load: true, fields: ["sweep"] });
const REPLAY = goal("replay", { sweep: "", find_max: "false", fixed_schedule: "true" });
const GOALS = [LOOK, CAPACITY, CURVE, LIMIT, REPLAY];
const LOADS = { users: { fields: ["user_count"] }, rate: { fields: ["request_rate", "arrival_pattern"] } };
const EMPTY = { sweep: "", find_max: "false", fixed_schedule: "false", user_count: "", request_rate: "", arrival_pattern: "" };

test("a run's values make its goal", () => {
  const nameOf = (values) => runGoals.findGoal(GOALS, { ...EMPTY, ...values }).name;
  assert.equal(nameOf({ user_count: "5" }), "look");
  assert.equal(nameOf({ sweep: "concurrency=1,2" }), "curve");
  assert.equal(nameOf({ sweep: "request-rate=1,2", find_max: "true" }), "capacity");
  assert.equal(nameOf({ sweep: "prefill-concurrency=1..8", find_max: "true" }), "limit");
  assert.equal(nameOf({ fixed_schedule: "true" }), "replay");
});

test("a sweep is what changes, and its values", () => {
  assert.deepEqual(plain(runGoals.splitSweep("concurrency = 64,128..2048+64")), { axis: "concurrency", values: "64,128..2048+64" });
  assert.deepEqual(plain(runGoals.splitSweep("")), { axis: "", values: "" });
  assert.equal(runGoals.joinSweep({ axis: "request-rate", values: " 1..8 " }), "request-rate=1..8");
  assert.equal(runGoals.joinSweep({ axis: "concurrency", values: " " }), "");
});

test("a goal takes the values that make it, and the way back has what was there", () => {
  const memory = runGoals.newMemory(), values = { ...EMPTY, user_count: "7" };
  const go = (from, to) => {
    const changes = plain(runGoals.changeGoal(GOALS, from, to, values, memory));
    Object.assign(values, changes);
    return changes;
  };
  assert.deepEqual(go(LOOK, CAPACITY), { sweep: "concurrency=1..64", find_max: "true", user_count: "" });
  values.sweep = "concurrency=2,3";
  assert.deepEqual(go(CAPACITY, CURVE), { find_max: "false" });
  assert.deepEqual(go(CURVE, LIMIT), { sweep: "prefill-concurrency=1..8", user_count: "7" });
  assert.deepEqual(go(LIMIT, REPLAY), { sweep: "", fixed_schedule: "true" });
  assert.deepEqual(go(REPLAY, LOOK), { fixed_schedule: "false" });
  assert.deepEqual(go(LOOK, CAPACITY), { sweep: "concurrency=2,3", find_max: "true", user_count: "" });
});

test("a load replaces the other one, and the way back has what was there", () => {
  const memory = runGoals.newMemory(), values = { ...EMPTY, user_count: "7" };
  Object.assign(values, plain(runGoals.changeLoad(LOADS, "users", "rate", values, memory)));
  assert.deepEqual([values.user_count, values.request_rate], ["", ""]);
  values.request_rate = "2.5";
  Object.assign(values, plain(runGoals.changeLoad(LOADS, "rate", "users", values, memory)));
  assert.deepEqual([values.user_count, values.request_rate], ["7", ""]);
  Object.assign(values, plain(runGoals.changeLoad(LOADS, "users", "rate", values, memory)));
  assert.deepEqual([values.user_count, values.request_rate], ["", "2.5"]);
});

test("the fields of the load come before the length of the run, where a load is needed", () => {
  const fieldsOf = (one, values, load) => plain(runGoals.listFields(one, LOADS, { ...EMPTY, ...values }, load));
  assert.deepEqual(fieldsOf(LOOK, {}, "users"), ["user_count", "run_time", "slo"]);
  assert.deepEqual(fieldsOf(LOOK, {}, "rate"), ["request_rate", "arrival_pattern", "run_time", "slo"]);
  assert.deepEqual(fieldsOf(CURVE, { sweep: "concurrency=1,2" }, "users"), ["sweep", "run_time"]);
  assert.deepEqual(fieldsOf(CURVE, { sweep: "input-tokens=500,1000" }, "users"), ["user_count", "sweep", "run_time"]);
});

test("a search finds every word, in any order", () => {
  const entries = [{ text: "Prefix prompt length --prefix-prompt-length" }, { text: "Number of prefix prompts" }, { text: "Model" }];
  const count = (query) => runGoals.findEntries(entries, query).length;
  assert.deepEqual(["prefix", "LENGTH prefix", "--prefix", "nothing", " "].map(count), [2, 1, 1, 0, 0]);
});
