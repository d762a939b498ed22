// The live page: polls the state of the run once a second. Its charts are in live_charts.js.
"use strict";
(() => {
  const { history } = liveCharts;
  const by = (id) => document.getElementById(id);
  const EVERY_MS = 1000, LINES_EVERY = 2;
  const QUANTILES = ["p50", "p90", "p95", "p99"], NEEDS = [2, 10, 20, 100];
  let run = null, step = 1, asked = 0, lost = 0;
  const shown = {};  // in the fields of the gate and of the users: as the run has them

  // -- small things ----------------------------------------------------------------------------------------------------

  function element(name, text, kind) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }
  const many = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
  const ms = (value) => (value === null || value === undefined ? "–" : chartFormat.writeValue("ms", value));
  const rate = (value) => (typeof value === "number" ? chartFormat.writeValue("", value) : "–");  // as in the charts
  const figure = (value) => {
    const places = Math.max(0, Math.min(2, 2 - Math.floor(Math.log10(Math.max(value, 1)))));
    return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  };
  const LOUD = { FAIL: "loud", broken: "loud", INVALID: "loud", PASS: "pass", OK: "pass" };
  const kindOf = (state) => LOUD[state] || (["nothing yet", "checked at the end", "within so far"].includes(state) ? "plain" : "open");

  // -- the server's own metrics --------------------------------------------------------------------------------------------

  // A line for each replica or GPU. A chart comes with its first value, to its place: one of rates has it later than others.
  const HUES = ["p50", "prefill", "decode", "p99", "ok", "p95", "limit", "faint"];
  const served = new Map();
  let replicas = [];
  function server({ server_charts: { names, charts: all } }, fresh) {
    const values = (chart, i) => (point) => point[liveCharts.SERVER]?.[chart]?.[i];
    replicas = names;
    if (fresh) {
      liveCharts.remove([...served.values()]);
      served.clear();
      by("server-plots").replaceChildren();
    }
    all.forEach(([title, unit], chart) => {
      if (served.has(chart) || !history.points.some((point) => point[liveCharts.SERVER]?.[chart])) return;
      const next = Math.min(...[...served.keys()].filter((other) => other > chart));
      served.set(chart, liveCharts.add(by("server-plots"), { title, unit, whole: !unit, series: () => replicas.map((name, i) => ({
        name, hue: HUES[i % HUES.length], dashed: i >= HUES.length, values: liveCharts.column(values(chart, i)),
        known: history.points.some((point) => typeof values(chart, i)(point) === "number"),
      })).filter((one) => one.known) }, served.get(next)?.figure));
    });
    by("server").hidden = !served.size;
  }

  // -- texts -------------------------------------------------------------------------------------------------------------

  function badges(status) {
    const all = [];
    const word = { none: "no run yet", starting: "starting", on: "running", ending: "ending", over: "ended" }[status.state];
    all.push([word, { on: "pass", starting: "open", ending: "open" }[status.state] || "plain"]);
    if (status.slo) all.push([`SLO ${status.slo}`, kindOf(status.slo)]);
    if (status.client) all.push([`client ${status.client.level}${status.state === "over" ? "" : " so far"}`, kindOf(status.client.level)]);
    if (status.simulated) all.push(["simulated", "open"]);
    by("badges").replaceChildren(...all.map(([text, kind]) => element("li", text, kind)));
    const reasons = status.client?.reasons || [];
    by("client").hidden = !reasons.length;
    by("client").textContent = reasons.length ? `Client ${status.client.level}${status.state === "over" ? "" : " so far"}: ${reasons.join("; ")}.` : "";
  }

  // A percentile of a row of the table; with a star where there are too few values for it.
  function starred(value, count, i, form) {
    return value === undefined ? "–" : `${form(value)}${count < NEEDS[i] ? "*" : ""}`;
  }

  function tiles(status) {
    const over = status.state === "over";
    const percentile = (row, i) => starred((over ? row.whole_ms : row.recent_ms)?.[i], over ? row.whole_count : row.count, i, ms);
    const succeeded = liveCharts.succeeded();
    const named = status.table.filter((row) => row.named), first = named.length ? named.slice(0, 3) : status.table.slice(0, 2);
    const all = [
      ["Time", chartFormat.clock(status.seconds), status.where],
      [status.warms_up ? "Requests of the warmup" : "Requests", `${many(status.ok)} ok`,
        [[status.failed, "failed"], ...Object.entries(status.ended_by_us).map(([word, count]) => [count, word])].map(([count, word]) => `${many(count)} ${word}`).join(", ")],
      ...first.map((row) => [`${row.label}${over ? "" : ", last 10 s"}`, `p50 ${percentile(row, 0)}`, `p95 ${percentile(row, 2)}, p99 ${percentile(row, 3)}`]),
    ];
    const each = over ? status.requests_per_s : succeeded, span = over ? "whole run" : `last ${liveCharts.RATE_S} s`;
    if (status.generates === false) all.push([`Requests/s, ${span}`, rate(each), ""]);
    if ("tokens_per_s" in status) all.push([`Tokens/s, ${span}`, rate(status.tokens_per_s), typeof each === "number" ? `${rate(each)} requests/s` : ""]);
    if (!over) {
      all.push([`${status.streams === false ? "In flight" : "Awaiting first token"}, now`, status.limit === null ? many(status.used) : `${status.used} of ${status.limit}`, `${many(status.waiting)} at the gate`]);
      const decoding = status.streams === false ? "" : `${many(status.decoding)} decoding`;
      // after the stop Locust has no users any more, and requests go on
      if (status.state === "ending") all.push(["Still running", many(status.used + status.waiting + status.decoding), decoding]);
      else all.push(["Users, now", many(status.users), decoding]);
    }
    by("tiles").replaceChildren(...all.map(([name, value, more]) => {
      const tile = element("li");
      tile.append(element("span", name), element("strong", value), element("small", more));
      return tile;
    }));
  }

  function table(status) {
    by("figures").hidden = !status.table.length;
    const over = status.state === "over", [head, body] = [by("figures").querySelector("thead"), by("figures").querySelector("tbody")];
    const groups = [...(over ? [] : [["last 10 s", "recent_ms", "count"]]), [over ? "whole run" : "whole run so far", "whole_ms", "whole_count"]];
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
    body.replaceChildren(...status.table.map((row) => {
      const line = element("tr"), name = element("th", row.label);
      name.scope = "row";
      line.append(name);
      for (const [, values, count] of groups) {
        QUANTILES.forEach((_, i) => line.append(element("td", starred(row[values]?.[i], row[count], i, figure), i ? "" : "first")));
        line.append(element("td", many(row[count])));
      }
      return line;
    }));
    const few = body.textContent.includes("*") ? " * too few values for this percentile." : "";
    by("made").textContent = (over
      ? "Exact, as in the report: successful requests of the profiling phase, the gate wait of all."
      : "Three significant digits; successful requests, the gate wait of all. The whole run: its profiling phase, in a sweep the stage.") + few;
  }

  function found(status) {
    by("found").hidden = !status.found;
    by("found").querySelector("ul").replaceChildren(...[...new Set(status.found || [])].map((text) => element("li", text)));
  }

  // One bar: where the time to the first token went, of the requests that ended in the last seconds.
  function parts({ parts: given }) {
    by("parts").hidden = !given?.count;
    if (!given?.count) return;
    const [keys, row] = [by("parts").querySelector(".keys"), by("parts").querySelector(".owner")];
    const whole = given.parts.reduce((sum, [, , value]) => sum + value, 0) || 1;
    let at = 0;
    row.querySelector("svg").replaceChildren(...given.parts.map(([name, , value]) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      made.setAttribute("class", `part ${name}`);
      for (const [key, size] of [["x", 1000 * at / whole], ["width", 1000 * value / whole], ["height", 10]]) made.setAttribute(key, size);
      at += value;
      return made;
    }));
    keys.replaceChildren(...given.parts.map(([name, label, value]) => {
      const key = element("span", undefined, "key");
      key.append(element("i", undefined, `part ${name}`), label, element("small", ms(value)));
      return key;
    }));
    row.querySelector("b").textContent = ms(whole);
    row.setAttribute("aria-label", `${ms(whole)} from due to the first token: ${given.parts.map(([, label, value]) => `${label} ${ms(value)}`).join(", ")}`);
    by("parts").querySelector("small").textContent = `mean of ${many(given.count)} answers of the last ${given.seconds} s`;
  }

  const FIRST = ["loud", "open", "pass", "plain"];
  function rules(status) {
    const sorted = [...status.rules].sort((a, b) => FIRST.indexOf(kindOf(a[1])) - FIRST.indexOf(kindOf(b[1])));
    by("rules").hidden = !sorted.length;
    by("so-far").hidden = !sorted.some(([, state]) => state.endsWith("so far"));
    by("rules").querySelector("ul").replaceChildren(...sorted.map(([rule, state, why]) => {
      const line = element("li");
      line.append(element("span", rule), element("span", state, kindOf(state)), element("span", why));
      return line;
    }));
    const broken = sorted.filter(([, state]) => kindOf(state) === "loud" || state.startsWith("beyond"));
    by("broken").textContent = broken.map(([rule, state]) => `${rule}: ${state}`).join("; ");
  }

  // -- the gate and the users --------------------------------------------------------------------------------------------

  const typed = new Set();  // fields whose number was changed here and not sent yet: the run's does not take its place
  function field(id, value) {
    if (value !== shown[id] && !typed.has(id) && document.activeElement !== by(id)) by(id).value = value;
    shown[id] = value;
  }
  for (const id of ["limit", "users"]) by(id).addEventListener("input", () => typed.add(id));
  function controls(status) {
    const on = status.state === "on";
    by("controls").hidden = !on;
    if (!on) return;
    by("open").disabled = status.limit === null;
    field("limit", status.limit ?? Math.max(1, status.used));
    field("users", status.users);
  }
  async function change(path, fields, answered) {
    answered.className = answered.textContent = "";
    try {
      const answer = await (await fetch(path, { method: "POST", body: new URLSearchParams(fields) })).json();
      answered.className = answer.done ?? answer.success ? "pass" : "loud";
      answered.textContent = answer.message;
    } catch {
      answered.className = "loud";
      answered.textContent = "No answer: nothing has changed.";
    }
    ask();
  }
  const turn = (limit) => change("llm/gate", { limit, ramp_s: limit === "" ? "" : by("ramp").value }, by("gate-answer"));
  by("gate").addEventListener("submit", (event) => {
    event.preventDefault();
    typed.delete("limit");
    turn(by("limit").value);
  });
  by("people").addEventListener("submit", (event) => {
    event.preventDefault();
    typed.delete("users");
    change("swarm", { user_count: by("users").value }, by("people-answer"));
  });
  by("open").addEventListener("click", () => turn(""));
  for (const button of document.querySelectorAll("button[data-step]")) {
    const input = button.parentElement.querySelector("input");
    button.addEventListener("click", () => {
      input.value = Math.max(1, (Number(input.value) || 0) + Number(button.dataset.step));
      typed.add(input.id);
    });
  }
  by("stop").addEventListener("click", () => {
    by("stop").disabled = true;
    fetch("stop", { method: "POST" }).catch(() => {});
  });

  // -- the last requests, and past runs -------------------------------------------------------------------------------------

  function lines(drawing) {
    const place = by("timeline").querySelector(".plot");
    by("timeline").hidden = !drawing;
    if (!drawing || place.matches(":hover, :focus-within")) return;
    place.innerHTML = drawing;
    drawTimeline(place.querySelector(".lines"));
  }

  const linkTo = (href, text) => {
    const link = element("a", text);
    link.href = href;
    link.target = "_blank";
    return link;
  };
  async function past() {
    const { runs, last } = await (await fetch("llm/runs")).json();
    const path = (name, file) => `llm/runs/${encodeURIComponent(name)}/${file}`;
    const has = (entry) => entry.files.some(([file]) => file === "report.html");
    const newest = runs.find((entry) => entry.name === last);
    by("ready").hidden = state !== "over" || !newest || !has(newest);
    if (newest) by("report").href = path(newest.name, "report.html");
    by("past").hidden = !runs.length;
    by("past").querySelector("tbody").replaceChildren(...runs.map((entry) => {
      const line = element("tr"), name = element("th"), files = element("td"), more = element("details");
      name.append(has(entry) ? linkTo(path(entry.name, "report.html"), entry.name) : entry.name);
      more.append(element("summary", String(entry.files.length)), ...entry.files.map(([file, what]) => linkTo(path(entry.name, file), what)));
      files.append(more);
      line.append(name, element("td", new Date(entry.at * 1000).toLocaleString()), element("td", entry.model),
        element("td", entry.status, kindOf(entry.status)), files);
      return line;
    }));
  }

  // -- the loop ----------------------------------------------------------------------------------------------------------

  let state = "", busy = false;
  function show(status) {
    const fresh = status.run !== run;
    by("refusal").textContent = status.refusal;
    by("name").textContent = status.name || "LLM load test";
    by("about").textContent = status.run ? [status.model, status.server].filter(Boolean).join(" · ") : "No run yet.";
    document.title = status.run ? `${status.where} · ${status.name}` : "LLM load test, live";
    by("new").hidden = !["none", "over"].includes(status.state);
    by("stop").hidden = !["on", "ending"].includes(status.state);
    by("stop").disabled = status.state !== "on";
    badges(status);
    if (status.state !== state || fresh) {
      const first = state === "";
      state = status.state;
      by("ready").hidden = true;
      if (first || ["on", "over", "none"].includes(state)) past().catch(() => {});
    }
    by("shown").hidden = !status.points;
    if (!status.points) return;
    if (fresh) liveCharts.forget();
    [run, step, history.marks, history.classes, history.limits] = [status.run, status.step, status.marks, status.classes, status.limits];
    history.step = status.step;
    [history.generates, history.streams] = [status.generates !== false, status.streams !== false];
    history.points = status.whole ? status.points : history.points.concat(status.points);
    if (status.points.length || status.whole) {
      liveCharts.update();
      server(status, fresh);
    }
    controls(status);
    tiles(status);
    table(status);
    found(status);
    rules(status);
    parts(status);
    if ("lines" in status) lines(status.lines);
  }

  async function ask() {
    if (busy) return;
    busy = true;
    const wanted = new URLSearchParams({ run: run ?? "", step, after: history.points.at(-1)?.[liveCharts.AT] ?? -1 });
    if (asked++ % LINES_EVERY === 0) wanted.set("lines", "");
    try {
      const answer = await fetch(`llm/live?${wanted}`);
      if (answer.redirected) throw new Error("Signed out: reload the page.");
      show(await answer.json());
      lost = 0;
    } catch (error) {
      if (++lost > 2) by("refusal").textContent = error instanceof TypeError || error instanceof SyntaxError ? "No answer from the load generator; trying again." : error.message;
    } finally {
      busy = false;
    }
  }
  function loop() {
    const hidden = document.hidden;
    setTimeout(loop, EVERY_MS);
    if (!hidden) ask();
  }
  document.addEventListener("visibilitychange", () => document.hidden || ask());

  loop();
})();
