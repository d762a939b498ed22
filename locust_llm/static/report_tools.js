// What a reader does with the report as a whole: its figures as JSON, light or dark, and another report beside it.
"use strict";
const reportTools = (() => {
  const { make, button, ms, whole, percent } = requestView;
  const rate = (value) => (value === null || value === undefined ? "-" : chartFormat.brief(value, "", 3));

  // -- the figures of two reports (no document) --------------------------------------------------------------------------

  const COMPARED = [
    ["fromdue", "TTFT from due", [50, 95, 99]], ["ttft", "TTFT", [50, 95, 99]], ["itl", "ITL", [50, 95]], ["stall", "Longest stall", [90]],
    ["latency", "Latency", [50, 95]],
  ];
  // [{name, own, other, percent, write}]: what both have. ``percent``: how far the other is from this one.
  function compareFigures(own, other) {
    const rows = [];
    const compare = (name, write, valueOf) => {
      const [a, b] = [own, other].map(valueOf);
      if (a === null && b === null) return;
      rows.push({ name, write, own: a, other: b, percent: a > 0 && b !== null ? 100 * (b / a - 1) : null });
    };
    const sums = new Map([own, other].map((side) => [side, requestTable.summariseView(side.table, side.rows, side.view)]));
    for (const [column, name, percents] of COMPARED) {
      if (!own.table.has(column) || !other.table.has(column)) continue;
      for (const at of percents) compare(`${name} p${at}`, ms, (side) => sums.get(side).at(column, at));
    }
    compare("Output tokens per second", rate, (side) => sums.get(side).tokensPerS);
    compare("Requests per second", rate, (side) => sums.get(side).requestsPerS);
    compare("Failed", percent, (side) => sums.get(side).failed);
    compare("Requests", whole, (side) => sums.get(side).requests);
    return rows;
  }

  // The percentiles of both, laid over each other; null where one of them has none.
  function overlaySpectra(plot, column, name, own, other) {
    const series = [[own, "p50"], [other, "p95"]].map(([side, hue]) => {
      const ok = side.rows.filter(side.table.isOk);
      return { name: side.name, hue, ...requestTable.spectrum(side.table, ok, column) };
    });
    if (series.some(({ x }) => !x.length)) return null;
    const most = Math.max(10, ...series.flatMap(({ x }) => x.at(-1)));
    return {
      title: `${name}, by percentile`, low: true, x: { ...plot.x, high: most }, y: { unit: "ms", label: name, log: 0 },
      series, marks: [],
    };
  }

  // The data of another report, from its file. Throws an error of one sentence.
  function readReport(text) {
    const page = new DOMParser().parseFromString(text, "text/html");
    const read = (id) => JSON.parse(page.getElementById(id)?.textContent ?? "null");
    try {
      const [about, sample] = [read("about"), read("sample")];
      const table = requestTable.readTable(sample);
      return { name: about.name, about, table };
    } catch {
      throw new Error("This file is not a report of locust-llm with requests, or an older version wrote it.");
    }
  }

  // What the page shows, for a program.
  function describeView(about, table, page) {
    if (!table) return about;
    const { filters, from, to } = page.view;
    const labels = [...table.dimensions.keys()];
    return {
      ...about,
      chosen: { filters, from_s: from, to_s: to, sampled: table.sampled, ...requestTable.figuresOf(table, page.rows) },
      requests: page.rows.map((row) => ({
        id: table.ids[row],
        weight: table.weight(row),
        ...Object.fromEntries(table.columnNames.map((name) => [name, table.column(name)[row]])),
        ...Object.fromEntries(labels.map((key) => [`by_${key}`, table.label(key, row)])),
        ...(table.errors[row] ? { error: table.errors[row] } : {}),
      })),
    };
  }

  // -- the dialog ----------------------------------------------------------------------------------------------------------

  function makeComparison(about, table, page, described) {
    const title = make("h2", { id: "compare-title" }), body = make("div"), said = make("output", { class: "said" });
    const file = make("input", { type: "file", accept: ".html,text/html", id: "other-report", onchange: () => read() });
    const close = button("Close", () => dialog.close(), { class: "plain" });
    const choose = make("label", { class: "choose" }, "The report.html of another run: ", file);
    const dialog = make("dialog", { id: "comparison", class: "over", "aria-labelledby": "compare-title",
      onclick: (event) => event.target === dialog && dialog.close() },
    make("div", { class: "inside" }, make("div", { class: "toolbar" }, title, close), make("p", {}, choose, " ", said), body));
    title.textContent = "Compare with another report";
    document.body.append(dialog);
    let other = null;

    async function read() {
      const [chosen] = file.files;
      if (!chosen) return;
      said.textContent = "";
      try {
        other = readReport(await chosen.text());
        show();
      } catch (error) {
        other = null;
        body.replaceChildren();
        said.textContent = error.message;
      }
    }
    // The filters hold for both, where the other report has such values; a chosen time is of this run alone.
    function sidesOf() {
      const own = { name: about.name, table, rows: page.rows, view: page.view };
      const view = requestTable.readAddress(`#${requestTable.writeAddress({ ...requestTable.newView(), filters: page.view.filters })}`, other.table);
      const name = other.name === about.name ? `${other.name} (other)` : other.name;
      const rows = requestTable.filterRows(other.table, view);
      return [own, { name, table: other.table, rows, view }];
    }
    function show() {
      const [own, beside] = sidesOf();
      const lines = compareFigures(own, beside).map(({ name, write, own: a, other: b, percent: change }) => make("tr", {},
        make("th", { scope: "row" }, name), make("td", {}, a === null ? "-" : write(a)), make("td", {}, b === null ? "-" : write(b)),
        make("td", {}, change === null ? "-" : `${change >= 0 ? "+" : "\u2212"}${chartFormat.brief(Math.abs(change), "%", 3)}`)));
      const head = make("tr", {}, make("td"), ...[own.name, beside.name, "difference"].map((text) => make("th", { scope: "col" }, text)));
      const spectra = make("div", { class: "plots" });
      const isSampled = own.table.sampled || beside.table.sampled;
      body.replaceChildren(
        make("p", { class: "hint" }, `${own.name}: ${about.about}`, make("br"), `${beside.name}: ${other.about.about}`),
        make("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Both reports" },
          make("table", { class: "numbers" }, make("thead", {}, head), make("tbody", {}, ...lines))),
        make("p", { class: "hint" }, `${isSampled ? "Estimates from the samples in the pages. " : ""}A difference may be random. `
          + "To test it with intervals, use locust-llm compare with the folders of both runs."),
        spectra);
      drawSpectra(spectra, own, beside);
    }
    function drawSpectra(place, own, beside) {
      const plot = described.find(({ key }) => key?.startsWith("spectrum"));
      if (!plot) return;
      for (const [column, name] of [["ttft", "TTFT"], ["itl", "ITL"], ["latency", "Latency"]]) {
        const overlay = overlaySpectra(plot, column, name, own, beside);
        if (!overlay || (column === "latency" && own.table.has("ttft"))) continue;
        const box = make("div", { class: "canvas", role: "img", "aria-label": overlay.title });
        place.append(make("figure", { class: "plot" }, make("h3", {}, overlay.title), box));
        chartTools.attach(charts.draw(box, overlay));
      }
    }
    return { open: () => {
      if (other) show();
      dialog.showModal();
    } };
  }

  // -- the buttons ---------------------------------------------------------------------------------------------------------

  const fileName = (name) => `${name.replace(/[^\w.-]+/g, "-") || "report"}.json`;

  function add(place, { about, table, page, described }) {
    const theme = button("", () => {
      pageTheme.toggle();
      showTheme();
    }, { class: "plain" });
    const showTheme = () => { theme.textContent = pageTheme.findShown() === "dark" ? "Light" : "Dark"; };
    const save = button("JSON", () => chartTools.saveText(JSON.stringify(describeView(about, table, page), null, 1), fileName(about.name), "application/json"),
      { class: "plain", "aria-label": "JSON: save what the page shows" });
    showTheme();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
    place.append(save, theme);
    if (!table) return;
    const comparison = makeComparison(about, table, page, described);
    place.prepend(button("Compare\u2026", () => comparison.open(), { class: "plain" }));
  }

  return { add, compareFigures, overlaySpectra, describeView };
})();
