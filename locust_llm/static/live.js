// The live page: polls the state of the run once a second. Fields of a point of the history: live.py, Point.
"use strict";
(() => {
  const { css, swatch, written, digits, FONT } = plots;
  const by = (id) => document.getElementById(id);
  const EVERY_MS = 1000, LINES_EVERY = 2, RATE_S = 5, HEIGHT = 200;
  const AT = 0, USERS = 1, LIMIT = 2, USED = 3, WAITING = 4, DECODING = 5, TTFT = 6, ITL = 7, TOKENS = 8, DONE = 9, FAILED = 10, SERVER = 11;
  const QUANTILES = ["p50", "p90", "p95", "p99"], NEEDS = [2, 10, 20, 100];
  let run = null, step = 1, points = [], marks = [], classes = [], asked = 0, limited = null, lost = 0;

  // -- small things ----------------------------------------------------------------------------------------------------

  function element(name, text, kind) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }
  const many = (value) => (value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en"));
  const ms = (value) => (value === null || value === undefined ? "–" : written("ms")(Number(value.toPrecision(3))));
  const figure = (value) => {
    const places = value >= 100 ? 0 : value >= 10 ? 1 : 2;
    return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
  };
  const LOUD = { FAIL: "loud", broken: "loud", INVALID: "loud", PASS: "pass", OK: "pass", "held so far": "pass" };
  const kindOf = (state) => LOUD[state] || (["nothing yet", "checked at the end"].includes(state) ? "plain" : "open");

  // Locust's button for dark and light decides, where it was ever used; else the system does.
  function theme() {
    const chosen = localStorage.getItem("theme");
    if (!chosen) return;
    document.documentElement.style.colorScheme = chosen;
    for (const sheet of document.styleSheets) {
      for (const rule of sheet.cssRules) {
        if (rule instanceof CSSMediaRule && (rule.was || rule.media.mediaText).includes("prefers-color-scheme: dark")) {
          rule.was = "prefers-color-scheme: dark";
          rule.media.mediaText = chosen === "dark" ? "all" : "not all";
        }
      }
    }
  }

  // -- plots -------------------------------------------------------------------------------------------------------------

  // Over the last seconds, of a total: whichever points are left.
  function rate(of) {
    return points.map((point, i) => {
      let j = i;
      while (j > 0 && point[AT] - points[j - 1][AT] <= RATE_S) j--;
      if (j === i && i > 0) j--;
      const seconds = point[AT] - (i ? points[j][AT] : 0);
      return seconds > 0 ? (of(point) - (i ? of(points[j]) : 0)) / seconds : null;
    });
  }
  const column = (of) => () => points.map((point) => of(point) ?? null);
  const percentiles = (place) => ["p50", "p95", "p99"].map((name, i) => ({ name, hue: name, values: column((p) => p[place]?.[i]) }));
  const PLOTS = [
    { title: "Time to first token", unit: "ms", series: () => percentiles(TTFT) },
    { title: "Inter-token latency", unit: "ms", series: () => percentiles(ITL) },
    { title: "Prefill gate", unit: "", whole: true, series: () => [
      { name: "in prefill", hue: "prefill", kind: "area", values: column((p) => p[USED]) },
      { name: "limit", hue: "limit", kind: "steps", values: column((p) => p[LIMIT]) },
      { name: "waiting", hue: "wait", values: column((p) => p[WAITING]) },
    ] },
    { title: "Output tokens per second", unit: "", series: () => [{ name: "tokens/s", hue: "decode", values: column((p) => p[TOKENS]) }] },
    { title: "Users", unit: "", whole: true, series: () => [
      { name: "users", hue: "limit", kind: "steps", values: column((p) => p[USERS]) },
      { name: "decoding", hue: "decode", values: column((p) => p[DECODING]) },
    ] },
    { title: "Requests per second", unit: "", series: () => [
      { name: "ended", hue: "p50", values: () => rate((p) => p[DONE]) },
      ...classes.map((name, i) => ({ name: `failed: ${name}`, hue: ["fail", "prefill", "p99", "p95", "faint"][i % 5], dashed: i > 4,
        values: () => rate((p) => p[FAILED][i] ?? 0) })),
    ] },
  ];

  function drawMarks(u) {
    const { ctx, bbox } = u, ratio = uPlot.pxRatio;
    let free = -Infinity;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = `${11 * ratio}px ${FONT}`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    for (const [at, text] of marks) {
      const x = u.valToPos(at, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = ctx.fillStyle = css("mark");
      ctx.lineWidth = ratio;
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const wide = ctx.measureText(text).width;
      const left = x + 4 * ratio + wide > bbox.left + bbox.width ? x - 4 * ratio - wide : x + 4 * ratio;
      if (left < free) continue;
      free = left + wide + 6 * ratio;
      ctx.setLineDash([]);
      ctx.lineWidth = 3 * ratio;
      ctx.strokeStyle = css("back");
      ctx.strokeText(text, left, bbox.top + 2 * ratio);
      ctx.fillText(text, left, bbox.top + 2 * ratio);
    }
    ctx.restore();
  }

  function plot({ title, unit, whole, series: make, into = "plots" }) {
    const figure = element("figure", undefined, "plot"), box = element("div", undefined, "canvas");
    const keys = element("div", undefined, "keys"), text = written(unit), font = `11px ${FONT}`;
    const hidden = new Set();
    let series = [], outputs = [], u = null, zoomed = false, names = "";
    figure.append(element("h3", title), box, keys);
    by(into).append(figure);

    const axis = (side, size, values) => ({
      side, size, font, gap: 4, stroke: () => css("muted"), grid: { stroke: () => css("line"), width: 1 },
      ticks: { stroke: () => css("line"), width: 1, size: 4 }, values: (_, splits) => splits.map((v) => (v === null ? "" : values(v))),
    });
    const drawn = (one) => ({
      stroke: () => css(one.hue), width: 1.7, dash: one.dashed ? [6, 4] : undefined, show: !hidden.has(one.name), spanGaps: false,
      fill: one.kind === "area" ? () => `color-mix(in srgb, ${css(one.hue)} 30%, transparent)` : undefined,
      paths: ["area", "steps"].includes(one.kind) ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: false },
    });
    const wholes = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((m) => m * 10 ** power));
    const seconds = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((m) => m * 60), ...[1, 2, 5, 10, 24].map((h) => h * 3600)];

    function begin() {
      u?.destroy();
      keys.replaceChildren();
      outputs = series.map((one) => {
        const key = element("button", undefined, "key"), value = element("output");
        key.type = "button";
        key.setAttribute("aria-pressed", String(!hidden.has(one.name)));
        key.append(swatch(one.kind || "line", one.hue, one.dashed), one.name, value);
        key.addEventListener("click", () => {
          hidden.has(one.name) ? hidden.delete(one.name) : hidden.add(one.name);
          key.setAttribute("aria-pressed", String(!hidden.has(one.name)));
          u.setSeries(series.indexOf(one) + 1, { show: !hidden.has(one.name) });
        });
        keys.append(key);
        return value;
      });
      u = new uPlot({
        width: Math.max(box.clientWidth, 200), height: HEIGHT, legend: { show: false }, padding: [8, 20, 0, 0],
        scales: {
          x: { time: false, range: (_, low, high) => (zoomed ? [low, high] : [0, Math.max(30, points.at(-1)?.[AT] ?? 0)]) },
          y: { range: (_, low, high) => [0, (high > 0 ? high : 1) * 1.08] },
        },
        series: [{}, ...series.map(drawn)],
        axes: [{ ...axis(2, 26, written("s")), space: 56, incrs: seconds }, { ...axis(3, 56, text), space: 28, ...(whole ? { incrs: wholes } : {}) }],
        cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false }, sync: { key: "live", scales: ["x", null] } },
        hooks: { draw: [drawMarks], setCursor: [say], setSelect: [(self) => { zoomed = zoomed || self.select.width > 0; }] },
      }, [[], ...series.map(() => [])], box);
      u.over.addEventListener("dblclick", () => { zoomed = false; update(); });
    }
    function say() {
      const over = u.cursor.left >= 0;
      outputs.forEach((output, i) => {
        const value = u.data[i + 1][over ? u.cursor.idx ?? -1 : u.data[0].length - 1];
        output.textContent = typeof value === "number" && !hidden.has(series[i].name) ? text(Number(value.toPrecision(4))) : "";
      });
    }
    function update() {
      series = make();
      if (names !== (names = series.map((one) => one.name).join("\n")) || !u) begin();
      u.setData([points.map((point) => point[AT]), ...series.map((one) => one.values())], !zoomed);
      if (zoomed) u.redraw();
      say();
    }
    let width = 0;
    new ResizeObserver(() => {
      if (!u || Math.abs(box.clientWidth - width) < 1) return;
      width = box.clientWidth;
      u.setSize({ width: Math.max(width, 200), height: HEIGHT });
    }).observe(box);
    return { update, forget: () => { zoomed = false; }, redraw: () => u?.redraw() };
  }
  const drawn = PLOTS.map(plot);

  // The server's own metrics, a line for each replica or GPU. A chart comes with its first value.
  const HUES = ["p50", "prefill", "decode", "p99", "ok", "p95", "limit", "faint"];
  const served = new Map();
  let replicas = [];
  function server({ server_charts: { names, charts } }, fresh) {
    replicas = names;
    if (fresh) {
      served.clear();
      by("server-plots").replaceChildren();
    }
    charts.forEach(([title, unit], chart) => {
      if (served.has(chart) || !points.some((point) => point[SERVER]?.[chart])) return;
      const of = (i) => (point) => point[SERVER]?.[chart]?.[i];
      served.set(chart, plot({ title, unit, into: "server-plots", series: () => replicas.map((name, i) => ({
        name, hue: HUES[i % HUES.length], dashed: i >= HUES.length, values: column(of(i)), known: points.some((p) => typeof of(i)(p) === "number"),
      })).filter((one) => one.known) }));
    });
    by("server").hidden = !served.size;
    served.forEach((one) => one.update());
  }

  // -- texts -------------------------------------------------------------------------------------------------------------

  function badges(status) {
    const all = [];
    const word = { none: "no run yet", starting: "starting", on: "running", ending: "ending", over: "ended" }[status.state];
    all.push([word, { on: "pass", starting: "open", ending: "open" }[status.state] || "plain"]);
    if (status.slo) all.push([`SLO ${status.slo}`, kindOf(status.slo)]);
    if (status.client) all.push([`client ${status.client.level}`, kindOf(status.client.level)]);
    if (status.simulated) all.push(["simulated", "open"]);
    by("badges").replaceChildren(...all.map(([text, kind]) => element("li", text, kind)));
    by("badges").title = (status.client?.reasons || []).join("\n");
  }

  function tiles(status) {
    const over = status.state === "over", values = (row) => (over ? row.whole_ms : row.recent_ms) || [];
    const ended = rate((point) => point[DONE]).at(-1);
    const all = [
      ["Time", written("s")(Math.round(status.seconds)), status.where],
      ["Requests", many(status.done), `${many(status.failed)} failed`],
      ...status.table.slice(0, 2).map((row) => [row.label, ms(values(row)[0]), `p99 ${ms(values(row)[3])}`]),
    ];
    const each = over ? status.requests_per_s : ended;
    if ("tokens_per_s" in status) all.push(["Tokens/s", many(status.tokens_per_s), typeof each === "number" ? `${digits(each, 3)} requests/s` : ""]);
    if (!over) {
      all.push(["In prefill", status.limit === null ? many(status.used) : `${status.used} of ${status.limit}`, `${many(status.waiting)} waiting`]);
      all.push(["Users", many(status.users), `${many(status.decoding)} decoding`]);
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
    top.append(element("th"));
    names.append(element("th"));
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
        QUANTILES.forEach((_, i) => {
          const value = row[values]?.[i];
          const few = value !== undefined && row[count] < NEEDS[i] ? "*" : "";
          line.append(element("td", value === undefined ? "–" : `${figure(value)}${few}`, i ? "" : "first"));
        });
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
    by("found").querySelector("ul").replaceChildren(...(status.found || []).map((text) => element("li", text)));
  }

  function rules(status) {
    by("rules").hidden = !status.rules.length;
    by("rules").querySelector("tbody").replaceChildren(...status.rules.map(([rule, state, why]) => {
      const line = element("tr");
      line.append(element("td", rule), element("td", state, kindOf(state)), element("td", why));
      return line;
    }));
  }

  // -- the gate ----------------------------------------------------------------------------------------------------------

  function gate(status) {
    const on = status.state === "on", limit = by("limit");
    by("gate").hidden = !on;
    if (!on) return;
    const free = status.limit === null ? "no limit" : `limit ${status.limit}`;
    by("gate-state").textContent = `${free}: ${many(status.used)} in prefill, ${many(status.waiting)} waiting, ${many(status.decoding)} decoding`;
    by("open").disabled = status.limit === null;
    if (status.limit !== limited && document.activeElement !== limit) limit.value = status.limit ?? Math.max(1, status.used);
    limited = status.limit;
  }
  async function turn(limit) {
    const answered = by("gate-answer");
    answered.className = "";
    answered.textContent = "";
    try {
      const answer = await fetch("llm/gate", { method: "POST", body: new URLSearchParams({ limit, ramp_s: limit === "" ? "" : by("ramp").value }) });
      const { done, message } = await answer.json();
      answered.className = done ? "pass" : "loud";
      answered.textContent = message;
    } catch {
      answered.className = "loud";
      answered.textContent = "No answer: the gate is unchanged.";
    }
    ask();
  }
  by("gate").addEventListener("submit", (event) => {
    event.preventDefault();
    turn(by("limit").value);
  });
  by("open").addEventListener("click", () => turn(""));
  for (const [id, more] of [["less", -1], ["more", 1]]) {
    by(id).addEventListener("click", () => { by("limit").value = Math.max(1, (Number(by("limit").value) || 0) + more); });
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
    plots.timeline(place.querySelector(".lines"));
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
    by("report").hidden = !newest || !has(newest);
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
    by("about").textContent = status.run ? [status.model, status.server].filter(Boolean).join(" · ") : "No run yet: start one in Locust's form.";
    document.title = status.run ? `${status.where} · ${status.name}` : "LLM load test, live";
    by("stop").hidden = !["on", "ending"].includes(status.state);
    by("stop").disabled = status.state !== "on";
    badges(status);
    if (status.state !== state || fresh) {
      const first = state === "";
      state = status.state;
      if (first || ["on", "over", "none"].includes(state)) past().catch(() => {});
    }
    by("shown").hidden = !status.points;
    if (!status.points) return;
    if (fresh) drawn.forEach((one) => one.forget());
    [run, step, marks, classes] = [status.run, status.step, status.marks, status.classes];
    points = status.whole ? status.points : points.concat(status.points);
    if (status.points.length || status.whole) {
      drawn.forEach((one) => one.update());
      server(status, fresh);
    }
    gate(status);
    tiles(status);
    table(status);
    found(status);
    rules(status);
    if ("lines" in status) lines(status.lines);
  }

  async function ask() {
    if (busy) return;
    busy = true;
    const wanted = new URLSearchParams({ run: run ?? "", step, after: points.at(-1)?.[AT] ?? -1 });
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

  theme();
  addEventListener("storage", () => { theme(); [...drawn, ...served.values()].forEach((one) => one.redraw()); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...drawn, ...served.values()].forEach((one) => one.redraw()));
  loop();
})();
