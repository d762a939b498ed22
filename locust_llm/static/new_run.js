// The form of a new run: shows the fields that its goal needs, hides what does not matter, finds options, starts the run.
"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const form = by("run"), answer = by("answer");
  const page = document.querySelector("main");   // a form's own properties are hidden by fields of their names
  const { goals, loads } = JSON.parse(by("goals").dataset.described);
  const fields = [...page.querySelectorAll(".field[data-flag]")].map((box) => {
    const input = box.querySelector("[name]"), group = box.closest("details");
    return { box, input, name: input.name, group, home: group.dataset.home, label: box.querySelector("label, .label").textContent };
  });
  const named = new Map(fields.map((field) => [field.name, field]));
  const arms = [by("of-candidate"), by("of-candidate_set")];

  // -- values --------------------------------------------------------------------------------------------------------------

  const isSwitch = (input) => input.type === "checkbox";
  const read = (input) => (isSwitch(input) ? String(input.checked) : input.value);
  function write({ input, show }, value) {
    if (isSwitch(input)) input.checked = value === "true";
    else input.value = value;
    show?.();
  }
  const isSet = ({ box, input }) => {
    if (box.hidden) return false;
    return isSwitch(input) ? input.checked : !["", input.dataset.default].includes(input.value.trim());
  };
  const isChanged = ({ box, input }) => !box.hidden && (isSwitch(input) ? read(input) !== input.dataset.default : isSet({ box, input }));
  // What a run gets: nothing of a hidden field, of a hidden switch its default.
  function readSent({ box, input }) {
    if (!box.hidden) return read(input);
    return isSwitch(input) ? input.dataset.default : "";
  }
  const readAll = () => Object.fromEntries(fields.map((field) => [field.name, read(field.input)]));
  const readAllSent = () => Object.fromEntries(fields.map((field) => [field.name, readSent(field)]));

  function fillSelect(select, options, value) {
    select.replaceChildren(...options.map(([one, text]) => new Option(text, one, one === value, one === value)));
  }

  // -- the goal, and what it needs -----------------------------------------------------------------------------------------

  const memory = runGoals.newMemory();
  let goal = goals[0], load = "users";

  // In the order of the page a field may come before the one that it needs: so until nothing changes.
  function hide() {
    for (let again = true; again;) {
      again = false;
      for (const { box } of fields) {
        const needs = box.dataset.needs.split(" ").filter(Boolean);
        const unwanted = needs.filter((name) => name.startsWith("!")).map((name) => name.slice(1));
        const wanted = needs.filter((name) => !name.startsWith("!"));
        const hasAny = (names) => names.some((name) => isSet(named.get(name)));
        const matters = !hasAny(unwanted) && (!wanted.length || hasAny(wanted));
        if (box.hidden === matters) again = true;
        box.hidden = !matters;
      }
    }
  }
  // Each field is in one place: where the goal needs it, else among what is set, else in its group of all options.
  function place() {
    const focused = document.activeElement;
    const wanted = runGoals.listFields(goal, loads, readAllSent(), load);
    const chosen = fields.filter(({ name, home }) => wanted.includes(name) || home === "Locustfile");
    chosen.sort((one, other) => wanted.indexOf(one.name) - wanted.indexOf(other.name));
    for (const { box, home } of chosen) page.querySelector(`[data-section="${home}"] > .main`).append(box);
    const others = fields.filter((field) => !chosen.includes(field));
    const isAlso = (field) => isChanged(field) && read(field.input) !== goal.values[field.name];
    const also = others.filter(isAlso);
    by("also").querySelector(".main").append(...also.map(({ box }) => box));
    by("also").hidden = !also.length;
    for (const { box, group } of others.filter((field) => !also.includes(field))) group.querySelector(".pool").append(box);
    countPools();
    by("loads").hidden = !runGoals.needsLoad(goal, readAllSent());
    by("arms").hidden = goal.starts_here;
    by("start").textContent = goal.starts_here ? "Start" : "Show the command that starts it";
    by("command").hidden = !goal.starts_here;
    page.querySelector(`[name=goal][value=${goal.name}]`).checked = true;
    page.querySelector(`[name=load][value=${load}]`).checked = true;
    if (focused !== document.activeElement) focused.focus();
  }
  function countPools() {
    for (const group of page.querySelectorAll("details[data-home]")) {
      const boxes = fields.filter(({ box }) => group.contains(box) && !box.hidden);
      group.hidden = !boxes.length;
      group.querySelector("summary small").textContent = boxes.length === 1 ? "1 option" : `${boxes.length} options`;
    }
  }
  function showSweepAxes() {
    const { box } = named.get("sweep");
    box.classList.toggle("fixed", goal.axes.length === 1);
    for (const option of box.querySelectorAll(".axis option")) option.hidden = option.disabled = goal.axes.length > 0 && !goal.axes.includes(option.value);
    box.querySelector(".label").textContent = goal.axes.length === 1 ? "Limits to try" : "What changes, and its values";
  }
  function update() {
    hide();
    showSweepAxes();
    named.get("slo").showOperators();
    place();
  }
  function chooseGoal(to) {
    const changes = runGoals.changeGoal(goals, goal, to, readAll(), memory);
    goal = to;
    Object.entries(changes).forEach(([name, value]) => write(named.get(name), value));
    load = runGoals.findLoad(readAll());
    clearMistakes();
    update();
    keep();
  }
  function chooseLoad(to) {
    const changes = runGoals.changeLoad(loads, load, to, readAll(), memory);
    load = to;
    Object.entries(changes).forEach(([name, value]) => write(named.get(name), value));
    update();
    keep();
  }
  // Away from what the goal shows, a value may make the run one of another goal.
  function followValues(target) {
    if (!goal.starts_here || target.closest("[data-section]")) return;
    const found = runGoals.findGoal(goals, readAllSent());
    if (found === goal) return;
    goal = found;
    load = runGoals.findLoad(readAll());
    update();
  }

  // -- a sweep: what changes, and its values -------------------------------------------------------------------------------

  function makeSweep(field) {
    const { box, input } = field, axis = box.querySelector(".axis"), values = box.querySelector(".values");
    field.show = () => {
      const parts = runGoals.splitSweep(input.value);
      axis.value = parts.axis;
      values.value = parts.values;
    };
    box.addEventListener("input", () => {
      input.value = runGoals.joinSweep({ axis: axis.value, values: values.value });
    });
    axis.addEventListener("change", () => { if (box.closest("[data-section]")) update(); });
    field.focus = () => values.focus();
    field.show();
  }

  // -- rules: a row each, or text ------------------------------------------------------------------------------------------

  function makeRules(field) {
    const { box, input } = field, list = box.querySelector(".rows"), asText = box.querySelector(".as-text"), add = box.querySelector(".add");
    const metrics = new Map(JSON.parse(list.dataset.metrics).map((metric) => [metric.word, metric]));
    let rows = [];
    const isText = () => asText.getAttribute("aria-pressed") === "true";
    const writeRules = () => { input.value = rows.map(({ row }) => ruleRows.formatRule(row)).join("\n"); };

    function makeControls(one) {
      if ("text" in one.row) return [Object.assign(document.createElement("input"), { type: "text", value: one.row.text, className: "whole", spellcheck: false })];
      return [document.createElement("select"), document.createElement("select"), document.createElement("select"),
        Object.assign(document.createElement("input"), { type: "text", inputMode: "decimal", placeholder: "limit", autocomplete: "off" }),
        document.createElement("select")];
    }
    function readRow(one, changed) {
      const [metric, stat, op, number, unit] = one.controls;
      if ("text" in one.row) one.row = { text: metric.value };
      else if (changed === metric) one.row = ruleRows.changeMetric(one.row, metrics.get(metric.value));
      else if (changed === op) one.row = ruleRows.changeOperator(one.row, op.value, metrics.get(one.row.metric));
      else one.row = { ...one.row, stat: stat.value, number: number.value, unit: unit.value };
      mark(one, "");
      showRow(one);
    }
    function showRow(one) {
      const { row } = one;
      one.text.textContent = "text" in row ? "" : ruleRows.formatRule(row);
      if ("text" in row) return;
      const [metric, stat, op, number, unit] = one.controls, known = metrics.get(row.metric);
      const same = (words) => words.map((word) => [word, word]);
      fillSelect(metric, [...metrics.values()].map(({ word, name }) => [word, name]), row.metric);
      fillSelect(stat, known.has_statistic ? same([...new Set([...ruleRows.STATISTICS, row.stat])]) : [["", "-"]], row.stat);
      stat.disabled = !known.has_statistic;
      const operators = ruleRows.OPERATORS.filter((word) => word !== ruleRows.WITHIN || row.op === word || !goal.starts_here);
      fillSelect(op, operators.map((word) => [word, word === ruleRows.WITHIN ? "within, of A" : word]), row.op);
      if (number.value !== row.number) number.value = row.number;
      const units = ruleRows.unitsOf(known, row.op);
      fillSelect(unit, same(units), row.unit);
      unit.disabled = units.length === 1;
    }
    function mark(one, why) {
      one.mistake.textContent = why;
      const control = one.controls[3] ?? one.controls[0];
      if (why) control.setAttribute("aria-invalid", "true");
      else control.removeAttribute("aria-invalid");
      return control;
    }
    function makeRow(row) {
      const one = { row, element: document.createElement("div"), text: document.createElement("code"), mistake: document.createElement("p") };
      const parts = document.createElement("div"), remove = document.createElement("button");
      one.controls = makeControls(one);
      one.element.className = "rule";
      parts.className = "parts";
      one.mistake.className = "mistake";
      one.mistake.setAttribute("role", "alert");
      remove.type = "button";
      remove.className = "remove";
      remove.textContent = "\u00d7";
      remove.addEventListener("click", () => {
        const index = rows.indexOf(one);
        rows.splice(index, 1);
        show();
        writeRules();
        (rows[Math.min(index, rows.length - 1)]?.controls[0] ?? add).focus();
        box.dispatchEvent(new Event("input", { bubbles: true }));
      });
      one.remove = remove;
      parts.append(...one.controls, remove);
      one.element.append(parts, one.text, one.mistake);
      one.element.addEventListener("input", ({ target }) => { readRow(one, target); writeRules(); });
      showRow(one);
      return one;
    }
    const NAMES = ["Metric", "Statistic", "Operator", "Limit", "Unit"];
    function show() {
      rows.forEach((one, i) => {
        const names = "text" in one.row ? ["Text"] : NAMES;
        one.controls.forEach((control, part) => control.setAttribute("aria-label", `${names[part]} of SLO ${i + 1}`));
        one.remove.setAttribute("aria-label", `Remove SLO ${i + 1}`);
        one.mistake.id = `mistake-${i + 1}`;
        (one.controls[3] ?? one.controls[0]).setAttribute("aria-describedby", one.mistake.id);
      });
      list.replaceChildren(...rows.map(({ element }) => element));
    }
    field.show = () => {
      rows = input.value.split("\n").filter((text) => text.trim()).map((text) => makeRow(ruleRows.parseRule(text, metrics)));
      show();
    };
    add.addEventListener("click", () => {
      rows.push(makeRow(ruleRows.newRow(metrics.get("ttft"))));
      show();
      writeRules();
      rows.at(-1).controls[0].focus();
      keep();
    });
    asText.addEventListener("click", () => {
      asText.setAttribute("aria-pressed", String(!isText()));
      input.hidden = box.querySelector("label").hidden = !isText();
      list.hidden = add.hidden = isText();
      if (!isText()) field.show();
    });
    field.showOperators = () => rows.forEach(showRow);
    field.clear = () => rows.forEach((one) => mark(one, ""));
    // The first control with a mistake, of those that need no load generator to be seen.
    field.findMistake = () => {
      if (isText()) return null;
      return rows.map((one) => [one, ruleRows.findMistake(one.row)]).filter(([, why]) => why).map(([one, why]) => mark(one, why))[0] ?? null;
    };
    field.refuse = (message) => {
      if (isText()) return null;
      const found = ruleRows.findRefused(message, rows.map(({ row }) => ruleRows.formatRule(row)));
      return found && mark(rows[found.index], found.why);
    };
    field.focus = () => (isText() ? input : rows[0]?.controls[0] ?? add).focus();
    field.show();
  }

  makeSweep(named.get("sweep"));
  makeRules(named.get("slo"));

  // -- what was typed ------------------------------------------------------------------------------------------------------

  // It stays until a run has started, also where a refusal led to another page in between. Not the dataset: an upload ends.
  const TYPED = "locust-llm: typed into the form of a run";
  const given = new Map(fields.map(({ name, input }) => [name, read(input)]));
  const kept = fields.filter(({ name }) => !["dataset", "scenario"].includes(name));
  // The fields of another workload come from the load generator, and what was typed comes back.
  const workload = named.get("scenario").input;
  const choose = (scenario) => location.replace(`new?${new URLSearchParams({ scenario })}`);
  workload.addEventListener("change", () => { keep(); choose(workload.value); });
  // What a goal sets by itself is not typed: the sweep of another workload takes its place.
  const isTyped = ({ name, input }) => {
    const value = read(input);
    return value !== given.get(name) && (["", "false"].includes(value) || value !== goal.values[name]);
  };
  const pastRun = new URLSearchParams(location.search).get("like");
  // A header may be a secret.
  const readArms = () => [arms[0].value, arms[1].value.split("\n").filter((line) => !/^\s*header:/i.test(line)).join("\n")];
  function keep() {
    const typed = kept.filter(isTyped).map(({ name, input }) => [name, read(input)]);
    try {
      sessionStorage.setItem(TYPED, JSON.stringify({ scenario: workload.value, like: pastRun, goal: goal.name, load, arms: readArms(), typed }));
    } catch { /* a browser that keeps nothing */ }
  }
  function forget() {
    try { sessionStorage.removeItem(TYPED); } catch { /* a browser that keeps nothing */ }
  }
  function readRecord() {
    const nothing = { scenario: workload.value, goal: "", load: "", arms: ["", ""], typed: [] };
    try {
      const record = { ...nothing, ...JSON.parse(sessionStorage.getItem(TYPED)) };
      return pastRun && record.like !== pastRun ? nothing : record;   // the form is that of a past run
    } catch {
      forget();
      return nothing;
    }
  }
  function bringBack() {
    const record = readRecord();
    if (record.scenario !== workload.value && !location.search) return choose(record.scenario);
    for (const [name, value] of record.typed) {
      if (named.has(name)) write(named.get(name), value);
    }
    record.arms.forEach((value, i) => { arms[i].value = value; });
    hide();
    goal = runGoals.findGoal(goals, readAllSent());
    load = loads[record.load] ? record.load : runGoals.findLoad(readAll());
    // a workload may have a sweep of its own, which a first look would take away
    const wanted = goals.find(({ name }) => name === record.goal);
    if (wanted && wanted !== goals[0] && wanted !== goal) chooseGoal(wanted);
    by("forget").hidden = !record.typed.length && goal === goals[0] && !location.search;
  }
  by("forget").addEventListener("click", () => { forget(); location.replace("new"); });

  form.addEventListener("input", ({ target }) => {
    if (target.closest("#goals, #loads, .find")) return;
    hide();
    countPools();
    keep();
    by("forget").hidden = false;
    if (!target.hasAttribute("aria-invalid") && !target.closest(".rules")) return;
    target.removeAttribute("aria-invalid");
    answer.textContent = "";
  });
  form.addEventListener("change", ({ target }) => {
    if (target.name === "goal") chooseGoal(goals.find(({ name }) => name === target.value));
    else if (target.name === "load") chooseLoad(target.value);
    else followValues(target);
  });
  bringBack();
  update();
  if (new URLSearchParams(location.search).has("scenario")) workload.focus({ preventScroll: true });

  // -- the search ----------------------------------------------------------------------------------------------------------

  const flags = [...page.querySelectorAll(".flags li")];
  const entries = [...fields.map((field) => ({ text: `${field.label} ${field.box.querySelector(".help").textContent}`, field })),
    ...flags.map((flag) => ({ text: flag.textContent, flag }))];
  const groups = [...page.querySelectorAll("#all details")];
  let opened = null;   // the groups that were open before the search

  function describeElsewhere(field) {
    const item = document.createElement("li"), button = document.createElement("button"), isHidden = field.box.hidden;
    const needs = field.box.dataset.needs.split(" ").filter(Boolean);
    const target = isHidden ? named.get(needs.at(-1).replace("!", "")) : field;
    const hindrance = needs.at(-1)?.startsWith("!") ? "has no effect beside" : "has no effect without";
    button.type = "button";
    button.textContent = target.label;
    button.addEventListener("click", () => reveal(target));
    item.append(...(isHidden ? [`${field.label} `, field.box.querySelector(".help code").cloneNode(true), ` ${hindrance} `] : ["Above: "]), button);
    return item;
  }
  function find() {
    const query = by("search").value, found = runGoals.findEntries(entries, query), isSearch = query.trim() !== "";
    if (isSearch) opened ??= groups.filter((group) => group.open);
    const isFound = new Set(found.map(({ field, flag }) => field?.box ?? flag));
    for (const one of [...fields.map(({ box }) => box), ...flags]) one.classList.toggle("out", isSearch && Boolean(one.closest("#all")) && !isFound.has(one));
    if (!isSearch) {
      groups.forEach((group) => { group.open = Boolean(opened?.includes(group)); group.classList.remove("out"); });
      opened = null;
      place();
    } else {
      for (const group of groups) {
        const hasAny = Boolean(group.querySelector(":is(.field, li):not(.out, [hidden])"));
        group.open = hasAny;
        group.classList.toggle("out", !hasAny);
      }
    }
    const elsewhere = found.filter(({ field }) => field && (field.box.hidden || !field.box.closest("#all")));
    by("elsewhere").replaceChildren(...elsewhere.map(({ field }) => describeElsewhere(field)));
    by("elsewhere").hidden = !elsewhere.length;
    by("found").textContent = isSearch ? `${found.length} of ${entries.length} options` : "";
  }
  by("search").addEventListener("input", find);
  by("search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { by("search").value = ""; find(); }
    if (event.key !== "Enter") return;
    event.preventDefault();   // it would start the run
    const first = page.querySelector("#elsewhere button, #all .field:not(.out, [hidden]) :is(input, select, textarea):not([hidden], [type=hidden])");
    first?.focus();
  });

  // -- the start -----------------------------------------------------------------------------------------------------------

  function readBody() {
    return new URLSearchParams(Object.entries(readAllSent()));
  }
  function reveal(field) {
    const folded = field.box.closest("details");
    if (folded) folded.open = true;
    field.box.classList.remove("out");
    folded?.classList.remove("out");
    field.box.scrollIntoView({ block: "center" });
    if (field.focus) field.focus();
    else field.input.focus({ preventScroll: true });
  }
  function clearMistakes() {
    answer.textContent = "";
    for (const invalid of page.querySelectorAll("[aria-invalid]")) invalid.removeAttribute("aria-invalid");
    named.get("slo").clear();
  }
  const ARM_FLAGS = { "--candidate": arms[0], "--candidate-set": arms[1] };
  function refuse(message) {
    answer.className = "";
    answer.textContent = message;
    const control = named.get("slo").refuse(message);
    if (control) return control.focus();
    const words = message.match(/(^|\s)--?[a-z][a-z-]*/g)?.map((flag) => flag.trim()) ?? [];
    if (/^SLO /.test(message)) words.unshift("--slo");
    if (/^cannot reach/.test(message)) words.unshift("-H");
    const spelled = (flag) => (flag === "--host" ? "-H" : flag.replace(/^--no-/, "--"));
    const arm = goal.starts_here ? null : words.map((flag) => ARM_FLAGS[flag]).find(Boolean);
    if (arm) {
      arm.setAttribute("aria-invalid", "true");
      return arm.focus();
    }
    const known = (flag) => fields.find(({ box }) => box.dataset.flag === spelled(flag) && !box.hidden);
    const field = words.map(known).find(Boolean);
    if (!field) return null;
    field.input.setAttribute("aria-invalid", "true");
    return reveal(field);
  }
  // What is missing or wrong before anything is asked. Returns whether there is nothing.
  function check() {
    clearMistakes();
    const mistake = named.get("slo").findMistake();
    if (mistake) {
      answer.className = "";
      answer.textContent = "An SLO is not complete.";
      mistake.focus();
      return false;
    }
    const missing = Object.keys(goal.needed).find((name) => !readSent(named.get(name)).trim());
    if (!missing) return true;
    answer.className = "";
    answer.textContent = goal.needed[missing];
    reveal(named.get(missing));
    return false;
  }
  const explain = (error) => (error instanceof TypeError || error instanceof SyntaxError ? "No answer from the load generator." : error.message);
  async function ask(address, body) {
    const got = await fetch(address, { method: "POST", body });
    if (got.redirected) throw new Error("Signed out: reload the page.");
    if (got.status === 413) throw new Error(await got.text());
    return got.json();
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!goal.starts_here) return showCommand();
    if (!check()) return null;
    answer.className = "busy";
    answer.textContent = "Checking the server …";
    by("start").disabled = true;
    try {
      const { success, message } = await ask("../swarm", readBody());
      if (success) { forget(); location.assign("../llm"); }
      else refuse(message);
    } catch (error) {
      refuse(explain(error));
    } finally {
      by("start").disabled = false;
    }
    return null;
  });

  // -- the command line ----------------------------------------------------------------------------------------------------

  async function showCommand() {
    if (!check()) return;
    const body = readBody();
    if (!goal.starts_here) arms.forEach(({ name, value }) => body.set(name, value));
    try {
      const { success, message, command, notes } = await ask("command", body);
      if (!success) { refuse(message); return; }
      answer.textContent = by("copied").textContent = "";
      by("words").textContent = command;
      by("notes").replaceChildren(...notes.map((note) => Object.assign(document.createElement("li"), { textContent: note })));
      by("shown").showModal();
    } catch (error) {
      refuse(explain(error));
    }
  }
  by("command").addEventListener("click", showCommand);
  by("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(by("words").textContent);
      by("copied").textContent = "Copied.";
    } catch {   // a page of another machine without TLS may not
      getSelection().selectAllChildren(by("words"));
      by("copied").textContent = "Selected: press Ctrl+C.";
    }
  });

  // -- the upload ----------------------------------------------------------------------------------------------------------

  by("file").addEventListener("change", async () => {
    const file = by("file").files[0], result = by("uploaded"), list = named.get("dataset").input;
    if (!file) return;
    const report = (text, kind) => { [result.textContent, result.className] = [text, kind]; };
    if (file.size > Number(by("file").dataset.most)) return report("The file is too large.", "loud");
    report("Uploading …", "plain");
    by("start").disabled = true;
    try {
      const got = await fetch(`datasets?${new URLSearchParams({ name: file.name })}`, { method: "POST", body: file,
        headers: { "Content-Type": "application/octet-stream" } });
      if (got.redirected) throw new Error("Signed out: reload the page.");
      if (got.status === 413) throw new Error(await got.text());
      const { done, message, choice, name } = await got.json();
      if (!done) throw new Error(message);
      list.querySelectorAll("option[value^='upload:']").forEach((option) => option.remove());
      list.append(new Option(`${name}, uploaded`, choice, true, true));
      report("Uploaded.", "pass");
      hide();
      countPools();
    } catch (error) {
      report(error instanceof TypeError || error instanceof SyntaxError ? "The upload failed." : error.message, "loud");
    } finally {
      by("start").disabled = false;
      by("file").value = "";
    }
    return null;
  });
})();
