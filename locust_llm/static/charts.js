// The charts of the live page, over the run's time. CHARTS has those of the run; the server's come by ``add``.
"use strict";
const charts = (() => {
  const { css, swatch, written, letters, fontOf, rowHeight } = plots;
  const RATE_S = 5, HEIGHT = 210, FAR = 4;
  // Places in a point of the history: live.py, Point. Those with _S are totals over time.
  const AT = 0, USERS = 1, LIMIT = 2, USED_S = 3, WAITING_S = 4, DECODING_S = 5, TTFT = 6, ITL = 7, TOKENS = 8, OK = 9, FAILED = 10, SERVER = 11, LATENCY = 12, IN_FLIGHT_AT = 13;
  const history = { points: [], marks: [], classes: [], limits: [], generates: true, streams: true };  // limits: [measure, limit in the chart's unit, text]

  // -- values ------------------------------------------------------------------------------------------------------------

  const column = (of) => () => history.points.map((point) => of(point) ?? null);

  // Of a total: its growth per second over the last seconds, whichever points are left. Of requests that is their rate, of
  // request-seconds the mean number of requests. Points are a little more than a second apart: five of them take 5.02 s.
  const rate = (of, at = AT) => () => {
    const { points } = history;
    return points.map((point, i) => {
      let j = i;
      while (j > 0 && point[AT] - points[j - 1][AT] <= RATE_S + 0.5) j--;
      if (j === i && i > 0) j--;
      const seconds = point[at] - (i ? points[j][at] : 0);
      return seconds > 0 ? (of(point) - (i ? of(points[j]) : 0)) / seconds : null;
    });
  };
  const mean = (place) => rate((p) => p[place], IN_FLIGHT_AT);
  const percentiles = (place) => ["p50", "p95", "p99"].map((name, i) => ({ name, hue: name, values: column((p) => p[place]?.[i]) }));

  // -- what there is -----------------------------------------------------------------------------------------------------

  // A chart: its unit, whether its values are whole numbers, its measure in rules, and what makes its series. ``only``: where
  // it is shown, else everywhere.
  const CHARTS = [
    { title: "Request latency", unit: "ms", measure: "request_latency", only: () => !history.streams, series: () => percentiles(LATENCY) },
    { title: "Time to first token", unit: "ms", measure: "ttft", only: () => history.streams, series: () => percentiles(TTFT) },
    { title: "Inter-token latency", unit: "ms", measure: "itl", only: () => history.streams, series: () => percentiles(ITL) },
    { title: `Prefill gate, mean of ${RATE_S} s`, unit: "", series: () => [
      { name: history.streams ? "awaiting first token" : "in flight", hue: "prefill", kind: "area", values: mean(USED_S) },
      { name: "limit", hue: "limit", kind: "steps", values: column((p) => p[LIMIT]) },
      { name: "waiting", hue: "wait", values: mean(WAITING_S) },
    ] },
    { title: "Output tokens per second", unit: "", measure: "output_tokens_per_s", only: () => history.generates, series: () => [
      { name: `tokens/s, last ${RATE_S} s`, hue: "decode", values: column((p) => p[TOKENS]) },
    ] },
    { title: "Users and decoding requests", unit: "", whole: true, series: () => [
      { name: "users", hue: "limit", kind: "steps", values: column((p) => p[USERS]) },
      ...(history.streams ? [{ name: `decoding, mean of ${RATE_S} s`, hue: "decode", values: mean(DECODING_S) }] : []),
    ] },
    { title: "Requests per second", unit: "", measure: "requests_per_s", series: () => [
      { name: `ok, last ${RATE_S} s`, hue: "p50", values: rate((p) => p[OK]) },
      ...history.classes.map((name, i) => ({ name: `failed: ${name}, last ${RATE_S} s`, hue: ["fail", "prefill", "p99", "p95", "faint"][i % 5],
        dashed: i > 4, values: rate((p) => p[FAILED][i] ?? 0) })),
    ] },
  ];

  // -- ticks: those of an axis have one unit and as many decimals ----------------------------------------------------------

  const UNITS = { ms: [[1e3, 1e3, " s"], [1, 1, " ms"], [0, 1e-3, " µs"]], "": [[1e6, 1e6, "M"], [1e4, 1e3, "k"], [0, 1, ""]] };
  const two = (value) => String(value).padStart(2, "0");
  function times(splits) {
    const most = Math.max(...splits);
    if (most < 120) return splits.map((s) => `${s} s`);
    const clock = (s) => `${two(Math.floor(s / 60) % 60)}:${two(Math.round(s) % 60)}`;
    return splits.map((s) => (most < 3600 ? clock(s).replace(/^0/, "") : `${Math.floor(s / 3600)}:${clock(s)}`));
  }
  function ticks(unit, splits) {
    if (unit === "s") return times(splits);
    const most = Math.max(...splits), known = UNITS[unit] || [[0, 1, ` ${unit}`]];
    const [, size, name] = known.find(([from]) => most >= from);
    const step = splits.length > 1 ? (splits[1] - splits[0]) / size : 1;
    const places = [0, 1, 2].find((digits) => Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-6) ?? 3;
    return splits.map((value) => value === 0 ? "0"
      : (value / size).toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places }) + name);
  }

  // -- one chart -----------------------------------------------------------------------------------------------------------

  const WHOLES = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((m) => m * 10 ** power));
  const SECONDS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((m) => m * 60), ...[1, 2, 5, 10, 24].map((h) => h * 3600)];
  const axis = (side, size, unit) => ({
    side, size: size * letters(), font: fontOf(), gap: 4, stroke: () => css("muted"), grid: { stroke: () => css("line"), width: 1 },
    ticks: { stroke: () => css("line"), width: 1, size: 4 }, values: (_, splits) => ticks(unit, splits),
  });

  function chart(place, { title, unit, whole, measure, only, series: make }, before = null) {
    const figure = document.createElement("figure"), head = document.createElement("h3"), box = document.createElement("div");
    const keys = document.createElement("div"), text = written(unit), hidden = new Set();
    const limits = () => history.limits.filter(([of]) => of === measure);
    let series = [], outputs = [], u = null, zoomed = false, names = "";
    [figure.className, box.className, keys.className, head.textContent] = ["plot", "canvas", "keys", title];
    figure.append(head, box, keys);
    place.insertBefore(figure, before);

    const drawn = (one) => ({
      stroke: () => css(one.hue), width: 1.7, dash: one.dashed ? [6, 4] : undefined, show: !hidden.has(one.name), spanGaps: false,
      fill: one.kind === "area" ? () => `color-mix(in srgb, ${css(one.hue)} 30%, transparent)` : undefined,
      paths: one.kind === "steps" ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: false },
    });
    // A limit far above the values has its text at the top, and no line: it would press the values to the ground.
    function highest(most) {
      const far = limits().filter(([, limit]) => limit > FAR * most), near = limits().map(([, limit]) => limit).filter((limit) => limit <= FAR * most);
      return (Math.max(most, ...near) || 1) * (far.length ? 1.2 : 1.08);
    }
    const marks = (self) => plots.marks(self, [
      ...history.marks.map(([x, text]) => ({ x, text })),
      ...limits().map(([, y, text]) => ({ y, text, hue: "slo", beyond: y > self.scales.y.max })),
    ]);
    function key(one) {
      const button = document.createElement("button"), value = document.createElement("output");
      [button.type, button.className] = ["button", "key"];
      button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
      button.append(swatch(one.kind || "line", one.hue, one.dashed), one.name, value);
      button.addEventListener("click", () => {
        hidden.has(one.name) ? hidden.delete(one.name) : hidden.add(one.name);
        button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
        u.setSeries(series.indexOf(one) + 1, { show: !hidden.has(one.name) });
      });
      keys.append(button);
      return value;
    }
    function begin() {
      u?.destroy();
      keys.replaceChildren();
      outputs = series.map(key);
      const last = () => history.points.at(-1)?.[AT] ?? 0;
      u = new uPlot({
        width: Math.max(box.clientWidth, 200), height: HEIGHT, legend: { show: false }, padding: [6 + rowHeight(), 20, 0, 0],
        scales: {
          x: { time: false, range: (_, low, high) => (zoomed ? [low, high] : [0, Math.max(30, last())]) },
          y: { range: (_, low, high) => [0, highest(high > 0 ? high : 0)] },
        },
        series: [{}, ...series.map(drawn)],
        axes: [{ ...axis(2, 2.2, "s"), space: 5 * letters(), incrs: SECONDS }, { ...axis(3, 4.9, unit), space: 2.4 * letters(), ...(whole ? { incrs: WHOLES } : {}) }],
        cursor: { y: false, points: { size: 6 }, drag: { x: true, y: false }, sync: { key: "live", scales: ["x", null] } },
        hooks: { draw: [marks], setCursor: [show], setSelect: [(self) => { zoomed = zoomed || self.select.width > 0; }] },
      }, [[], ...series.map(() => [])], box);
      u.over.addEventListener("dblclick", () => { zoomed = false; update(); });
    }
    function show() {
      const over = u.cursor.left >= 0;
      outputs.forEach((output, i) => {
        const value = u.data[i + 1][over ? u.cursor.idx ?? -1 : u.data[0].length - 1];
        output.textContent = typeof value === "number" && !hidden.has(series[i].name) ? text(Number(value.toPrecision(3))) : "";
      });
    }
    function update() {
      figure.hidden = only !== undefined && !only();
      series = make();
      if (names !== (names = series.map((one) => one.name).join("\n")) || !u) begin();
      u.setData([history.points.map((point) => point[AT]), ...series.map((one) => one.values())], !zoomed);
      if (zoomed) u.redraw();
      show();
    }
    let width = 0;
    new ResizeObserver(() => {
      if (!u || Math.abs(box.clientWidth - width) < 1) return;
      width = box.clientWidth;
      u.setSize({ width: Math.max(width, 200), height: HEIGHT });
    }).observe(box);
    return { figure, update, again: () => [begin(), update()], forget: () => { zoomed = false; }, redraw: () => u?.redraw() };
  }

  let all = CHARTS.map((one) => chart(document.getElementById("plots"), one));
  const each = (what) => () => all.forEach((one) => one[what]());
  // One more, in a place of its own, ``before`` another figure there: a chart that comes with its first value.
  function add(place, description, before) {
    const made = chart(place, description, before);
    all.push(made);
    made.update();
    return made;
  }
  plots.narrow.addEventListener("change", each("again"));
  const remove = (some) => { all = all.filter((one) => !some.includes(one)); };
  return {
    history, AT, SERVER, RATE_S, add, remove, column, succeeded: () => rate((point) => point[OK])().at(-1),
    update: each("update"), forget: each("forget"), redraw: each("redraw"),
  };
})();
