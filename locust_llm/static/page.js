// The report page: its plots, the requests that a reader chooses, the list of contents, and what is folded away.
"use strict";
{
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const described = read("plots"), sample = read("sample"), figures = read("figures"), about = read("about");
  const table = sample && requestTable.readTable(sample);
  const boxes = [...document.querySelectorAll(".canvas:not(.lines)")];
  const captions = boxes.map((box) => box.closest("figure").querySelector("figcaption"));
  const run = charts.group("time");
  const newView = () => (table ? requestTable.readAddress(location.hash, table) : requestTable.newView());

  // What the parts of the page share: the view, the rows that it has, and the time over which rates are.
  const page = { view: newView(), rows: [], seconds: null, parts: [], change, open, close };

  function choosePlots() {
    return described.map((plot) => requestPlots.choose(plot, table, page.view));
  }
  function readView() {
    if (!table) return;
    page.rows = requestTable.filterRows(table, page.view);
    document.body.classList.toggle("filtered", requestTable.isFiltered(page.view));
    page.seconds = requestTable.secondsOf(table, page.view);
  }
  // ``only``: what was changed has no effect on charts.
  function change(view, only = "") {
    page.view = view;
    history.replaceState(null, "", `#${requestTable.writeAddress(view)}`);
    readView();
    if (only !== "search") {
      run.setRange(view.from === null ? null : [view.from, view.to]);
      choosePlots().forEach((plot, i) => {
        charts.of(boxes[i]).update(plot);
        captions[i].textContent = plot.caption;
      });
    }
    page.parts.forEach((part) => part?.show());
    markTerms();
  }
  const markTerms = () => termTips.mark(document.querySelector("main"), about.terms);
  function open(row) {
    page.waterfall.show(row);
    page.view = { ...page.view, request: table.ids[row] };
    history.replaceState(null, "", `#${requestTable.writeAddress(page.view)}`);
  }
  function close() {
    page.view = { ...page.view, request: "" };
    history.replaceState(null, "", `#${requestTable.writeAddress(page.view)}`);
  }

  // -- the plots -----------------------------------------------------------------------------------------------------

  // Charts of a column have one axis: its texts are under the last, those of its marks above the first. A
  // legend is beside the title.
  function optionsOf(box, plot) {
    const figure = box.closest("figure");
    if (!box.closest(".column")) return {};
    const head = figure.querySelector("h3"), legend = document.createElement("div");
    legend.className = "head";
    head.replaceWith(legend);
    legend.append(head);
    return {
      legend, height: plot.low ? 130 : 200, xTicks: !figure.nextElementSibling, markTexts: !figure.previousElementSibling,
    };
  }
  function drawPlots() {
    readView();
    if (page.view.from !== null) run.setRange([page.view.from, page.view.to]);
    choosePlots().forEach((plot, i) => {
      const chart = charts.draw(boxes[i], plot, optionsOf(boxes[i], plot));
      chartTools.attach(chart, {
        tip: (point) => (point.series.rows ? requestView.tipOf(table, point.series.rows[point.index]) : chartTools.describePoint(point)),
        click: ({ series, index }) => series.rows && open(series.rows[index]),
      });
      chartTools.addButtons(boxes[i].closest("figure"), chart);
      boxes[i].closest("figure").classList.toggle("fixed", !plot.key && plot.group !== "time");
      captions[i].textContent = plot.caption;
    });
    document.querySelectorAll(".lines").forEach(drawTimeline);
    document.querySelectorAll(".owner .bar").forEach(labelParts);
  }
  drawPlots();

  if (table) {
    const filters = requestView.makeFilters(table, page), place = document.getElementById("view");
    const groups = document.getElementById("groups"), requests = document.getElementById("requests");
    place.append(filters.element);
    place.hidden = false;
    page.parts = [filters, requestView.makeTiles(table, page, figures), groups && requestView.makeGroups(table, page, groups),
      requests && requestView.makeRequests(table, page, requests)];
    page.waterfall = requestView.makeWaterfall(table, page);
    for (const section of document.querySelectorAll(".made")) section.hidden = !section.querySelector("table, div > div");
    page.parts.forEach((part) => part?.show());
    run.onRange((range) => {
      const isSame = range ? page.view.from === range[0] && page.view.to === range[1] : page.view.from === null;
      const [from, to] = range ? range.map((at) => Math.round(at * 1000) / 1000) : [null, null];
      if (!isSame && !(range && page.view.from === from && page.view.to === to)) change({ ...page.view, from, to });
    });
    if (page.view.request) open(table.ids.indexOf(page.view.request));
  }

  reportTools.add(document.getElementById("tools"), { about, table, page, described });
  markTerms();
  termTips.listen();

  // -- contents and folds --------------------------------------------------------------------------------------------

  const wide = matchMedia("(min-width: 75rem)"), contents = document.getElementById("contents");
  for (const link of contents.querySelectorAll("a")) link.parentElement.hidden = document.querySelector(link.hash).hidden;
  const fit = () => { contents.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();

  // A section that one goes to is unfolded.
  const unfold = (hash) => {
    const folded = /^#s-/.test(hash) && document.getElementById(hash.slice(1))?.querySelector("details");
    if (folded) folded.open = true;
  };
  contents.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    unfold(link.hash);
    fit();
    if (!table || !requestTable.isFiltered(page.view)) return;
    event.preventDefault();            // the address keeps the view
    document.querySelector(link.hash).scrollIntoView();
  });
  addEventListener("hashchange", () => {
    if (/^#s-/.test(location.hash)) unfold(location.hash);
    else if (table) change(newView());
  });
  unfold(location.hash);

  // On paper are the main sections, with their tables, and what is folded away stays so but for the conditions.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("#s-conditions details:not([open])")];
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => opened.splice(0).forEach((details) => { details.open = false; }));
}
