// The charts of the live page, over the run's time. CHARTS has those of the run; the server's come by ``add``.
"use strict";
const liveCharts = (() => {
  const RATE_S = 5;                  // seconds that a rate is of
  const SHORTEST_S = 30;             // the time axis is at least so long
  const HOLE_S = 4;                  // readings this far apart, in steps of the history, leave a hole
  // Places in a point of the history: live.py, LiveSample. Those with _S are totals over time.
  const AT = 0, USERS = 1, LIMIT = 2, USED_S = 3, WAITING_S = 4, DECODING_S = 5, TTFT = 6, ITL = 7, TOKENS = 8, OK = 9, FAILED = 10, SERVER = 11, LATENCY = 12, IN_FLIGHT_AT = 13;
  const history = { points: [], step: 1, marks: [], classes: [], limits: [], generates: true, streams: true };  // limits: [measure, limit in the chart's unit, text]

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

  const FAILURE_HUES = ["fail", "prefill", "p99", "p95", "faint"];
  function listFailures() {
    return history.classes.map((name, i) => ({
      name: `failed: ${name}, last ${RATE_S} s`, hue: FAILURE_HUES[i % FAILURE_HUES.length], dashed: i >= FAILURE_HUES.length,
      values: rate((p) => p[FAILED][i] ?? 0),
    }));
  }

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
      ...listFailures(),
    ] },
  ];

  // -- one chart -----------------------------------------------------------------------------------------------------------

  function describe({ title, unit, whole, measure, series: make }) {
    const x = history.points.map((point) => point[AT]);
    const limits = history.limits.filter(([of]) => of === measure);
    return {
      title,
      group: "live",
      low: true,
      gap: HOLE_S * history.step,
      x: { unit: "s", low: 0, high: Math.max(SHORTEST_S, x.at(-1) ?? 0) },
      y: { unit, low: 0, whole },
      series: make().map(({ values, ...one }) => ({ ...one, x, y: values() })),
      marks: [
        ...history.marks.map(([at, text]) => ({ x: at, text })),
        ...limits.map(([, y, text]) => ({ y, text, hue: "slo" })),
      ],
    };
  }

  // ``before``: another figure in ``place``.
  function addChart(place, description, before = null) {
    const figure = document.createElement("figure"), head = document.createElement("h3"), box = document.createElement("div");
    [figure.className, box.className, head.textContent] = ["plot", "canvas", description.title];
    figure.append(head, box);
    place.insertBefore(figure, before);
    let chart = null;
    function update() {
      figure.hidden = description.only !== undefined && !description.only();
      if (figure.hidden) return;
      const plot = describe(description);
      if (chart) chart.update(plot);
      else chart = chartTools.attach(charts.draw(box, plot, { last: true }));
    }
    return { figure, update, remove: () => chart?.remove() };
  }

  const group = charts.group("live");
  chartTools.addChip(document.getElementById("range"), group);
  let all = CHARTS.map((one) => addChart(document.getElementById("plots"), one));
  // One more, in a place of its own, ``before`` another figure there: a chart that comes with its first value.
  function add(place, description, before) {
    const made = addChart(place, description, before);
    all.push(made);
    made.update();
    return made;
  }
  function remove(some) {
    some.forEach((one) => one.remove());
    all = all.filter((one) => !some.includes(one));
  }
  return {
    history, AT, SERVER, RATE_S, add, remove, column, succeeded: () => rate((point) => point[OK])().at(-1),
    update: () => all.forEach((one) => one.update()), forget: () => group.setRange(null),
  };
})();
