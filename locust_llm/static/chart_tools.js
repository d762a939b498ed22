// What a reader can do with charts: ask a point, click it, brush a range, walk with keys, save as PNG or CSV.
//
//   charts.draw(box, plot, options?)            -> Chart      (draw_chart.js; a second call replaces the first)
//     chart.update(plot), chart.setLog(on), chart.remove(), chart.on("cursor" | "draw" | "range", listener)
//   charts.group(name)                          -> ChartGroup of all plots with this ``group``
//     group.setRange([low, high] | null), group.setWindow([low, high] | null), group.onRange((range) => ...), group.range
//   chartTools.attach(chart, { tip, click })    tip, click and arrow keys for one chart
//     tip(point)    -> text, lines [text or [name, value], ...], or null for no tip; left out: describePoint(point)
//     click(point)  what a click or Enter on a point does; left out: opens the point's link, where it has one
//     point         { chart, series, index, x, y }
//   chartTools.addChip(place, group, write?)    a button "0:51 - 1:24 x" there while a range is chosen; it resets
//   chartTools.addButtons(figure, chart)        PNG, CSV and log y in the corner of a figure
//   chartTools.savePng(chart, name), chartTools.writeCsv(chart) -> text, chartTools.saveText(text, name)
//
// The report, with requests behind its dots and a filter behind its brush:
//
//   const run = charts.group("time");
//   for (const [i, box] of document.querySelectorAll(".canvas").entries()) {
//     const chart = charts.draw(box, plots[i], { xTicks: i === plots.length - 1 });
//     chartTools.attach(chart, {
//       tip: ({ series, index }) => [requests[series.rows[index]].id, ["TTFT", chartFormat.duration(ttft[index])]],
//       click: ({ series, index }) => openWaterfall(series.rows[index]),
//     });
//   }
//   chartTools.addChip(document.getElementById("filters"), run);
//   run.onRange((range) => filterRequests(range));   // [51.2, 84] in seconds, or null
"use strict";
const chartTools = (() => {
  const { isNumber } = chartFormat;
  const REACH = 24;                       // CSS pixels: a point farther away is not meant
  const CLICK_REACH = 12;
  const HIDE = -10;                       // a cursor outside of the plot

  // -- which point is meant (tested without a browser) -----------------------------------------------------------------------

  // The nearest of ``points`` ({left, top, ...} in pixels) within ``reach``; null: none.
  function findNearest(points, left, top, reach = REACH) {
    let nearest = null, least = reach * reach;
    for (const point of points) {
      const [dx, dy] = [point.left - left, point.top - top];
      const distance = dx * dx + dy * dy;
      if (distance > least) continue;
      [nearest, least] = [point, distance];
    }
    return nearest;
  }

  // From a point to its neighbour: along x in the same series; up and down to the same x of another series.
  function findNeighbour(points, from, key, step = 1) {
    if (!points.length) return null;
    const inOrder = (some) => [...some].sort((a, b) => a.x - b.x);
    if (!from) return inOrder(points.filter((point) => point.series === points[0].series))[0];
    const own = inOrder(points.filter((point) => point.series === from.series));
    const place = own.findIndex((point) => point.index === from.index);
    const last = own.length - 1;
    const places = { ArrowLeft: place - step, ArrowRight: place + step, Home: 0, End: last };
    if (key in places) return own[Math.min(Math.max(places[key], 0), last)];
    const all = [...new Set(points.map((point) => point.series))];
    const next = all[all.indexOf(from.series) + (key === "ArrowUp" ? -1 : 1)];
    if (!next) return from;
    const others = points.filter((point) => point.series === next);
    return others.reduce((best, point) => (Math.abs(point.x - from.x) < Math.abs(best.x - from.x) ? point : best));
  }

  // -- the points of a chart ---------------------------------------------------------------------------------------------------

  // Those in sight, with their place in CSS pixels from the plot's corner.
  function listPoints(chart) {
    const u = chart.uplot, points = [];
    for (const series of chart.heights()) {
      if (["strip", "band"].includes(charts.kindOf(series))) continue;
      const own = chart.plot.series.find((one) => one.name === series.name);
      series.x.forEach((x, index) => {
        if (!isNumber(x) || !isNumber(series.y[index]) || x < u.scales.x.min || x > u.scales.x.max) return;
        points.push({
          chart, series: own, index, x, y: own.y[index],
          left: u.valToPos(x, "x"), top: Math.min(Math.max(u.valToPos(series.y[index], "y"), 0), u.over.clientHeight),
        });
      });
    }
    return points;
  }

  // -- the tip -----------------------------------------------------------------------------------------------------------------

  let tip = null;   // one for the page
  function makeTip() {
    tip = document.createElement("div");
    tip.className = "chart-tip";
    tip.hidden = true;
    document.body.append(tip);
  }
  function describePoint({ chart, series, index, x, y }) {
    if (series.tips?.[index]) return series.tips[index];
    const name = chart.plot.x.unit === "s" ? "at" : chart.plot.x.label;
    return [[series.name, chart.writeY(y)], [name, chart.writeX(x)]];
  }
  const listLines = (told) => (Array.isArray(told) ? told : String(told).split("\n"));
  const writeLine = (line) => (Array.isArray(line) ? line.join(" ") : line);
  function makeLine(line) {
    const element = document.createElement("div");
    if (!Array.isArray(line)) {
      element.textContent = line;
      return element;
    }
    const [name, value] = [document.createElement("span"), document.createElement("b")];
    [name.textContent, value.textContent] = line;
    element.append(name, " ", value);
    return element;
  }
  // At the pointer; on the other side of it where there is no room.
  function showTip(told, chart, left, top) {
    if (!tip) makeTip();
    tip.replaceChildren(...listLines(told).map(makeLine));
    tip.hidden = false;
    const over = chart.uplot.over.getBoundingClientRect();
    const [x, y] = [over.left + left, over.top + top];
    const isRight = x + 14 + tip.offsetWidth > innerWidth - 8;
    const isLow = y + 14 + tip.offsetHeight > innerHeight - 8;
    const place = isRight ? Math.max(8, x - 14 - tip.offsetWidth) : x + 14;
    tip.style.left = `${scrollX + Math.min(place, innerWidth - 8 - tip.offsetWidth)}px`;
    tip.style.top = `${scrollY + (isLow ? y - 14 - tip.offsetHeight : y + 14)}px`;
  }
  function hideTip() {
    if (tip) tip.hidden = true;
  }

  // -- tip, click and keys of one chart ------------------------------------------------------------------------------------------

  const attached = new WeakMap();   // box -> its handlers: a chart drawn anew in it gets the new ones
  function attach(chart, handlers = {}) {
    const { box } = chart;
    const isNew = !attached.has(box);
    attached.set(box, { chart, tell: handlers.tip ?? describePoint, open: handlers.click ?? openLink });
    if (isNew) listen(box);
    if (box.getAttribute("role") === "img") box.setAttribute("aria-roledescription", "chart; arrow keys move from point to point");
    box.tabIndex = 0;
    return chart;
  }
  function openLink({ series, index }) {
    const link = series.links?.[index];
    if (link) location.assign(link);
  }
  const hasLink = ({ series, index }, { open }) => open !== openLink || Boolean(series.links?.[index]);

  function listen(box) {
    const spoken = document.createElement("output");
    spoken.className = "unseen";
    box.after(spoken);
    let chosen = null;

    function choose(point, isSpoken) {
      const { chart, tell } = attached.get(box);
      chosen = point;
      const told = point && tell(point);
      if (!told) {
        hideTip();
        chart.uplot.over.classList.remove("on-point");
        return;
      }
      showTip(told, chart, point.left, point.top);
      chart.uplot.over.classList.toggle("on-point", hasLink(point, attached.get(box)));
      if (isSpoken) spoken.textContent = listLines(told).map(writeLine).join(", ");
    }
    function findUnder(event, reach) {
      const { chart } = attached.get(box);
      const over = chart.uplot.over.getBoundingClientRect();
      return findNearest(listPoints(chart), event.clientX - over.left, event.clientY - over.top, reach);
    }
    const isOver = (event) => event.target === attached.get(box).chart.uplot.over;
    box.addEventListener("pointermove", (event) => {
      const isDragging = event.buttons > 0;
      choose(isOver(event) && !isDragging ? findUnder(event) : null);
    });
    box.addEventListener("pointerleave", () => choose(null));
    box.addEventListener("click", (event) => {
      const point = isOver(event) ? findUnder(event, CLICK_REACH) : null;
      if (!point) return;
      choose(point);   // a touch has no hover
      attached.get(box).open(point);
    });
    box.addEventListener("keydown", (event) => {
      const { chart, open } = attached.get(box);
      if (event.key === "Escape") {
        choose(null);
        chart.uplot.setCursor({ left: HIDE, top: HIDE }, true, true);
        chart.emit("range", null);
        return;
      }
      if (event.key === "Enter" && chosen) {
        event.preventDefault();   // else it presses the button that has the focus in what opens
        open(chosen);
        return;
      }
      if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
      event.preventDefault();
      const point = findNeighbour(listPoints(chart), chosen, event.key, event.shiftKey ? 10 : 1);
      if (!point) return;
      chart.uplot.setCursor({ left: point.left, top: point.top }, true, true);
      choose(point, true);
    });
    box.addEventListener("blur", () => {
      attached.get(box).chart.uplot.setCursor({ left: HIDE, top: HIDE }, true, true);
      choose(null);
    });
  }

  // -- the chosen range ------------------------------------------------------------------------------------------------------------

  function writeRange([low, high]) {
    return `${chartFormat.clock(low)} \u2013 ${chartFormat.clock(high)}`;
  }
  function addChip(place, group, write = writeRange) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.className = "chip";
    chip.hidden = true;
    chip.addEventListener("click", () => group.setRange(null));
    const show = (range) => {
      chip.hidden = !range;
      if (!range) return;
      chip.textContent = `${write(range)} \u00d7`;
      chip.setAttribute("aria-label", `Only ${write(range)}: show all`);
    };
    group.onRange(show);
    show(group.range);
    place.append(chip);
    return chip;
  }

  // -- PNG and CSV -------------------------------------------------------------------------------------------------------------------

  const quote = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const withUnit = (name, unit) => (unit ? `${name} (${unit})` : name);

  // A row for each x, a column for each series.
  function tabulate(chart) {
    const { plot } = chart;
    const rows = new Map();
    plot.series.forEach((series, column) => series.x.forEach((x, i) => {
      if (!rows.has(x)) rows.set(x, plot.series.map(() => null));
      rows.get(x)[column] = series.y[i] ?? null;
    }));
    const head = [withUnit(plot.x.label || "x", plot.x.unit), ...plot.series.map((one) => withUnit(one.name, chart.unitOf(one)))];
    return [head, ...[...rows].sort(([a], [b]) => a - b).map(([x, values]) => [x, ...values])];
  }
  function writeCsv(chart) {
    return tabulate(chart).map((row) => row.map((cell) => (cell === null ? "" : quote(String(cell)))).join(",")).join("\n") + "\n";
  }

  function save(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }
  const saveText = (text, name, type = "text/csv") => save(new Blob([text], { type }), name);
  const fileName = (chart, ending) => `${chart.plot.title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${ending}`;

  // The chart with its title and its legend, on the page's background.
  function savePng(chart, name = fileName(chart, "png")) {
    const from = chart.uplot.ctx.canvas, ratio = uPlot.pxRatio, row = 22 * ratio;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [from.width, from.height + 2 * row + 8 * ratio];
    const ctx = canvas.getContext("2d");
    ctx.fillStyle = chartShapes.css("back");
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.drawImage(from, 0, row);
    ctx.textBaseline = "middle";
    ctx.fillStyle = chartShapes.css("ink");
    ctx.font = chartShapes.fontOf(ratio * 1.15, 600);
    ctx.fillText(chart.plot.title, 8 * ratio, row / 2);
    ctx.font = chartShapes.fontOf(ratio);
    let left = 8 * ratio;
    for (const series of chart.shownSeries) {
      const middle = from.height + row * 1.5;
      ctx.fillStyle = chartShapes.css(series.hue);
      ctx.fillRect(left, middle - 4 * ratio, 18 * ratio, 8 * ratio);
      ctx.fillStyle = chartShapes.css("ink");
      ctx.fillText(series.name, left + 23 * ratio, middle);
      left += ctx.measureText(series.name).width + 40 * ratio;
    }
    return new Promise((done) => {
      canvas.toBlob((blob) => {
        save(blob, name);
        done(blob);
      });
    });
  }

  function addButtons(figure, chart) {
    const bar = document.createElement("div");
    bar.className = "chart-buttons";
    const add = (text, label, press) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = text;
      button.setAttribute("aria-label", `${label}: ${chart.plot.title}`);
      button.addEventListener("click", () => press(button));
      bar.append(button);
      return button;
    };
    const scale = add("log", "Logarithmic scale", (button) => {
      const isLog = !chart.yAxis.log;
      chart.setLog(isLog);
      button.setAttribute("aria-pressed", String(isLog));
    });
    scale.setAttribute("aria-pressed", String(Boolean(chart.yAxis.log)));
    add("PNG", "Save as an image", () => savePng(chart));
    add("CSV", "Save the values", () => saveText(writeCsv(chart), fileName(chart, "csv")));
    figure.append(bar);
    return bar;
  }

  return {
    attach, describePoint, addChip, addButtons, savePng, saveText, writeCsv, listPoints,
    findNearest, findNeighbour, tabulate,
  };
})();
