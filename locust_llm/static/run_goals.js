// Goals of a run: which one a form's values make, the values that another one takes, and the options that a search finds.
"use strict";
const runGoals = (() => {
  const splitSweep = (text) => {
    const at = text.indexOf("=");
    return at < 0 ? { axis: "", values: text.trim() } : { axis: text.slice(0, at).trim(), values: text.slice(at + 1).trim() };
  };
  const joinSweep = ({ axis, values }) => (axis && values.trim() ? `${axis}=${values.trim()}` : "");

  // ``values``: texts by name, of a switch "true" or "false". The goal of a run with them.
  function findGoal(goals, values) {
    const named = (name) => goals.find((goal) => goal.name === name);
    if (values.fixed_schedule === "true") return named("replay");
    if (!values.sweep) return named("look");
    if (named("limit").axes.includes(splitSweep(values.sweep).axis)) return named("limit");
    return named(values.find_max === "true" ? "capacity" : "curve");
  }
  const findLoad = (values) => (values.request_rate ? "rate" : "users");
  // A sweep of loads has its own; one of prompt lengths has not.
  const needsLoad = (goal, values) => goal.has_load || splitSweep(values.sweep ?? "").axis === "input-tokens";

  // The fields to show, in their order: those of the load come before the length of the run.
  function listFields(goal, loads, values, load) {
    if (!needsLoad(goal, values)) return [...goal.fields];
    const at = goal.fields.findIndex((name) => ["sweep", "run_time"].includes(name));
    return [...goal.fields.slice(0, at), ...loads[load].fields, ...goal.fields.slice(at)];
  }

  // What each goal takes for its own, by its name, and what belongs to none: so a way back finds everything again.
  const newMemory = () => ({ none: {} });
  function chooseValue(goal, name, now) {
    const wanted = goal.values[name];
    if (name !== "sweep" || !wanted) return wanted;
    return goal.axes.includes(splitSweep(now).axis) ? now : wanted;
  }
  // The values that change from one goal to another. ``memory`` is written to.
  function changeGoal(goals, from, to, values, memory) {
    const changes = {};
    for (const name of new Set(goals.flatMap((goal) => Object.keys(goal.values)))) {
      const now = values[name] ?? "";
      const [before, after] = [from, to].map((goal) => (name in goal.values ? goal.name : "none"));
      (memory[before] ??= {})[name] = now;
      if (before === after) continue;
      const kept = memory[after]?.[name];
      const value = kept ?? (name in to.values ? chooseValue(to, name, now) : "");
      if (value !== now) changes[name] = value;
    }
    return changes;
  }
  function changeLoad(loads, from, to, values, memory) {
    const changes = {};
    for (const name of loads[from].fields) {
      (memory[from] ??= {})[name] = values[name] ?? "";
      changes[name] = "";
    }
    for (const name of loads[to].fields) changes[name] = memory[to]?.[name] ?? values[name] ?? "";
    return changes;
  }

  // The entries with every word of the query, in any of their texts.
  function findEntries(entries, query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    return words.length ? entries.filter(({ text }) => words.every((word) => text.toLowerCase().includes(word))) : [];
  }

  return { splitSweep, joinSweep, findGoal, findLoad, needsLoad, listFields, newMemory, changeGoal, changeLoad, findEntries };
})();
