// The charts of the live page: panels over the run's time with one x axis, the curve of a sweep, the server's metrics.
"use strict";
const liveCharts = (() => {
  const { RATE_S, AT, LIMIT, USED_S, WAITING_S, DECODING_S, TTFT, ITL, TOKENS, OK, FAILED, LATENCY, IN_FLIGHT_AT, sum } = liveValues;
  const HEAD = 26, AXIS = 22;               // CSS pixels: of a panel's title, and of the ticks under the last panel
  const LEAST = 46, USUAL = 120;            // of a panel's plot: the least, and where the page scrolls anyway
  const GROUP = "live";
  const history = {
    points: [], marks: [], holes: [], limits: [], generates: true, streams: true, measure: "ttft", planned: null,
  };
  const counts = { ttft: null, itl: null };   // values behind the last percentiles
  let window_s = null, log = false;

  const column = (of) => () => history.points.map((point) => of(point) ?? null);
  const rate = (of, at) => () => liveValues.findRates(history.points, history.holes, of, at);
  const mean = (place) => rate((point) => point[place], IN_FLIGHT_AT);
  const percentiles = (place) => ["p99", "p95", "p50"].map((name, i) => ({
    name, hue: name, kind: name === "p50" ? "fill" : "line", values: column((point) => point[place]?.[2 - i]),
  }));

  // -- the panels ----------------------------------------------------------------------------------------------------------

  const isFromDue = () => history.measure === "ttft_from_due";
  // A panel: its title, its share of the height, its unit, its measure in rules, and what makes its series. ``only``: where it
  // is shown, else everywhere.
  const PANELS = [
    { title: () => "Request latency", note: () => liveValues.describeCount(counts.ttft), size: 1.6, unit: "ms", measure: () => "request_latency",
      only: () => !history.streams, series: () => percentiles(LATENCY) },
    { title: () => (isFromDue() ? "TTFT from due" : "Time to first token"), note: () => liveValues.describeCount(counts.ttft), size: 1.6, unit: "ms",
      measure: () => history.measure, only: () => history.streams, series: () => percentiles(TTFT) },
    { title: () => "Time between tokens (ITL)", note: () => liveValues.describeCount(counts.itl), size: 1.25, unit: "ms", measure: () => "itl",
      only: () => history.streams, series: () => percentiles(ITL) },
    { title: () => "In flight", note: () => `mean of ${RATE_S} s`, size: 1.2, unit: "", whole: true, series: () => [
      { name: history.streams ? "prefill" : "sent", hue: "prefill", kind: "stack", values: mean(USED_S) },
      ...(history.streams ? [{ name: "decoding", hue: "decode", kind: "stack", values: mean(DECODING_S) }] : []),
      { name: "waiting for a slot", hue: "wait", kind: "stack", values: mean(WAITING_S) },
      { name: "limit", hue: "limit", kind: "steps", values: column((point) => point[LIMIT]) },
    ] },
    { title: () => "Output tokens per second", note: () => `last ${RATE_S} s`, size: 0.9, unit: "", measure: () => "output_tokens_per_s",
      only: () => history.generates, series: () => [{ name: "tokens/s", hue: "decode", kind: "fill", values: column((point) => point[TOKENS]) }] },
    { title: () => "Requests per second", note: () => `last ${RATE_S} s`, size: 0.9, unit: "", measure: () => "requests_per_s", series: () => [
      { name: "answered", hue: "ok", kind: "stack", values: rate((point) => point[OK]) },
      { name: "failed", hue: "fail", kind: "stack", values: rate((point) => sum(point[FAILED])) },
    ] },
  ];

  function describe({ title, unit, whole, measure, series: make, texts = true }) {
    const made = make();
    const { x, columns } = liveValues.breakAtHoles(history.points, history.holes, made.map((one) => one.values()));
    const limits = history.limits.filter(([of]) => of === measure?.());
    const now = history.points.at(-1)?.[AT] ?? 0;
    return {
      title: title(),
      group: GROUP,
      low: true,
      x: { unit: "s", low: 0, high: liveValues.findEnd(now, history.planned) },
      y: { unit, low: 0, whole },
      series: made.map(({ name, hue, kind, dashed }, i) => ({ name, hue, kind, dashed, x, y: columns[i] })),
      marks: [
        ...history.marks.map(([at, text, kind]) => ({ x: at, text: texts ? text : "", hue: kind === "trouble" ? "fail" : "mark" })),
        ...limits.map(([, y, text]) => ({ y, text, hue: "slo" })),
      ],
    };
  }

  function makeFigure(place, before = null) {
    const figure = document.createElement("figure"), head = document.createElement("div"), title = document.createElement("h3");
    const note = document.createElement("small"), box = document.createElement("div");
    [figure.className, head.className, box.className] = ["plot", "panel-head", "canvas"];
    box.setAttribute("role", "img");
    head.append(title, note);
    figure.append(head, box);
    place.insertBefore(figure, before);
    return { figure, head, title, note, box };
  }
  function addPanel(place, description, before = null, options = {}) {
    const { figure, head, title, note, box } = makeFigure(place, before);
    let chart = null, height = USUAL;
    function write() {
      const text = description.title();
      if (title.textContent !== text) {
        title.textContent = text;
        box.setAttribute("aria-label", text);
      }
      note.textContent = description.note?.() ?? "";
    }
    function show() {
      figure.hidden = Boolean(description.only && !description.only());
      if (figure.hidden) return;
      write();
      const plot = describe(description);
      if (chart) chart.update(plot);
      else {
        chart = chartTools.attach(charts.draw(box, plot, {
          last: true, legend: head, yLabel: false, height, markTexts: description.texts !== false, ...options,
        }));
        if (log && description.unit === "ms") chart.setLog(true);
      }
    }
    return {
      figure, description, update: show,
      remove: () => chart?.remove(),
      setLog: (on) => description.unit === "ms" && chart?.setLog(on),
      resize(pixels) {
        if (Math.abs(pixels - height) < 1) return;
        height = pixels;
        if (!chart) return;
        chart.options.height = height;
        chart.redraw();
      },
    };
  }

  const place = document.getElementById("panels");
  const group = charts.group(GROUP);
  chartTools.addChip(document.getElementById("range"), group);
  let panels = [], others = [];
  // Panels with marks have their texts at the highest one, and the time axis under the last one.
  function begin() {
    panels.forEach((panel) => panel.remove());
    place.replaceChildren();
    const wanted = PANELS.filter((one) => !one.only || one.only());
    panels = wanted.map((one, i) => addPanel(place, { ...one, texts: i === 0 }, null, { xTicks: i === wanted.length - 1 }));
    fit();
  }
  // The panels share the height that the page leaves them; on a small screen each has its usual one.
  function fit() {
    if (!panels.length) return;
    const scrolls = getComputedStyle(place).overflowY === "visible";
    const all = sum(panels.map((panel) => panel.description.size));
    const room = place.clientHeight - AXIS - HEAD * panels.length;
    panels.forEach((panel, i) => {
      const share = scrolls ? USUAL * panel.description.size : Math.max(LEAST, room * panel.description.size / all);
      panel.resize(Math.floor(share) + (i === panels.length - 1 ? AXIS : 0));
    });
  }
  new ResizeObserver(fit).observe(place);

  // Shown panels depend on what the run measures.
  let kind = "";
  function update() {
    const now = history.points.at(-1)?.[AT] ?? 0;
    group.window = window_s === null ? null : [Math.max(0, now - window_s), Math.max(now, window_s)];
    if (kind !== (kind = `${history.streams} ${history.generates}`) || !panels.length) begin();
    panels.forEach((panel) => panel.update());
    others.forEach((panel) => panel.update());
  }

  // -- the server's metrics: a chart comes with its first value -----------------------------------------------------------------

  function add(box, description, before) {
    const made = addPanel(box, description, before);
    others.push(made);
    made.update();
    return made;
  }
  function removeOthers() {
    others.forEach((panel) => panel.remove());
    others = [];
  }

  // -- the curve of a sweep: throughput against latency, point by point ------------------------------------------------------------

  const HUE_OF = { PASS: "ok", FAIL: "fail", INCONCLUSIVE: "knee" };
  let curve = null;
  function drawCurve(box, rows) {
    const latency = (row) => (history.streams ? row.ttft_ms : row.latency_ms)?.[1];
    const known = rows.filter((row) => typeof latency(row) === "number" && row.requests_per_s > 0);
    const byLoad = [...known].sort((a, b) => a.value - b.value);
    const name = history.streams ? "TTFT p95" : "latency p95";
    const limit = history.limits.find(([of, , text]) => of === (history.streams ? history.measure : "request_latency") && text.includes("p95"));
    const pick = (some) => ({ x: some.map((row) => row.requests_per_s), y: some.map(latency) });
    const series = [{ name, hue: "p95", kind: "line", ...pick(byLoad) }];
    for (const status of ["PASS", "FAIL", "INCONCLUSIVE"]) {
      const some = byLoad.filter((row) => row.slo === status);
      if (some.length) series.push({ name: status, hue: HUE_OF[status], kind: "rings", ...pick(some) });
    }
    const plot = {
      title: "Throughput and latency", low: true,
      x: { unit: "", label: "requests/s", low: 0 }, y: { unit: "ms", low: 0, label: name },
      series, marks: limit ? [{ y: limit[1], text: limit[2], hue: "slo" }] : [],
    };
    if (curve) curve.update(plot);
    else curve = chartTools.attach(charts.draw(box, plot, { height: 190 }), {
      tip: ({ x, y }) => {
        const row = byLoad.find((one) => one.requests_per_s === x && latency(one) === y);
        return [row ? `${row.axis} ${chartFormat.brief(row.value)}` : name, [name, chartFormat.writeValue("ms", y)],
          ["requests/s", chartFormat.brief(x, "", 3)]];
      },
    });
  }

  return {
    history, counts, update, add, removeOthers, column, drawCurve, fit,
    answered: () => liveValues.findRates(history.points, history.holes, (point) => point[OK]).at(-1) ?? null,
    forget: () => group.setRange(null),
    show: (since) => group.setRange([Math.max(0, since - 15), Math.max(since + 15, history.points.at(-1)?.[AT] ?? 0)]),
    setWindow(seconds) {
      window_s = seconds;
      group.setRange(null);
      update();
    },
    setLog(on) {
      log = on;
      panels.forEach((panel) => panel.setLog(on));
    },
  };
})();
