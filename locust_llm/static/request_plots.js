// The charts of the requests that a reader chose, as descriptions that draw_chart.js draws (report/chart_data/plot_data.py). Where
// nothing is filtered they are those of the report, which are of all requests, with the requests of this page as dots.
// Pure functions without a document.
"use strict";
const requestPlots = (() => {
  const requests = requestTable;
  const LOG_RATIO = 20;              // as in report/chart_data/plot_data.py
  const COLUMNS = { ttft: "TTFT", itl: "ITL", latency: "latency" };
  const SPECTRA = {
    "spectrum-first": [["ttft", "TTFT", "p50"], ["gate", "gate wait", "wait"], ["fromdue", "TTFT from due", "p95"]],
    "spectrum-whole": [["latency", "latency", "p50"], ["gate", "gate wait", "wait"]],
    "spectrum-between": [["itl", "ITL", "p50"], ["stall", "longest stall", "p99"]],
  };
  const known = (value) => typeof value === "number" && isFinite(value);

  function dots(table, rows, column, name, hue) {
    const at = table.column("at"), values = table.column(column), there = rows.filter((row) => known(values[row]));
    return { name, hue, kind: "dots", x: there.map((row) => at[row]), y: there.map((row) => values[row]), rows: there };
  }

  // Requests that were cut before their first token (their end), at the age that they had reached.
  function cutRequests(table, rows, column) {
    const at = table.column("at"), took = table.column("took"), ttft = table.column("ttft");
    const cut = column === "itl" ? [] : rows.filter((row) => table.label("outcome", row) === "cut" && (column === "latency" || !known(ttft[row])));
    return { name: "cut, age so far", hue: "fail", kind: "rings", x: cut.map((row) => at[row]), y: cut.map((row) => took[row]), rows: cut };
  }

  const logBase = (values) => (Math.max(...values) > LOG_RATIO * requests.percentile(values, 50) ? 10 : 0);

  function timeAxis(plot, view) {
    return view.from === null ? plot.x : { ...plot.x, low: view.from, high: view.to };
  }

  // The ends of equal stretches of the time that is shown.
  function edgesOf(plot, table, view, rows) {
    const [low, high] = view.from === null ? [plot.x.low ?? 0, plot.x.high] : [view.from, view.to];
    return requests.roundEdges(low, high, requests.count(table, rows));
  }

  function failuresOver(table, rows, edges) {
    const ends = rows.filter(table.isFailed).map((row) => [requests.momentsOf(table, row).end, table.weight(row)]);
    return requests.spreadAmounts(ends.map(([end, weight]) => [end, end, weight]), edges);
  }

  function latencies(plot, table, view, column) {
    const rows = requests.filterRows(table, view), ok = rows.filter(table.isOk);
    const shown = [dots(table, ok, column, "request", "dot")];
    const cut = cutRequests(table, rows, column);
    if (cut.x.length) shown.push(cut);
    if (!requests.isFiltered(view)) {
      const phase = table.dimensions.get("phase");
      const warm = phase ? requests.allRows(table).filter((row) => table.isOk(row) && table.label("phase", row) === "warmup") : [];
      if (warm.length) shown.unshift(dots(table, warm, column, "warmup", "faint"));
      return { ...plot, series: [...shown, ...plot.series] };
    }
    const lines = requests.percentileLines(table, ok, column).map((line) => ({ ...line, hue: line.name }));
    const failures = plot.series.find(({ hue }) => hue === "fail");
    if (failures) lines.push({ ...failures, y: failuresOver(table, rows, failures.x) });
    const values = shown[0].y, base = values.length ? logBase(values) : 0;
    return {
      ...plot, series: [...shown, ...lines], x: timeAxis(plot, view), y: { ...plot.y, log: base },
      caption: `${COLUMNS[column]} of ${chartFormat.count(requests.count(table, ok), "request")}.`,
    };
  }

  const steps = (name, hue, edges, values, kind = "steps") => ({ name, hue, kind, x: edges, y: [...values, values.at(-1) ?? 0] });

  function ratesOverTime(plot, table, view, which) {
    const rows = requests.filterRows(table, view), edges = edgesOf(plot, table, view, rows);
    const rates = requests.ratesOverTime(table, rows, edges);
    const series = which === "tokens" ? [steps("output tokens/s", "decode", edges, rates.tokens, "area")]
      : [steps("finished", "ok", edges, rates.finished)];
    if (which === "rates" && rates.failed.some((rate) => rate > 0)) series.push(steps("failed", "fail", edges, rates.failed));
    return { ...plot, series, x: timeAxis(plot, view), caption: stepCaption(edges, rows, table) };
  }

  function stepCaption(edges, rows, table) {
    const width = edges.length > 2 ? edges[2] - edges[1] : edges[1] - edges[0];
    return `Each step is ${Number(width.toPrecision(3))} s, of ${chartFormat.count(requests.count(table, rows), "request")}.`;
  }

  function levelsOverTime(plot, table, view, which) {
    const rows = requests.filterRows(table, view), edges = edgesOf(plot, table, view, rows);
    const levels = requests.levelsOverTime(table, rows, edges), series = [];
    for (const old of plot.series) {
      if (old.hue === "limit") series.push(old);
      else if (which === "gate") series.push(steps(old.name, old.hue, edges, levels.prefill, "area"));
      else series.push(steps(old.name, old.hue, edges, old.hue === "wait" ? levels.waiting : levels.decoding, old.kind));
    }
    return { ...plot, series, x: timeAxis(plot, view), caption: stepCaption(edges, rows, table) };
  }

  function spectrum(plot, table, view, columns) {
    const ok = requests.filterRows(table, view).filter(table.isOk);
    const lines = columns.filter(([column]) => table.has(column))
      .map(([column, name, hue]) => ({ name, hue, ...requests.spectrum(table, ok, column) })).filter(({ x }) => x.length);
    const values = lines.flatMap(({ y }) => y), most = Math.max(10, ...lines.flatMap(({ x }) => x));
    const base = values.length ? logBase(values) : 0;
    return {
      ...plot, series: lines, marks: (plot.marks || []).filter(({ hue }) => hue !== "fail"),
      x: { ...plot.x, high: most }, y: { ...plot.y, log: base },
      caption: `The value at each percentile of ${chartFormat.count(requests.count(table, ok), "request")}.`,
    };
  }

  function byLength(plot, table, view) {
    const ok = requests.filterRows(table, view).filter(table.isOk), length = table.column("input");
    const column = plot.of, values = table.column(column);
    const there = ok.filter((row) => known(length[row]) && known(values[row]));
    const series = [{ name: "request", hue: "dot", kind: "dots", x: there.map((row) => length[row]), y: there.map((row) => values[row]), rows: there }];
    return { ...plot, series: requests.isFiltered(view) ? series : [...series, ...plot.series] };
  }

  // The chart for a view. A chart without a key is of no single requests, and stays.
  function choose(plot, table, view) {
    if (!plot.key || !table) return plot;
    if (plot.key in COLUMNS) return latencies(plot, table, view, plot.key);
    if (plot.key === "length") return byLength(plot, table, view);
    if (!requests.isFiltered(view)) return plot;
    if (plot.key === "tokens" || plot.key === "rates") return ratesOverTime(plot, table, view, plot.key);
    if (plot.key === "gate" || plot.key === "decoding") return levelsOverTime(plot, table, view, plot.key);
    return plot.key in SPECTRA ? spectrum(plot, table, view, SPECTRA[plot.key]) : plot;
  }

  return { choose };
})();
