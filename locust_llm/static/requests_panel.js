// What a reader sees of the requests of a report: filters, tiles, the table by a dimension, the table of requests, and the
// waterfall of one request. The figures are computed by requests.js, the charts by request_plots.js.
"use strict";
const requestView = (() => {
  const ALL = requestTable.ALL, SHOWN = 15;
  const ms = (value) => (value === null || value === undefined ? "-" : chartFormat.duration(value / 1e3));
  const whole = (value) => (value === null || value === undefined ? "-" : chartFormat.brief(Math.round(value), "", 15));
  const percent = (value) => (value === null || value === undefined ? "-" : chartFormat.brief(value, "%", 3));

  // An element with its attributes and children; a function is a listener: {onclick}.
  function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(key.slice(2), value);
      else if (value !== false && value !== null) element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children);
    return element;
  }
  const button = (text, onclick, more = {}) => make("button", { type: "button", onclick, ...more }, text);

  // To the clipboard; where that is not allowed, to a file.
  async function offerCsv(text, name, said) {
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "Copied.";
    } catch {
      chartTools.saveText(text, name);
      said.textContent = `Saved as ${name}.`;
    }
    setTimeout(() => { said.textContent = ""; }, 4000);
  }

  // -- filters -------------------------------------------------------------------------------------------------------

  function makeFilters(table, page) {
    const selects = new Map(), found = make("output", { class: "found" });
    for (const { key, title, labels } of table.dimensions.values()) {
      if (labels.length < 2) continue;
      const options = [ALL, ...labels].map((label) => make("option", { value: label }, label === ALL ? "all" : label));
      const select = make("select", {
        "aria-label": title, onchange: () => page.change(requestTable.setFilter(table, page.view, key, select.value)),
      }, ...options);
      const clear = button("\u00d7", () => {
        page.change(requestTable.setFilter(table, page.view, key, startOf(key)));
        select.focus();
      }, { class: "clear", "aria-label": `Reset ${title}` });
      selects.set(key, { select, clear, label: make("label", { class: "filter" }, make("span", {}, title), select) });
    }
    const startOf = (key) => requestTable.chosenLabel(table, requestTable.newView(), key);
    // The time without a pointer: seconds of its begin and end.
    const [low, high] = table.span.map((at) => Math.round(at * 10) / 10);
    const ends = ["from", "to"].map((end) => make("input", { type: "number", step: "any", min: low, max: high, placeholder: end === "from" ? low : high,
      "aria-label": `Time ${end}, seconds`, onchange: () => readTime() }));
    function readTime() {
      const [from, to] = ends.map((input, i) => (input.value === "" ? [low, high][i] : Number(input.value)));
      const isAll = ends.every((input) => input.value === "");
      if (isAll || from < to) page.change({ ...page.view, from: isAll ? null : from, to: isAll ? null : to });
    }
    const clearTime = button("\u00d7", () => page.change({ ...page.view, from: null, to: null }), { class: "clear", "aria-label": "Reset time" });
    const time = make("span", { class: "filter time" }, make("span", {}, "Time"), ends[0], "\u2013", ends[1], "s", clearTime);
    const reset = button("Reset all", () => page.change(requestTable.newView()), { class: "plain" });
    const said = make("output", { class: "said" });
    const link = button("Copy link", () => offerCsv(location.href, "link.txt", said), { class: "plain" });
    const each = [...selects.values()].map(({ label, clear }) => make("span", { class: "one" }, label, clear));
    const element = make("div", { class: "filters", role: "group", "aria-label": "Choose requests" }, ...each, time, reset, link, said, found);

    function show() {
      for (const [key, { select, clear, label }] of selects) {
        const isChosen = key in page.view.filters;
        select.value = requestTable.chosenLabel(table, page.view, key);
        label.classList.toggle("chosen", isChosen);
        clear.hidden = !isChosen;
      }
      const isFiltered = requestTable.isFiltered(page.view), count = requestTable.count(table, page.rows);
      ends.forEach((input, i) => { input.value = [page.view.from, page.view.to][i] ?? ""; });
      time.classList.toggle("chosen", page.view.from !== null);
      clearTime.hidden = page.view.from === null;
      reset.hidden = !isFiltered;
      const about = table.sampled && isFiltered ? "about " : "";
      const rules = document.querySelector(".rules") ? "; rules are of the whole run" : "";
      found.textContent = `${about}${whole(count)} of ${whole(table.total)} requests${isFiltered ? rules : "; drag across a chart to choose a time"}`;
    }
    return { element, show };
  }

  const SVG = "http://www.w3.org/2000/svg";
  function makeSvg(name, attributes, ...children) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  // -- tiles ---------------------------------------------------------------------------------------------------------

  const drawSpark = (points) => makeSvg("svg", { class: "spark", viewBox: "0 0 84 24", preserveAspectRatio: "none", "aria-hidden": "true" },
    makeSvg("polyline", { points }));

  function makeTiles(table, page, figures) {
    const list = document.getElementById("tiles"), own = [...list.children];

    function tileOf(figure, sums) {
      const [value, more] = valueOf(figure, sums);
      const line = requestTable.sparkPoints(table, page.rows, (rows) => sparkValue(figure, rows));
      return make("li", {}, make("span", {}, figure.name), make("strong", {}, value), ...(line ? [drawSpark(line)] : []), make("small", {}, more));
    }
    function sparkValue({ column, percent: at, figure }, rows) {
      const sums = requestTable.summarise(table, rows, 1);
      if (column) return sums.at(column, at);
      return figure === "failed" ? sums.failures : sums[figure];
    }
    function valueOf({ column, percent: at, figure }, sums) {
      if (column) {
        const others = [50, 95, 99].filter((p) => p !== at).map((p) => `p${p} ${ms(sums.at(column, p))}`);
        const answered = sums.failures && sums.succeeded ? "of the answered; " : "";
        return [ms(sums.at(column, at)), `${answered}${others.join(", ")}`];
      }
      if (figure === "failed") return [percent(sums.failed), `${whole(sums.failures)} of ${whole(sums.succeeded + sums.failures)}`];
      const over = page.seconds ? `per second over ${chartFormat.duration(page.seconds)}` : "per second";
      return [sums[figure] === null ? "-" : chartFormat.brief(sums[figure], "", 3), over];
    }
    function show() {
      if (!requestTable.isFiltered(page.view) || !figures.length) return list.replaceChildren(...own);
      const sums = requestTable.summariseView(table, page.rows, page.view);
      return list.replaceChildren(...figures.map((figure) => tileOf(figure, sums)));
    }
    return { show };
  }

  // -- tables --------------------------------------------------------------------------------------------------------

  // A head that sorts: columns are [{key, title, write, value}]. ``sort`` is a key, with "-" before it for the highest first.
  function makeHead(columns, sort, onsort) {
    const cells = columns.map(({ key, title }) => {
      const isChosen = sort.replace(/^-/, "") === key, isFalling = sort.startsWith("-");
      const order = isFalling ? "descending" : "ascending";
      const mark = make("span", { "aria-hidden": "true" }, isFalling ? " \u25be" : " \u25b4");
      return make("th", { scope: "col", "aria-sort": isChosen && order },
        button(title, () => onsort(isChosen && isFalling ? key : `-${key}`), { class: "sort" }, ), ...(isChosen ? [mark] : []));
    });
    return make("thead", {}, make("tr", {}, ...cells));
  }
  const frame = (label, table) => make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, table);

  const GROUP_COLUMNS = [
    ["requests", "requests", whole], ["failed", "failed", percent], ["ttft50", "TTFT p50", ms], ["ttft95", "p95", ms, "TTFT p95"],
    ["ttft99", "p99", ms, "TTFT p99"], ["itl50", "ITL p50", ms], ["itl95", "p95", ms, "ITL p95"],
    ["stall90", "stall p90", ms], ["latency50", "latency p50", ms], ["latency95", "p95", ms, "latency p95"], ["wait95", "gate p95", ms],
    ["input", "input tokens", whole], ["cached", "cached", percent],
  ].map(([key, title, write, full]) => ({ key, title, write, full: full ?? title }));
  const BARRED = new Set(["ttft95", "itl95", "latency95"]);  // the columns with a bar in each cell

  function makeGroups(table, page, place) {
    const keys = [...table.dimensions.values()].filter(({ labels }) => labels.length > 1).map(({ key }) => key);
    if (!keys.length) return null;
    const preferred = ["limit", "rate", ...keys.filter((key) => !["phase", "outcome"].includes(key)), ...keys];
    const first = preferred.find((key) => keys.includes(key));   // what a ramp changes is what it is about
    const select = make("select", { onchange: () => page.change({ ...page.view, by: select.value, bysort: "" }) },
      ...keys.map((key) => make("option", { value: key }, table.dimensions.get(key).title)));
    const said = make("output", { class: "said" });
    const box = make("div");
    const copy = button("Copy CSV", () => offerCsv(csv(), "groups.csv", said), { class: "plain" });
    place.append(make("div", { class: "toolbar" }, make("label", {}, "By ", select), copy, said,
      make("span", { class: "hint" }, "Click a row to filter by it.")), box);
    let shown = { columns: [], groups: [], key: first };

    function csv() {
      const head = [table.dimensions.get(shown.key).title, ...shown.columns.map(({ full, write }) => (write === ms ? `${full} (ms)` : full))];
      return requestTable.toCsv(head, shown.groups.map(({ label, figures }) => [label, ...shown.columns.map(({ key }) => figures[key])]));
    }
    function show() {
      const key = page.view.by || first, { title } = table.dimensions.get(key), sort = page.view.bysort;
      let groups = requestTable.groupRows(table, page.view, key);
      const columns = GROUP_COLUMNS.filter(({ key: name }) => groups.some(({ figures }) => figures[name] !== null))
        .filter(({ key: name }) => !(name.startsWith("latency") && table.has("ttft")));
      const by = sort.replace(/^-/, ""), descending = sort.startsWith("-");
      if (by) groups = requestTable.sortBy(groups, ({ label, figures }) => (by === "label" ? label : figures[by]), descending);
      shown = { columns, groups, key };
      select.value = key;
      const chosen = requestTable.chosenLabel(table, page.view, key);
      const most = Object.fromEntries(columns.map(({ key: name }) => [name, Math.max(...groups.map(({ figures }) => figures[name] ?? 0))]));
      const rows = groups.map(({ label, figures }) => {
        const isChosen = label === chosen;
        const pick = () => page.change(requestTable.setFilter(table, page.view, key, isChosen ? ALL : label));
        const cells = columns.map(({ key: name, write }) => barred(make("td", {}, write(figures[name])), name, figures[name], most[name]));
        const name = make("th", { scope: "row" }, button(label, pick, { class: "pick", "aria-pressed": String(isChosen) }));
        return make("tr", { class: isChosen && "chosen", onclick: (event) => event.target.closest("button") || pick() }, name, ...cells);
      });
      const head = makeHead([{ key: "label", title }, ...columns], sort, (next) => page.change({ ...page.view, bysort: next }));
      box.replaceChildren(frame(`Requests by ${title}`, make("table", { class: "numbers picks" }, head, make("tbody", {}, ...rows))));
    }
    return { show };
  }
  function barred(cell, name, value, most) {
    if (BARRED.has(name) && value && most) {
      cell.style.background = `linear-gradient(to left, var(--bar) ${(100 * value) / most}%, transparent 0)`;
    }
    return cell;
  }

  function requestColumns(table) {
    const number = (key, title, write) => ({ key, title, write, value: (row) => table.column(key)[row] });
    const clock = (value) => chartFormat.clock(value, 1);
    const columns = [
      { key: "id", title: "request", write: String, value: (row) => table.ids[row] }, number("at", "sent at", clock),
      number("ttft", "TTFT", ms), number("fromdue", "from due", ms), number("itl", "ITL", ms), number("stall", "stall", ms),
      number("gate", "gate", ms), number("latency", "latency", ms), number("input", "input", whole), number("output", "output", whole),
      number("cached", "cached", whole),
    ].filter(({ key }) => key === "id" || table.has(key));
    const texts = [...table.dimensions.values()].filter(({ key, labels }) => labels.length > 1 && !["input", "limit", "rate"].includes(key))
      .map(({ key, title }) => ({ key: `by-${key}`, title: title.toLowerCase(), write: String, value: (row) => table.label(key, row) }));
    const errors = Object.keys(table.errors).length ? [{ key: "error", title: "error", write: String, value: (row) => table.errors[row] ?? "" }] : [];
    return [...columns, ...texts, ...errors];
  }

  function makeRequests(table, page, place) {
    const columns = requestColumns(table), said = make("output", { class: "said" }), box = make("div"), rest = make("p");
    const search = make("input", { type: "search", placeholder: "id, name, error", oninput: () => page.change({ ...page.view, search: search.value }, "search") });
    const copy = button("Copy CSV", () => offerCsv(requestTable.toCsv(columns.map(({ title, write }) => (write === ms ? `${title} (ms)` : title)),
      found().map((row) => columns.map(({ value }) => value(row)))), "requests.csv", said), { class: "plain" });
    place.append(make("div", { class: "toolbar" }, make("label", {}, "Search ", search), copy, said), box, rest);
    let most = SHOWN;

    function found() {
      const sort = page.view.sort || "-" + (table.has("ttft") ? "ttft" : "latency"), by = sort.replace(/^-/, "");
      const column = columns.find(({ key }) => key === by) ?? columns[0];
      return requestTable.sortBy(requestTable.searchRows(table, page.rows, page.view.search), column.value, sort.startsWith("-"));
    }
    function show() {
      const rows = found(), shown = rows.slice(0, most);
      if (document.activeElement !== search) search.value = page.view.search;
      const lines = shown.map((row) => make("tr", { onclick: () => page.open(row) },
        make("th", { scope: "row" }, button(table.ids[row], () => page.open(row), { class: "pick" })),
        ...columns.slice(1).map(({ write, value }) => make("td", {}, value(row) === null ? "-" : write(value(row))))));
      const sort = page.view.sort || "-" + (table.has("ttft") ? "ttft" : "latency");
      const head = makeHead(columns, sort, (next) => page.change({ ...page.view, sort: next }));
      box.replaceChildren(frame("Requests", make("table", { class: "numbers picks requests" }, head, make("tbody", {}, ...lines))));
      const more = rows.length > shown.length ? [" ", button(`Show ${Math.min(200, rows.length - shown.length)} more`, () => {
        most += 200;
        show();
      }, { class: "plain" })] : [];
      rest.replaceChildren(`${whole(shown.length)} of ${whole(rows.length)} rows.`, ...more);
    }
    return { show, forget: () => { most = SHOWN; } };
  }

  // -- the waterfall of a request ------------------------------------------------------------------------------------

  const ESTIMATED = new Set(["client", "unattributed", "with_decode"]);   // as in report/sections/latency_breakdown_display.py
  const classOf = (name) => `part ${name}${ESTIMATED.has(name) ? " estimated" : ""}`;
  function bar(parts, low, high) {
    const place = (at) => (1000 * (Math.min(Math.max(at, low), high) - low)) / (high - low || 1);
    const drawn = parts.filter(([, from, to]) => to > from && to > low && from < high);
    const rects = drawn.flatMap(([name, from, to]) => {
      const where = { x: place(from).toFixed(2), width: Math.max(place(to) - place(from), 1.5).toFixed(2), height: 10 };
      const hatched = ESTIMATED.has(name) ? [makeSvg("rect", { ...where, fill: "url(#hatch)" })] : [];
      return [makeSvg("rect", { ...where, class: classOf(name) }), ...hatched];
    });
    return makeSvg("svg", { class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true" }, ...rects);
  }
  const WORDS = { late: "late start", gate: "waiting for a prefill slot", server: "to the first token", decode: "decoding" };
  const line = (name, shown, took) => make("div", { class: "owner" }, make("span", {}, ...name), shown, make("b", {}, took));

  function makeWaterfall(table, page) {
    const title = make("h2", { id: "waterfall-title" }), body = make("div");
    const close = button("Close", () => dialog.close(), { class: "plain" });
    const dialog = make("dialog", { id: "waterfall", class: "over", "aria-labelledby": "waterfall-title", onclose: () => page.close(),
      onclick: (event) => event.target === dialog && dialog.close() }, make("div", { class: "inside" }, make("div", { class: "toolbar" }, title, close), body));
    document.body.append(dialog);

    function tokens(row) {
      const input = table.column("input")[row];
      return input === null ? "" : `${whole(input)} tokens`;
    }
    function facts(row) {
      const figures = requestColumns(table).filter(({ key }) => key !== "id").map(({ title: name, write, value }) => [name, value(row), write])
        .filter(([, value]) => value !== null && value !== "");
      return make("dl", {}, ...figures.map(([name, value, write]) => make("div", {}, make("dt", {}, name), make("dd", {}, write(value)))));
    }
    function show(row) {
      const own = requestTable.momentsOf(table, row), parts = requestTable.partsOf(table, row);
      const { shown, all } = requestTable.findNeighbours(table, row);
      const keys = parts.map(({ name, from, to }) => make("span", { class: "key" }, make("i", { class: classOf(name) }), table.partNames[name] ?? WORDS[name],
        make("small", {}, chartFormat.duration(to - from))));
      const before = shown.filter(({ prefill }) => prefill > 0).length;
      const others = shown.map(({ row: other }) => {
        const at = requestTable.momentsOf(table, other);
        const name = [button(table.ids[other], () => page.open(other), { class: "pick" }), " ", make("small", {}, tokens(other))];
        return line(name, bar([["overlapping", at.sent, at.first], ["decode", at.first, at.end]], own.due, own.end), chartFormat.duration(at.end - at.sent));
      });
      title.textContent = `Request ${table.ids[row]}`;
      body.replaceChildren(facts(row), make("div", { class: "keys" }, ...keys),
        line([make("strong", {}, "this request")], bar(parts.map(({ name, from, to }) => [name, from, to]), own.due, own.end), chartFormat.duration(own.end - own.due)),
        make("p", { class: "hint" }, shown.length
          ? `In flight at the same time, on the same axis (red: before its first token): ${shown.length} of ${all}${table.sampled ? " in the sample" : ""}, ${before} of them before a first token while this one waited.`
          : "No other request was in flight at the same time."),
        ...others,
        make("p", { class: "hint axis" }, make("span", {}, chartFormat.clock(own.due, 2)), make("span", {}, chartFormat.clock(own.end, 2))));
      if (!dialog.open) dialog.showModal();
    }
    return { show };
  }

  // -- the tip of a dot ----------------------------------------------------------------------------------------------

  function tipOf(table, row) {
    const figure = (key, name, write = ms) => (table.has(key) && table.column(key)[row] !== null ? [[name, write(table.column(key)[row])]] : []);
    return [`${table.ids[row]}, sent at ${chartFormat.clock(table.column("at")[row], 1)}`, ...figure("ttft", "TTFT"), ...figure("itl", "ITL"),
      ...figure("stall", "stall"), ...figure("gate", "gate"), ...figure("input", "input", whole), ...figure("output", "output", whole),
      ...(table.dimensions.has("turn") ? [["turn", table.label("turn", row)]] : []), "click: its waterfall and its neighbours"];
  }

  return { make, button, ms, whole, percent, makeFilters, makeTiles, makeGroups, makeRequests, makeWaterfall, tipOf };
})();
