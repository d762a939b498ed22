// The live page: polls the state of the run once a second. Its charts are in live_charts.js, its side panel in live_side.js.
"use strict";
(() => {
  const { history } = liveCharts, { element, many, ms } = liveSide;
  const by = (id) => document.getElementById(id);
  const EVERY_MS = 1000, LINES_EVERY = 2, PATIENCE_MS = 3000, MOST_PATIENCE_MS = 12_000, LOOK_MS = 500, ANSWER_MS = 6000;
  const QUANTILES = ["p50", "p90", "p95", "p99"];
  let run = null, step = 1, asked = 0, state = "", isFrozen = false, last = null;

  // -- words ---------------------------------------------------------------------------------------------------------------------

  const KINDS = {
    FAIL: "loud", INVALID: "loud", "broken so far": "loud", "cannot pass": "loud", failed: "loud", PASS: "pass", OK: "pass", "OK so far": "pass", passed: "pass",
    "no value yet": "plain", "checked at the end": "plain",
  };
  const kindOf = (word) => KINDS[word] || "open";
  const figure = (value) => chartFormat.brief(value, "", 3);
  function marked(value, count, i, form, inexact) {
    return value === undefined || value === null ? "–" : liveValues.markPercentile(form(value), QUANTILES[i], count, inexact);
  }
  const FEW = "* too few values for this percentile";

  // -- the bar ---------------------------------------------------------------------------------------------------------------------

  const WORDS = { none: "no run yet", starting: "starting", on: "running", ending: "ending", over: "ended" };
  function showBadges(status) {
    const all = [[WORDS[status.state], { on: "pass", starting: "open", ending: "open" }[status.state] || "plain"]];
    if (status.slo) all.push([`SLO ${status.slo}`, kindOf(status.slo)]);
    if (status.client && status.client.level !== "OK") all.push([`measurement ${status.client.level}`, kindOf(status.client.level)]);
    if (status.simulated) all.push(["simulated", "open"]);
    by("badges").replaceChildren(...all.map(([text, kind]) => element("li", text, kind)));
  }
  function showClock(status) {
    const planned = liveValues.findPlanned(status.progress), share = liveValues.findShare(status.progress);
    history.planned = planned;
    const now = chartFormat.clock(status.seconds ?? 0);
    const isOn = status.state === "on";
    const of = isOn && planned !== null ? ` of ${chartFormat.clock(planned)}` : "";
    const where = ["none", "over"].includes(status.state) ? "" : status.where;
    const phase = of && !status.stages?.length ? status.progress.phase : where;
    by("clock").textContent = status.run ? [`${now}${of}`, phase].filter(Boolean).join(" · ") : "";
    const bar = by("progress");
    bar.hidden = !status.progress;
    if (bar.hidden) return;
    bar.setAttribute("aria-valuetext", by("clock").textContent);
    if (share === null) bar.removeAttribute("aria-valuenow");
    else bar.setAttribute("aria-valuenow", Math.round(100 * share));
    bar.classList.toggle("endless", share === null);
    const { segments } = status.progress;
    const isTimed = planned !== null || status.progress.phase === "grace";
    bar.replaceChildren(...segments.map(([name, seconds, done]) => {
      const track = element("span", undefined, name), over = element("i");
      track.style.flexGrow = isTimed ? Math.max(seconds, 0.001) : 1;
      const part = isTimed && seconds ? done / seconds : share ?? 0;
      over.style.width = `${100 * Math.min(1, part)}%`;
      track.title = name;
      track.append(over);
      return track;
    }));
  }

  for (const button of document.querySelectorAll("[data-window]")) {
    button.addEventListener("click", () => {
      for (const other of document.querySelectorAll("[data-window]")) other.setAttribute("aria-pressed", String(other === button));
      liveCharts.setWindow(button.dataset.window ? Number(button.dataset.window) : null);
    });
  }
  const toggle = (button, act) => by(button).addEventListener("click", () => {
    const on = by(button).getAttribute("aria-pressed") !== "true";
    by(button).setAttribute("aria-pressed", String(on));
    act(on);
  });
  toggle("log", (on) => liveCharts.setLog(on));
  toggle("freeze", (on) => {
    isFrozen = on;
    by("freeze").textContent = on ? `Frozen at ${chartFormat.clock(last?.seconds ?? 0)}` : "Freeze";
    if (!on && last) draw(last);
  });
  by("theme").addEventListener("click", () => pageTheme.toggle());
  by("stop").addEventListener("click", () => {
    by("stop").disabled = true;
    fetch("stop", { method: "POST" }).catch(() => {});
  });

  // -- alerts: the worst first; the others are folded -----------------------------------------------------------------------------------

  let news = performance.now(), spoken = "";
  function makeAlert(place, alert) {
    place.className = alert.level;
    place.replaceChildren(alert.text);
    if (typeof alert.since !== "number" || by("shown").hidden) return place;
    const button = element("button", "Show");
    button.type = "button";
    button.setAttribute("aria-label", `Show ${chartFormat.clock(alert.since)} in the charts`);
    button.addEventListener("click", () => liveCharts.show(alert.since));
    place.append(" ", button);
    return place;
  }
  function showAlerts() {
    const silence = liveValues.describeSilence(performance.now() - news);
    document.body.classList.toggle("stale", silence !== null);
    const [first, ...others] = [silence, ...(last?.alerts ?? [])].filter(Boolean);
    const isQuiet = !first;
    by("alerts").hidden = isQuiet && state !== "on" && state !== "ending";
    by("alerts").className = first?.level ?? "calm";
    if (isQuiet) by("alert").replaceChildren("No alerts.");
    else makeAlert(by("alert"), first);
    by("alert").className = "";
    by("others").hidden = !others.length;
    by("others").querySelector("summary").textContent = `${others.length} more`;
    by("others").querySelector("ul").replaceChildren(...others.map((alert) => makeAlert(element("li"), alert)));
    const kinds = first ? `${first.kind} ${first.level}` : "";
    if (!first) by("spoken").textContent = "";
    else if (kinds !== spoken && first.level !== "past") by("spoken").textContent = first.text;   // counts change each second
    spoken = kinds;
    for (const id of ["new", "past", "locusts", "again", "report", "compare"]) by(id).classList.toggle("gone", silence !== null);   // they lead nowhere
  }
  setInterval(() => {
    if (!document.hidden) showAlerts();
  }, LOOK_MS);

  // -- rules ---------------------------------------------------------------------------------------------------------------------------

  const FIRST = ["loud", "open", "pass", "plain"];
  function showCards({ rules, state: at }) {
    by("cards").hidden = !rules.length;
    by("left-out").hidden = !rules.some((card) => card.left_out);
    const sorted = [...rules].sort((a, b) => FIRST.indexOf(kindOf(a.state)) - FIRST.indexOf(kindOf(b.state)));
    by("cards").replaceChildren(...sorted.map((card) => makeCard(card, at === "over")));
  }
  function makeCard(card, isOver) {
    const made = element("li", undefined, kindOf(card.state)), head = element("div"), line = element("div");
    head.append(element("span", card.name), element("em", card.state, kindOf(card.state)));
    line.append(element("strong", card.now || "–"));
    if (!isOver && card.so_far && card.so_far !== card.now) line.append(element("small", `${card.so_far} so far`));
    const meter = element("i", undefined, "meter");
    if (typeof card.share === "number") {
      meter.append(element("i"));
      meter.firstChild.style.width = `${Math.min(100, 100 * card.share)}%`;
    }
    made.append(head, line, meter, element("small", card.counts || card.reason));
    return made;
  }

  // -- steering --------------------------------------------------------------------------------------------------------------------------

  const shown = {};         // in the fields of the gate and of the users: as the run has them
  const typed = new Set();  // fields whose number was changed here and not sent yet: the run's does not take its place
  function field(id, value) {
    if (value !== shown[id] && !typed.has(id) && document.activeElement !== by(id)) by(id).value = value;
    shown[id] = value;
  }
  const WANTED = {
    limit: "The limit must be a whole number of at least 1.", users: "The number of users must be a whole number of at least 1.",
    rate: "The rate must be above 0 requests per second.",
  };
  for (const id of Object.keys(WANTED)) {
    by(id).addEventListener("input", () => typed.add(id));
    by(id).addEventListener("invalid", (event) => {
      event.preventDefault();
      answer(WANTED[id], "loud");
      by(id).focus();
    });
  }
  const written = (limit) => (limit === null ? "none" : String(limit));
  function showSteer(status) {
    const isOn = status.state === "on";
    by("steer").hidden = !isOn;
    if (!isOn) return;
    by("open").disabled = status.limit === null;
    by("limit-now").textContent = `now ${written(status.limit)}${status.target === status.limit ? "" : `, going to ${written(status.target)}`}`;
    by("users-now").textContent = `now ${status.users}`;
    const { limit, users, rate } = status.steers;
    by("gate").hidden = !limit;
    by("people").hidden = !users;
    by("pace").hidden = rate === null;
    by("rate-now").textContent = `now ${chartFormat.brief(rate ?? 0)}`;
    field("rate", rate);
    const fixed = [
      users ? "" : `${many(status.users)} users: their number follows from the load.`,
      limit ? "" : "The run sets the prefill limit itself.",
    ].filter(Boolean).join(" ");
    by("fixed").hidden = !fixed;
    by("fixed").textContent = fixed;
    field("limit", status.target ?? Math.max(1, status.used));
    field("users", status.users);
  }
  let undo = null, cleared = 0;
  function answer(text, kind, back = null) {
    const output = by("answer").querySelector("output");
    output.className = kind;
    output.textContent = text;
    undo = back;
    by("undo").hidden = !back;
    clearTimeout(cleared);
    cleared = setTimeout(() => { output.textContent = ""; }, ANSWER_MS);
  }
  async function change(path, fields, back) {
    try {
      const response = await fetch(path, { method: "POST", body: new URLSearchParams(fields), signal: AbortSignal.timeout(2 * PATIENCE_MS) });
      const { done, success, message } = await response.json();
      const isDone = done ?? success;
      answer(message, isDone ? "pass" : "loud", isDone ? back : null);
    } catch {
      answer("No answer: nothing has changed.", "loud");
    }
    ask();
  }
  function turn(limit, back = true) {
    const before = last?.target ?? null;
    const undoIt = () => turn(before === null ? "" : String(before), false);
    return change("llm/gate", { limit, ramp_s: limit === "" ? "" : by("ramp").value }, back ? undoIt : null);
  }
  function setUsers(users, back = true) {
    const before = last?.users;
    return change("swarm", { user_count: users }, back ? () => setUsers(before, false) : null);
  }
  by("gate").addEventListener("submit", (event) => {
    event.preventDefault();
    typed.delete("limit");
    turn(by("limit").value);
  });
  by("people").addEventListener("submit", (event) => {
    event.preventDefault();
    typed.delete("users");
    setUsers(by("users").value);
  });
  function setRate(rate, back = true) {
    const before = last?.steers.rate;
    return change("llm/rate", { rate }, back ? () => setRate(before, false) : null);
  }
  by("pace").addEventListener("submit", (event) => {
    event.preventDefault();
    typed.delete("rate");
    setRate(by("rate").value);
  });
  by("open").addEventListener("click", () => turn(""));
  by("undo").addEventListener("click", () => undo?.());
  for (const button of document.querySelectorAll("button[data-step]")) {
    const input = button.parentElement.querySelector("input");
    button.addEventListener("click", () => {
      input.value = Math.max(1, (Number(input.value) || 0) + Number(button.dataset.step));
      typed.add(input.id);
    });
  }

  // -- tables ------------------------------------------------------------------------------------------------------------------------------

  function fill(body, rows) {
    body.replaceChildren(...rows.map(([head, ...cells]) => {
      const line = element("tr"), name = element("th", head);
      name.scope = "row";
      line.append(name, ...cells.map((cell) => (typeof cell === "string" ? element("td", cell) : cell)));
      return line;
    }));
  }
  function showTable(status) {
    by("figures").hidden = !status.table.length;
    const isOver = status.state === "over", [head, body] = [by("figures").querySelector("thead"), by("figures").querySelector("tbody")];
    const groups = [...(isOver ? [] : [["last 10 s", "recent_ms", "count"]]), [isOver ? "whole run" : "whole run so far", "whole_ms", "whole_count"]];
    const top = element("tr"), names = element("tr");
    top.append(element("td"));
    names.append(element("td"));
    for (const [title] of groups) {
      const cell = element("th", title, "group");
      cell.colSpan = QUANTILES.length + 1;
      top.append(cell);
      [...QUANTILES, "count"].forEach((name, i) => names.append(element("th", name, i ? "" : "first")));
    }
    head.replaceChildren(top, names);
    fill(body, status.table.map((row) => [row.label, ...groups.flatMap(([, values, count]) => [
      ...QUANTILES.map((_, i) => element("td", marked(row[values]?.[i], row[count], i, figure, row.inexact), i ? "" : "first")), many(row[count]),
    ])]));
    const few = body.textContent.includes("*") ? ` ${FEW}.` : "";
    const off = body.textContent.includes("~") ? " ~ may be off by more than 2% and 1 ms because of the load generator." : "";
    const named = status.table.some((row) => row.named) ? " Rows by name have three significant digits." : "";
    by("made").textContent = (isOver
      ? `Exact, as in the report: successful requests of the profiling phase, the gate wait of all.${named}`
      : "Three significant digits. TTFT of the last 10 s counts first tokens as they come, but by name only requests that ended. "
        + "All else is of successful requests that ended, gate waits of all. The whole run: its profiling phase, in a sweep the stage.") + few + off;
  }
  // The latency that the page leads with, as the report does.
  function nameFirst() {
    if (!history.streams) return "Request latency";
    return history.measure === "ttft" ? "TTFT" : "TTFT from due";
  }
  function showNames({ names = [], streams, state: at }) {
    by("names").hidden = !names.length;
    if (!names.length) return;
    const first = nameFirst();
    const head = element("tr");
    head.append(element("td"), ...[`${first} p50`, "p95", ...(streams === false ? [] : ["ITL p50", "p95"]), "answered", "failed"].map((text) => element("th", text)));
    by("names").querySelector("thead").replaceChildren(head);
    fill(by("names").querySelector("tbody"), names.map((row) => {
      const pair = (values, count) => [marked(values?.[0], count, 0, ms), marked(values?.[1], count, 2, ms)];
      return [row.name, ...pair(row.ttft_ms, row.count), ...(streams === false ? [] : pair(row.itl_ms, row.itl_count)), many(row.ok),
        element("td", many(row.failed), row.failed ? "loud" : "")];
    }));
    const which = at === "over" ? "latencies of the whole run" : "latencies of requests that ended in the last 10 s";
    const few = by("names").querySelector("tbody").textContent.includes("*") ? `; ${FEW}` : "";
    by("names-head").querySelector("small").textContent = which + few;
  }
  function showStages({ stages = [] }) {
    by("stages").hidden = !stages.length;
    document.body.classList.toggle("sweep", stages.length > 0);
    if (!stages.length) return;
    const head = element("tr");
    const first = history.streams ? ["TTFT p95", "ITL p95"] : ["latency p95"];
    const names = ["stage", stages[0].axis, ...first, "requests/s", ...(history.generates ? ["tokens/s"] : []), "failed", "SLO"];
    head.append(...names.map((name) => element("th", name)));
    by("stages").querySelector("thead").replaceChildren(head);
    const p95 = (row, name, place) => marked(row[name]?.[1], row.counts[place], 2, ms);
    fill(by("stages").querySelector("tbody"), stages.map((row) => [
      row.running ? `${row.number} …` : String(row.number), chartFormat.brief(row.value),
      ...(history.streams ? [p95(row, "ttft_ms", 0), p95(row, "itl_ms", 1)] : [p95(row, "latency_ms", 2)]),
      chartFormat.brief(row.requests_per_s, "", 3), ...(history.generates ? [chartFormat.brief(row.tokens_per_s, "", 3)] : []),
      element("td", many(row.failed), row.failed ? "loud" : ""), element("td", row.slo || "–", kindOf(row.slo || "no value yet")),
    ]));
    liveCharts.drawCurve(by("curve").querySelector(".canvas"), stages);
  }

  // -- the server's own metrics over time: a line for each replica or GPU. A chart comes with its first value, to its place -------------------

  const HUES = ["p50", "prefill", "decode", "p99", "ok", "p95", "limit", "faint"];
  const served = new Map();
  let replicas = [];
  function showServer({ server_charts: { names, charts: all } }, isFresh) {
    const valueOf = (chart, i) => (point) => point[liveValues.SERVER]?.[chart]?.[i];
    const isKnown = (chart, i) => history.points.some((point) => typeof valueOf(chart, i)(point) === "number");
    replicas = names;
    if (isFresh) {
      liveCharts.removeOthers();
      served.clear();
      by("server-plots").replaceChildren();
    }
    all.forEach(([title, unit], chart) => {
      if (served.has(chart) || !history.points.some((point) => point[liveValues.SERVER]?.[chart])) return;
      const next = Math.min(...[...served.keys()].filter((other) => other > chart));
      const listSeries = () => replicas.map((name, i) => ({
        name, hue: HUES[i % HUES.length], dashed: i >= HUES.length, values: liveCharts.column(valueOf(chart, i)), known: isKnown(chart, i),
      })).filter((one) => one.known);
      const description = { title: () => title, unit, whole: !unit, texts: false, series: listSeries };
      served.set(chart, liveCharts.add(by("server-plots"), description, served.get(next)?.figure));
    });
    by("server").hidden = !served.size;
  }

  // -- the end, and past runs ------------------------------------------------------------------------------------------------------------------

  function showEnd(status) {
    const isOver = status.state === "over";
    by("ended").hidden = !isOver;
    if (!isOver) return;
    by("headline").textContent = status.headline || "";
    by("headline").className = kindOf(status.slo || "no value yet");
    const found = [...new Set(status.found || [])];
    by("found").hidden = !found.length;
    by("found").textContent = found.length ? `Findings of the sweep: ${found.join(" ")}` : "";
  }
  async function showPast() {
    const { runs, last: newestName } = await (await fetch("llm/runs", { signal: AbortSignal.timeout(PATIENCE_MS) })).json();
    const path = (name, file) => `llm/runs/${encodeURIComponent(name)}/${file}`;
    const has = (entry) => entry.files.some(([file]) => file === "report.html");
    const newest = runs.find((entry) => entry.name === newestName);
    const before = runs.find((entry) => entry.name !== newestName && has(entry) && newest && entry.at <= newest.at);
    by("report").hidden = state !== "over" || !newest || !has(newest);
    if (newest) by("report").href = path(newest.name, "report.html");
    by("compare").hidden = by("report").hidden || !before;
    if (before) by("compare").href = `llm/compare?${new URLSearchParams([["run", before.name], ["run", newest.name]])}`;
    by("past").hidden = !runs.length || ["on", "ending"].includes(state);
  }

  // -- the loop --------------------------------------------------------------------------------------------------------------------------------

  // What moves with the run; it waits while the page is frozen.
  function draw(status) {
    if (!status.points) return;
    const countOf = (label) => status.table.find((row) => row.label === label)?.count ?? null;
    [liveCharts.counts.ttft, liveCharts.counts.itl] = [countOf(nameFirst()), countOf("ITL")];
    liveCharts.update();
    showServer(status, false);
    showCards(status);
    showTable(status);
    showNames(status);
    showStages(status);
    liveSide.showParts(status);
    liveSide.showFailures(status);
    liveSide.showFindings(status);
    liveSide.showEngine(history.points, status.state === "over");
    liveSide.showGenerator(status);
    if ("lines" in status) liveSide.showRequests(status.lines);
  }

  function show(status) {
    const isFresh = status.run !== run;
    last = status;
    by("refusal").textContent = status.refusal;
    by("name").textContent = status.name || "LLM load test";
    by("name").title = status.run ? [status.model, status.server].filter(Boolean).join(" · ") : "";
    document.title = status.run ? `${status.alerts.some((one) => one.level === "bad") ? "⚠ " : ""}${status.where} · ${status.name}` : "LLM load test, live";
    by("nothing").hidden = status.state !== "none";
    by("new").hidden = !["none", "over"].includes(status.state);
    by("stop").hidden = !["on", "ending"].includes(status.state);
    by("stop").disabled = status.state !== "on";
    if (status.state !== state || isFresh) {
      const isFirst = state === "";
      state = status.state;
      document.body.dataset.state = state;
      by("past").hidden = true;
      by("report").hidden = by("compare").hidden = true;
      if (isFirst || ["on", "over", "none"].includes(state)) showPast().catch(() => {});
    }
    showBadges(status);
    showClock(status);
    showEnd(status);
    by("shown").hidden = by("tools").hidden = !status.points;
    if (status.points) {
      if (isFresh) {
        liveCharts.forget();
        showServer(status, true);
      }
      [run, step] = [status.run, status.step];
      [history.marks, history.holes, history.limits, history.measure] = [status.marks, status.holes, status.limits, status.measure];
      [history.generates, history.streams] = [status.generates !== false, status.streams !== false];
      history.points = status.whole ? status.points : history.points.concat(status.points);
      showSteer(status);
      if (!isFrozen || isFresh) draw(status);
    }
    showAlerts();
  }

  // A slow answer is better than none: after an answer that did not come in time, the next one has twice the time.
  let isBusy = false, patience = PATIENCE_MS;
  async function ask() {
    if (isBusy) return;
    isBusy = true;
    const wanted = new URLSearchParams({ run: run ?? "", step, after: history.points.at(-1)?.[liveValues.AT] ?? -1 });
    if (asked++ % LINES_EVERY === 0) wanted.set("lines", "");
    try {
      const response = await fetch(`llm/live?${wanted}`, { signal: AbortSignal.timeout(patience) });
      if (response.redirected) throw new Error("Signed out: reload the page.");
      const status = await response.json();
      news = performance.now();
      patience = PATIENCE_MS;
      show(status);
    } catch (error) {
      if (error.name === "TimeoutError") patience = Math.min(2 * patience, MOST_PATIENCE_MS);
      if (error.message.startsWith("Signed out")) by("refusal").textContent = error.message;
    } finally {
      isBusy = false;
    }
  }
  function loop() {
    const isHidden = document.hidden;
    setTimeout(loop, EVERY_MS);
    if (!isHidden) ask();
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    news = performance.now();   // nobody asked meanwhile
    ask();
  });
  loop();
})();
