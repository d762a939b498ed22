// The requests that a report embeds: filtered, summed up, grouped, sorted, written as CSV, and the view of them in the
// address of the page. Pure functions without a document, which node's runner tests; report/render/request_sample.py makes
// the data. Percentiles are those of the report: linear interpolation, as numpy's default.
"use strict";
const requestTable = (() => {
  const MIN_POINTS = 5, MAX_POINTS = 300;  // of a line, as in report/chart_data/plot_data.py
  const LINES = [[50, 20, "p50"], [95, 20, "p95"], [99, 100, "p99"]];
  const known = (value) => typeof value === "number" && isFinite(value);

  // -- the table -----------------------------------------------------------------------------------------------------

  // A row is a number from 0 on. A request of a sample stands for ``weight`` requests.
  function readTable(data) {
    const size = data.ids.length, failed = new Set(data.failed);
    const dimensions = new Map(data.dimensions.map((dimension) => [dimension.key, dimension]));
    const outcome = dimensions.get("outcome"), { at } = data.columns;
    const nothing = new Array(size).fill(null);
    return {
      size, total: data.total, seconds: data.seconds, ids: data.ids, errors: data.errors, dimensions,
      parts: data.parts ?? {}, partNames: data.part_names ?? {},
      sampled: data.weights.length > 0,
      span: [at.reduce((a, b) => Math.min(a, b)), at.reduce((a, b) => Math.max(a, b))],
      columnNames: Object.keys(data.columns),
      column: (name) => data.columns[name] ?? nothing,
      has: (name) => name in data.columns,
      weight: (row) => data.weights[row] ?? 1,
      isOk: (row) => outcome.codes[row] === data.ok,
      isFailed: (row) => failed.has(outcome.codes[row]),
      label: (key, row) => dimensions.get(key)?.labels[dimensions.get(key).codes[row]] ?? "",
    };
  }

  const allRows = (table) => Array.from({ length: table.size }, (_, row) => row);
  const count = (table, rows) => rows.reduce((sum, row) => sum + table.weight(row), 0);

  // -- percentiles ---------------------------------------------------------------------------------------------------

  // The first place of a rising list whose value is above ``value``; its length where there is none.
  function placeAbove(rising, value) {
    let low = 0, high = rising.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rising[middle] > value) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // percent -> as numpy.percentile(numpy.repeat(values, weights), percent); null of nothing. Sorted once for all percentiles.
  function makePercentiles(values, weights) {
    const order = values.map((value, i) => [value, weights ? weights[i] : 1]).filter(([value]) => known(value))
      .sort((a, b) => a[0] - b[0]);
    const ends = [];
    let total = 0;
    for (const [, weight] of order) ends.push(total += weight);
    return (percent) => {
      if (!total) return null;
      const place = (percent / 100) * (total - 1), low = Math.floor(place), part = place - low;
      const i = Math.min(placeAbove(ends, low), order.length - 1), value = order[i][0];
      const next = ends[i] > low + 1 || i + 1 === order.length ? value : order[i + 1][0];
      return value + (next - value) * part;
    };
  }
  const percentile = (values, percent, weights) => makePercentiles(values, weights)(percent);
  function percentilesOf(table, rows, column) {
    const values = table.column(column);
    return makePercentiles(rows.map((row) => values[row]), rows.map(table.weight));
  }

  const percentileOf = (table, rows, column, percent) => percentilesOf(table, rows, column)(percent);

  function sumOf(table, rows, column) {
    const values = table.column(column);
    return rows.reduce((sum, row) => sum + (known(values[row]) ? values[row] * table.weight(row) : 0), 0);
  }

  function meanOf(table, rows, column) {
    const values = table.column(column), there = rows.filter((row) => known(values[row]));
    return there.length ? sumOf(table, there, column) / count(table, there) : null;
  }

  // -- the view and its filter ---------------------------------------------------------------------------------------

  // A view: {filters: {input: "2k-10k"}, from, to (s; null: all of the time), by, sort, search, request}. A dimension with
  // a start (the phase) has it unless another value, or ALL, is chosen.
  const ALL = "*";
  const newView = () => ({ filters: {}, from: null, to: null, by: "", bysort: "", sort: "", search: "", request: "" });

  function chosenLabel(table, view, key) {
    const dimension = table.dimensions.get(key);
    return view.filters[key] ?? (dimension.start >= 0 ? dimension.labels[dimension.start] : ALL);
  }

  const isFiltered = (view) => Object.keys(view.filters).length > 0 || view.from !== null;

  function setFilter(table, view, key, label) {
    const dimension = table.dimensions.get(key), filters = { ...view.filters };
    const start = dimension.start >= 0 ? dimension.labels[dimension.start] : ALL;
    if (label === start) delete filters[key];
    else filters[key] = label;
    return { ...view, filters };
  }

  // The rows of a view; without: a dimension whose filter does not count, as for the table by that dimension.
  function filterRows(table, view, without = "") {
    const wanted = [...table.dimensions.values()].filter(({ key }) => key !== without)
      .map((dimension) => [dimension, chosenLabel(table, view, dimension.key)]).filter(([, label]) => label !== ALL)
      .map(([dimension, label]) => [dimension.codes, dimension.labels.indexOf(label)]);
    const at = table.column("at");
    return allRows(table).filter((row) => wanted.every(([codes, code]) => codes[row] === code)
      && (view.from === null || (at[row] >= view.from && at[row] <= view.to)));
  }

  const KEYS = ["by", "bysort", "sort", "search", "request"];

  // The view as the hash of the page's address, without "#": input=2k-10k&from=58&to=77.
  function writeAddress(view) {
    const words = new URLSearchParams(Object.entries(view.filters));
    if (view.from !== null) words.set("time", `${view.from}-${view.to}`);
    for (const key of KEYS) if (view[key]) words.set(key, view[key]);
    return words.toString();
  }

  // The view of an address; what it names and the page has not is left out. Empty of the address of a section.
  function readAddress(hash, table) {
    const view = newView(), text = hash.replace(/^#/, "");
    if (!text.includes("=")) return view;
    for (const [key, value] of new URLSearchParams(text)) {
      const dimension = table.dimensions.get(key), time = key === "time" && value.match(/^(-?[\d.]+)-(-?[\d.]+)$/);
      if (dimension && (value === ALL || dimension.labels.includes(value))) view.filters = setFilter(table, view, key, value).filters;
      else if (time && Number(time[1]) < Number(time[2])) [view.from, view.to] = [Number(time[1]), Number(time[2])];
      else if (KEYS.includes(key)) view[key] = value;
    }
    if (view.by && !table.dimensions.has(view.by)) view.by = "";
    if (view.request && !table.ids.includes(view.request)) view.request = "";
    return view;
  }

  // -- figures -------------------------------------------------------------------------------------------------------

  // The report's own numbers of the stage that a view is of: {seconds, requestsPerS, tokensPerS, inputPerS}; null: it is
  // of none, or of a part of its time.
  function stageRates(table, view) {
    const dimension = table.dimensions.get("stage");
    const rates = view.from === null && dimension?.rates?.[dimension.labels.indexOf(view.filters.stage)];
    if (!rates || !(rates[0] > 0)) return null;
    const [seconds, requestsPerS, tokensPerS, inputPerS] = rates;
    return { seconds, requestsPerS, tokensPerS, inputPerS };
  }

  // The time over which the rates of a view are, in seconds; null: it is not known. A stage has its measured time, else the
  // time from its first send to its last end, whatever else is chosen. A limit or a rate may have been in force several times.
  const STRETCHES = ["stage", "phase"], RAMPS = new Set(["limit", "rate"]);
  function secondsOf(table, view) {
    const filtered = (key) => key in view.filters;
    if ([...RAMPS].some(filtered)) return null;
    const measured = stageRates(table, view);
    if (measured) return measured.seconds;
    const [from, to] = view.from === null ? [-Infinity, Infinity] : [view.from, view.to];
    if (!STRETCHES.some(filtered)) return view.from === null ? table.seconds : to - from;
    const filters = Object.fromEntries(Object.entries(view.filters).filter(([key]) => STRETCHES.includes(key)));
    const rows = filterRows(table, { ...newView(), filters }), at = table.column("at"), took = table.column("took");
    const begin = rows.reduce((least, row) => Math.min(least, at[row]), Infinity);
    const end = rows.reduce((most, row) => Math.max(most, at[row] + (took[row] ?? 0) / 1000), -Infinity);
    const seconds = Math.min(end, to) - Math.max(begin, from);
    return seconds > 0 ? seconds : null;
  }

  // What is known of the requests of a view. A whole stage has the rates of the table of the stages, which the report computed.
  function summariseView(table, rows, view) {
    const sums = summarise(table, rows, secondsOf(table, view));
    const isWholeStage = Object.keys(view.filters).join() === "stage";
    return isWholeStage ? { ...sums, ...stageRates(table, view) } : sums;
  }

  // What is known of some requests; latencies are of the successful ones, rates are over ``seconds``.
  function summarise(table, rows, seconds) {
    const ok = rows.filter(table.isOk), failed = count(table, rows.filter(table.isFailed));
    const requests = count(table, rows), succeeded = count(table, ok), finished = succeeded + failed;
    const per = (amount) => (seconds > 0 ? amount / seconds : null);
    const sorted = new Map();   // column -> its percentiles
    function at(column, percent) {
      if (!sorted.has(column)) sorted.set(column, percentilesOf(table, ok, column));
      return sorted.get(column)(percent);
    }
    return {
      requests, succeeded, failures: failed, unanswered: requests - succeeded,
      failed: finished ? (100 * failed) / finished : null,
      requestsPerS: per(succeeded), tokensPerS: table.has("output") ? per(sumOf(table, ok, "output")) : null,
      inputPerS: per(sumOf(table, ok, "input")),
      at,
    };
  }

  // The columns of the table by a dimension: FIGURES of report/render/request_sample.py.
  const FIGURES = ["requests", "failed", "ttft50", "ttft95", "ttft99", "itl50", "itl95", "stall90", "latency50", "latency95",
    "wait95", "input", "cached"];

  function figuresOf(table, rows) {
    const ok = rows.filter(table.isOk), whole = summarise(table, rows, null), { at } = whole;
    const input = meanOf(table, ok, "input"), cached = meanOf(table, ok, "cached");
    return {
      requests: whole.requests, failed: whole.failed,
      ttft50: at("ttft", 50), ttft95: at("ttft", 95), ttft99: at("ttft", 99), itl50: at("itl", 50), itl95: at("itl", 95),
      stall90: at("stall", 90), latency50: at("latency", 50), latency95: at("latency", 95),
      wait95: percentileOf(table, rows, "gate", 95), input, cached: cached !== null && input ? (100 * cached) / input : null,
    };
  }

  // An answer is decoded under several limits or rates of a ramp: its ITL is of none of them.
  const withoutItl = (key, figures) => (RAMPS.has(key) ? { ...figures, itl50: null, itl95: null } : figures);

  // A group for each label of a dimension: {label, figures}. Of a sample that nothing filters they are those of all
  // requests, which the report computed.
  function groupRows(table, view, key) {
    const { labels, codes, whole } = table.dimensions.get(key), rows = filterRows(table, view, key);
    const others = Object.keys(view.filters).some((name) => name !== key) || view.from !== null;
    if (whole?.length && !others) {
      return labels.map((label, i) => ({ label, figures: withoutItl(key, Object.fromEntries(FIGURES.map((name, n) => [name, whole[i][n]]))) }));
    }
    return labels.map((label, code) => ({ label, figures: withoutItl(key, figuresOf(table, rows.filter((row) => codes[row] === code))) }))
      .filter(({ figures }) => figures.requests > 0);
  }

  // Stable; what is missing comes last either way.
  function sortBy(list, valueOf, descending = false) {
    const missing = (value) => value === null || value === undefined || value === "";
    return [...list].sort((one, other) => {
      const [a, b] = [valueOf(one), valueOf(other)];
      if (missing(a) || missing(b)) return Number(missing(a)) - Number(missing(b));
      const order = known(a) && known(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
      return descending ? -order : order;
    });
  }

  // Rows whose id, error, or a label of a dimension, has the text.
  function searchRows(table, rows, text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return rows;
    const texts = (row) => [table.ids[row], table.errors[row] ?? "", ...[...table.dimensions.keys()].map((key) => table.label(key, row))];
    return rows.filter((row) => texts(row).some((one) => one.toLowerCase().includes(wanted)));
  }

  // RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe.
  function toCsv(head, lines) {
    const cell = (value) => {
      if (value === null || value === undefined) return "";
      const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
      return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [head, ...lines].map((line) => line.map(cell).join(",")).join("\r\n") + "\r\n";
  }

  // -- over time -----------------------------------------------------------------------------------------------------

  // As numpy.linspace(0, count, parts + 1).astype(int).
  const splitEvenly = (length, parts) => Array.from({ length: parts + 1 }, (_, i) => (i === parts ? length : Math.floor((length / parts) * i)));

  // Percentiles of consecutive requests: [{name, x, y}], as make_percentile_lines in report/chart_data/plot_data.py.
  function percentileLines(table, rows, column) {
    const values = table.column(column), at = table.column("at");
    const order = sortBy(rows.filter((row) => known(values[row])), (row) => at[row]), lines = [];
    for (const [percent, need, name] of LINES) {
      const parts = Math.min(Math.floor(order.length / need), MAX_POINTS);
      if (parts < MIN_POINTS) continue;
      const ends = splitEvenly(order.length, parts), line = { name, x: [], y: [] };
      for (let i = 0; i < parts; i++) {
        const x = at[order[Math.floor((ends[i] + ends[i + 1]) / 2)]];
        if (line.x.length && x <= line.x.at(-1)) continue;
        line.x.push(x);
        line.y.push(percentileOf(table, order.slice(ends[i], ends[i + 1]), column, percent));
      }
      lines.push(line);
    }
    return lines;
  }

  // The ends of stretches of 1, 2 or 5 times a power of ten seconds, as choose_round_edges in report/chart_data/charts_over_time.py.
  function roundEdges(low, high, requests, most = MAX_POINTS) {
    const least = (high - low) / Math.max(Math.min(most, Math.floor(requests / 5)), 10);
    const power = 10 ** Math.floor(Math.log10(least));
    const width = [1, 2, 5, 10].map((m) => power * m).find((one) => one >= least * (1 - 1e-9));
    const inner = [];
    for (let i = Math.floor(low / width) + 1; i < Math.ceil(high / width); i++) inner.push(i * width);
    return [low, ...inner.filter((x) => x - low >= width / 2 && high - x >= width / 2), high];
  }

  // How much of amounts, each spread evenly from ``first`` to ``last``, lies between each two edges; one of no length is
  // in the stretch that it ends in.
  function spreadAmounts(spans, edges) {
    const sums = new Array(edges.length - 1).fill(0), end = edges.length - 1;
    for (const [first, last, amount] of spans) {
      if (!known(first) || !known(last)) continue;
      const start = Math.min(Math.max(placeAbove(edges, first) - 1, 0), end - 1);
      for (let i = start; i < end && edges[i] <= last; i++) {
        const [low, high] = [edges[i], edges[i + 1]];
        if (last <= first) {
          if (first >= low && (first < high || (i === end - 1 && first <= high))) sums[i] += amount;
        } else if (last > low && first < high) sums[i] += (amount * (Math.min(last, high) - Math.max(first, low))) / (last - first);
      }
    }
    return sums;
  }

  const perSecond = (sums, edges) => sums.map((sum, i) => sum / (edges[i + 1] - edges[i]));

  // When each request was due, asked to be sent, had its first token and its end: seconds after the start. Without a send
  // there is no first token; ``first`` is then its end.
  function momentsOf(table, row) {
    const at = table.column("at")[row], before = table.column("due")[row], gate = table.column("gate")[row];
    const ttft = table.column("ttft")[row], took = table.column("took")[row];
    const end = at + (known(took) ? took / 1e3 : 0), gateS = known(gate) ? gate / 1e3 : 0;
    const due = at - Math.max(known(before) ? before / 1e3 : 0, gateS);
    return { due, gate: at - gateS, sent: at, first: known(ttft) ? at + ttft / 1e3 : end, end };
  }

  const AFTER_FIRST = new Set(["decode", "delivery"]);

  // The parts of a request's time, one after the other: [{name, from, to}]; those after the first token begin with it.
  function partsOf(table, row) {
    const own = momentsOf(table, row), parts = [];
    let at = own.due, after = own.first;
    for (const [name, values] of Object.entries(table.parts)) {
      const length = (values[row] ?? 0) / 1e3;
      if (!(length > 0)) continue;
      const from = AFTER_FIRST.has(name) ? after : at;
      parts.push({ name, from, to: from + length });
      if (AFTER_FIRST.has(name)) after += length;
      else at += length;
    }
    if (parts.length) return parts;
    const stretches = [["late", own.due, own.gate], ["gate", own.gate, own.sent], ["server", own.sent, own.first], ["decode", own.first, own.end]];
    return stretches.map(([name, from, to]) => ({ name, from, to })).filter(({ from, to }) => to > from);
  }

  // The mean number of requests between each two edges: waiting at the gate, before their first token, decoding.
  function levelsOverTime(table, rows, edges) {
    const moments = rows.map((row) => [momentsOf(table, row), table.weight(row)]);
    const level = (from, to) => perSecond(spreadAmounts(moments.filter(([at]) => at[to] > at[from])
      .map(([at, weight]) => [at[from], at[to], weight * (at[to] - at[from])]), edges), edges);
    return { waiting: level("gate", "sent"), prefill: level("sent", "first"), decoding: level("first", "end") };
  }

  function ratesOverTime(table, rows, edges) {
    const weighted = (some, amount) => some.map((row) => [momentsOf(table, row), amount(row) * table.weight(row)]);
    const output = table.column("output"), ok = rows.filter(table.isOk), failed = rows.filter(table.isFailed);
    const ended = (some) => perSecond(spreadAmounts(weighted(some, () => 1).map(([at, n]) => [at.end, at.end, n]), edges), edges);
    const tokens = weighted(ok, (row) => output[row] ?? 0).map(([at, n]) => [at.first, at.end, n]);
    return { tokens: perSecond(spreadAmounts(tokens, edges), edges), finished: ended(ok), failed: ended(failed) };
  }

  const SPARK_BINS = 24, SPARK_WIDTH = 84, SPARK_HEIGHT = 24;

  // The points of a tile's line, as make_spark_points in report/render/tiles.py: ``valueOf`` some rows, in equal stretches
  // of their time.
  function sparkPoints(table, rows, valueOf) {
    const at = table.column("at"), times = rows.map((row) => at[row]);
    const low = times.reduce((a, b) => Math.min(a, b), Infinity), high = times.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!(high > low)) return "";
    const bins = Array.from({ length: SPARK_BINS }, () => []);
    for (const row of rows) bins[Math.min(Math.floor(((at[row] - low) / (high - low)) * SPARK_BINS), SPARK_BINS - 1)].push(row);
    const values = bins.map(valueOf), there = values.filter(known), most = Math.max(...there) || 1;
    if (there.length < 3) return "";
    const y = (value) => SPARK_HEIGHT - 1 - ((SPARK_HEIGHT - 2) * value) / most;
    const points = values.map((value, i) => (known(value) ? `${((i * SPARK_WIDTH) / (SPARK_BINS - 1)).toFixed(1)},${y(value).toFixed(1)}` : ""));
    return points.filter(Boolean).join(" ");
  }

  // -- by percentile -------------------------------------------------------------------------------------------------

  // (1 / (1 - p), the p-quantile) from the lowest value to the highest, as compute_spectrum of report/chart_data/distribution_charts.py.
  function spectrum(table, rows, column, points = 150) {
    const values = table.column(column), there = rows.filter((row) => known(values[row])), size = count(table, there);
    if (!size) return { x: [], y: [] };
    const end = Math.max(size, 2), steps = Array.from({ length: points }, (_, i) => end ** (i / (points - 1)));
    const x = [...new Set([...steps, 2, 10, 100])].sort((a, b) => a - b).filter((one) => one < end);
    const percentiles = percentilesOf(table, there, column), y = x.map((one) => percentiles((1 - 1 / one) * 100));
    return { x: [...x, end], y: [...y, there.reduce((most, row) => Math.max(most, values[row]), -Infinity)] };
  }

  // The requests that were in flight at the same time, those that overlapped longest first: [{row, overlap}] (s).
  function findNeighbours(table, row, most = 12) {
    const own = momentsOf(table, row);
    const near = allRows(table).filter((other) => other !== row).map((other) => {
      const at = momentsOf(table, other);
      const prefill = Math.min(at.first, own.first) - Math.max(at.sent, own.due);
      return { row: other, prefill, overlap: Math.min(at.end, own.end) - Math.max(at.sent, own.due) };
    }).filter(({ overlap }) => overlap > 0);
    const chosen = near.sort((a, b) => Math.max(b.prefill, 0) - Math.max(a.prefill, 0) || b.overlap - a.overlap).slice(0, most);
    return { shown: sortBy(chosen, ({ row: other }) => table.column("at")[other]), all: near.length };
  }

  return {
    ALL, FIGURES, readTable, allRows, count, percentile, percentileOf, meanOf, newView, chosenLabel, isFiltered, setFilter, filterRows, secondsOf,
    writeAddress, readAddress, summarise, summariseView, figuresOf, groupRows, sortBy, searchRows, toCsv, percentileLines, roundEdges,
    spreadAmounts, levelsOverTime, ratesOverTime, momentsOf, partsOf, sparkPoints, spectrum, findNeighbours,
  };
})();
