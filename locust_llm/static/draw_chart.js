// Draws the plots that report/chart_data/plot_data.py describes, on every page: lines and axes by uPlot, the rest by
// chart_shapes.js. What a reader can do with a chart (tip, click, brush, keys, PNG, CSV) is in chart_tools.js.
"use strict";
const charts = (() => {
  const { isNumber } = chartFormat;
  const { css, letters, rowHeight, fontOf, mixed, narrow, FEW_DOTS, FILLS, STRIP_HEIGHT } = chartShapes;
  const PAPER_WIDTH = 680, PAPER_HEIGHT = 180;   // a plot on paper, CSS pixels: three to a page
  const rightRoom = () => Math.round(1.7 * letters());   // CSS pixels beside the plot: half of the text of a tick at its end
  const LEAST_BRUSH = 12;                        // CSS pixels: a finger that moves less has tapped
  const LINES = ["line", "fill", "steps", "area", "stack"];
  const JOINED = ["line", "fill"];   // readings that a straight line joins
  // The lines of a plot differ in their strokes too, not in colour only.
  const DASHES = [undefined, [2, 3], [9, 3, 2, 3], [13, 4]];

  const kindOf = (series) => series.kind || "line";
  const isLine = (series) => LINES.includes(kindOf(series));
  const countDots = (plot) => plot.series.reduce((sum, { kind, x }) => sum + (kind === "dots" ? x.length : 0), 0);
  const isUnder = (series, plot) => series.kind === "band" || (series.kind === "dots" && countDots(plot) > FEW_DOTS);
  const isFilled = (series) => ["fill", "area", "stack"].includes(kindOf(series));

  // -- groups: charts that share their x axis, their crosshair and what is zoomed -------------------------------------------

  const groups = new Map();
  class ChartGroup {
    constructor(name) {
      this.name = name;
      this.charts = new Set();
      this.range = null;     // [low, high] that a reader chose, or null
      this.window = null;    // [low, high] that is shown where nothing is chosen; null: all
      this.listeners = [];
    }
    get shown() {
      return this.range ?? this.window;
    }
    // Calls ``listener`` with [low, high], or with null when nothing is chosen any more.
    onRange(listener) {
      this.listeners.push(listener);
    }
    setRange(range) {
      if (String(range) === String(this.range)) return;
      this.range = range;
      for (const chart of this.charts) chart.fit();
      for (const listener of this.listeners) listener(range);
    }
    setWindow(window) {
      this.window = window;
      for (const chart of this.charts) chart.fit();
    }
  }
  function groupOf(name) {
    if (!name) return new ChartGroup("");
    if (!groups.has(name)) groups.set(name, new ChartGroup(name));
    return groups.get(name);
  }

  // -- one chart -----------------------------------------------------------------------------------------------------------

  class Chart {
    // ``options``: see ``draw``.
    constructor(box, plot, options) {
      [this.box, this.plot, this.options] = [box, plot, options];
      this.hidden = new Set();   // names of series that a reader has hidden
      this.log = null;           // true or false where a reader has chosen, else as the plot has it
      this.group = groupOf(plot.group);
      this.group.charts.add(this);
      this.listeners = { cursor: [], draw: [], range: [] };
      this.legend = options.legend === false ? null : makeLegend(this);
      if (options.legend instanceof Element) options.legend.append(this.legend.element);
      else if (this.legend) box.after(this.legend.element);
      this.build();
      this.width = box.clientWidth;
      this.sizes = new ResizeObserver(() => this.followWidth());
      this.sizes.observe(box);
      this.fingers = new AbortController();
      this.listenToFingers();
    }
    // "cursor": the pointer or a key has moved; "draw": it was drawn anew; "range": [low, high] was brushed, or null.
    on(event, listener) {
      this.listeners[event].push(listener);
      return this;
    }
    emit(event, ...what) {
      for (const listener of this.listeners[event]) listener(this, ...what);
    }
    get shownSeries() {
      return this.plot.series.filter((series) => !this.hidden.has(series.name));
    }
    get lines() {
      const lines = this.plot.series.filter(isLine);
      const stacked = lines.filter((series) => kindOf(series) === "stack");
      return [...stacked.reverse(), ...lines.filter((series) => kindOf(series) !== "stack")];   // the highest sum lies under all
    }
    get yAxis() {
      if (this.log === null) return this.plot.y;
      return { ...this.plot.y, log: this.log ? 10 : 0, low: this.log ? null : this.plot.y.low };
    }
    get xRange() {
      return this.group.shown ?? chartScale.findXRange(this.plot.x, this.plot.series);
    }
    get yRange() {
      const heights = this.heights().filter((series) => kindOf(series) !== "strip");
      const limits = (this.plot.marks ?? []).map((mark) => mark.y).filter(isNumber);
      return chartScale.findYRange(this.yAxis, heights, limits, this.group.shown);
    }
    // The shown series with the heights at which they are drawn: stacked ones on top of each other.
    heights() {
      const stacked = this.shownSeries.filter((series) => kindOf(series) === "stack");
      const sums = chartScale.stack(stacked.map((series) => series.y));
      return this.shownSeries.map((series) => {
        const place = stacked.indexOf(series);
        return place < 0 ? series : { ...series, y: sums[place] };
      });
    }

    // What is drawn changes: new values of the same series, as on the live page, or another plot.
    update(plot) {
      const sameSeries = describeSeries(plot) === describeSeries(this.plot);
      this.plot = plot;
      if (!sameSeries) {
        this.legend?.list();
        this.build();
        return;
      }
      this.fit(this.data());
      this.legend?.write();
    }
    // Shows the range of its group, with a y axis that follows. All in one batch, as each part of it draws else.
    fit(data = null) {
      const [[left, right], [low, high]] = [this.xRange, this.yRange];
      this.uplot.batch(() => {
        if (data) this.uplot.setData(data, false);
        this.uplot.redraw(true, true);
        this.uplot.setScale("x", { min: left, max: right });
        this.uplot.setScale("y", { min: low, max: high });
      });
    }
    setLog(on) {
      this.log = on;
      this.build();
    }
    show(series, on) {
      if (on) this.hidden.delete(series.name);
      else this.hidden.add(series.name);
      this.legend?.mark();
      this.build();
    }
    redraw(width) {
      this.uplot.setSize(this.size(width));
      this.uplot.redraw();
    }
    followWidth() {
      if (Math.abs(this.box.clientWidth - this.width) < 1 || isOnPaper()) return;
      this.width = this.box.clientWidth;
      this.redraw();
    }
    remove() {
      this.sizes.disconnect();
      this.fingers.abort();
      this.group.charts.delete(this);
      this.uplot.destroy();
      this.legend?.element.remove();
      drawn.delete(this.box);
    }

    size(paperWidth) {
      if (paperWidth) return { width: paperWidth, height: Math.min(PAPER_HEIGHT, this.options.height ?? PAPER_HEIGHT) };
      const height = this.options.height ?? (this.plot.low ? 180 : 260) + 2 * (letters() - 12);
      return { width: Math.max(this.box.clientWidth, 200), height };
    }
    get sideWidth() {
      return letters() * 5.5;
    }
    get strip() {
      return this.shownSeries.find((series) => kindOf(series) === "strip");
    }
    // CSS pixels above the plot: the strip, then the lanes of texts.
    topPadding(u) {
      const strip = this.plot.series.some((series) => kindOf(series) === "strip") ? STRIP_HEIGHT : 0;
      const { lanes } = chartShapes.layOutUpright(u, this.marks, [this.sideWidth, u.width - rightRoom()], 1);
      return 6 + strip + lanes * rowHeight();
    }
    get marks() {
      const marks = this.plot.marks ?? [];
      return this.options.markTexts === false ? marks.map((mark) => (isNumber(mark.x) ? { ...mark, text: "" } : mark)) : marks;
    }
    data() {
      const heights = new Map(this.heights().map((series) => [series.name, series.y]));
      const columns = this.lines.map((series) => {
        const y = (heights.get(series.name) ?? series.y).map((value) => (this.yAxis.log && value <= 0 ? null : value));
        return chartScale.breakAtGaps(series.x, y, JOINED.includes(kindOf(series)) ? this.plot.gap : 0);
      });
      return uPlot.join([[chartScale.findXRange(this.plot.x, this.plot.series)], ...columns]);
    }
    build() {
      this.uplot?.destroy();
      const { lines } = this;
      const [xRange, yRange] = [this.xRange, this.yRange];
      const isBare = this.options.xTicks === false;
      this.uplot = new uPlot({
        ...this.size(),
        legend: { show: false },
        padding: [(u) => this.topPadding(u), rightRoom, isBare ? 6 : 0, 0],
        scales: {
          x: makeScale(this.plot.x, (u, low, high) => (isNumber(low) && this.group.shown ? [low, high] : this.xRange)),
          y: makeScale(this.yAxis, () => this.yRange),
        },
        series: [{}, ...lines.map((series) => makeLine(series, lines, !this.hidden.has(series.name)))],
        axes: [this.makeXAxis(isBare), this.makeYAxis()],
        cursor: {
          y: false, points: { size: 6 },
          drag: { x: true, y: false, setScale: false },
          bind: { dblclick: () => () => this.emit("range", null) },
          sync: this.group.name ? { key: this.group.name, scales: ["x", null], filters: { pub: isMove, sub: isMove } } : undefined,
        },
        hooks: {
          drawAxes: [(u) => this.drawUnder(u)],
          draw: [(u) => this.drawOver(u)],
          setCursor: [() => {
            this.legend?.write();
            this.emit("cursor");
          }],
          setSelect: [(u) => this.takeSelection(u)],
        },
      }, this.data(), this.box);
      this.uplot.batch(() => {
        this.uplot.setScale("x", { min: xRange[0], max: xRange[1] });
        this.uplot.setScale("y", { min: yRange[0], max: yRange[1] });
      });
      this.legend?.write();
      this.emit("draw");
    }
    makeXAxis(isBare) {
      const axis = makeAxis(2, this.plot.x, letters() + 15, letters() * 4.8);
      if (isBare) return { ...axis, size: 4, values: (u, splits) => splits.map(() => "") };
      return { ...axis, label: this.plot.x.label || null };
    }
    makeYAxis() {
      const axis = makeAxis(3, this.yAxis, this.sideWidth, letters() * 2.8);
      const hasUnit = ["ms", "s", "%"].includes(this.yAxis.unit);
      if (hasUnit || !this.plot.y.label || this.options.yLabel === false) return axis;
      return { ...axis, size: this.sideWidth - axis.labelSize, label: this.plot.y.label };
    }
    drawUnder(u) {
      for (const series of this.shownSeries) {
        if (isUnder(series, this.plot)) this.drawShape(u, series);
      }
    }
    drawOver(u) {
      for (const series of this.shownSeries) {
        if (series.low?.length && kindOf(series) !== "band") chartShapes.drawIntervals(u, series);
        if (series.kind in chartShapes.DRAWERS && !isUnder(series, this.plot)) this.drawShape(u, series);
      }
      if (this.strip) chartShapes.drawStrip(u, this.strip, 6);
      chartShapes.drawMarks(u, this.marks, 6 + (this.strip ? STRIP_HEIGHT : 0), this.shownSeries);
    }
    drawShape(u, series) {
      chartShapes.DRAWERS[series.kind](u, series, { rank: rankOf(series, this.plot), dots: countDots(this.plot) });
    }
    takeSelection(u) {
      const { left, width } = u.select;
      if (!width) return;
      const { min, max } = u.scales.x;
      const range = chartScale.makeRange(u.posToVal(left, "x"), u.posToVal(left + width, "x"), [min, max]);
      u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
      if (range) this.emit("range", range);
    }
    // A finger that goes across the plot brushes a range, as the mouse does. One that goes up or down scrolls the page
    // (touch-action in plots.css).
    listenToFingers() {
      const { box } = this, how = { signal: this.fingers.signal };
      let from = null;
      const placeOf = (event) => {
        const { left, width } = this.uplot.over.getBoundingClientRect();
        return Math.min(Math.max(event.clientX - left, 0), width);
      };
      const select = (event, isDone) => {
        const to = placeOf(event), isBrush = Math.abs(to - from) >= LEAST_BRUSH;
        const range = { left: Math.min(from, to), width: isBrush ? Math.abs(to - from) : 0, top: 0, height: this.uplot.over.clientHeight };
        this.uplot.setSelect(range, isDone);
      };
      box.addEventListener("pointerdown", (event) => {
        const isFinger = event.pointerType !== "mouse" && event.isPrimary && event.target === this.uplot.over;
        from = isFinger ? placeOf(event) : null;
      }, how);
      box.addEventListener("pointermove", (event) => {
        if (from !== null) select(event, false);
      }, how);
      box.addEventListener("pointerup", (event) => {
        if (from !== null) select(event, true);
        from = null;
      }, how);
      box.addEventListener("pointercancel", () => {
        if (from !== null) this.uplot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        from = null;
      }, how);
    }

    // The value of a series at an x: the one that holds there, of a line the nearest reading.
    valueAt(series, x) {
      const before = chartScale.findIndexAt(series.x, x);
      if (!JOINED.includes(kindOf(series))) return series.y[before];
      const after = Math.min(before + 1, series.x.length - 1);
      const isNearer = before < 0 || series.x[after] - x < x - series.x[before];
      return series.y[isNearer ? after : before];
    }
    get lastX() {
      return Math.max(...this.plot.series.map((series) => series.x.at(-1) ?? -Infinity));
    }
    // Where a point is; nothing where x is only a place in a row.
    writeX(x) {
      if (!this.plot.x.unit && !this.plot.x.label) return "";
      if (this.plot.x.label === "percentile") return `p${chartFormat.brief((1 - 1 / x) * 100, "", 6)}`;
      const named = this.plot.x.ticks?.find(([at]) => at === x);
      return named ? named[1] : chartFormat.writeValue(this.plot.x.unit, x);
    }
    writeY(y, series = null) {
      return chartFormat.writeValue(this.unitOf(series), y);
    }
    // Counts above the plot have a scale of their own.
    unitOf(series) {
      return series && kindOf(series) === "strip" ? "" : this.plot.y.unit;
    }
  }

  // Only the crosshair goes to the other charts of a group: what is brushed comes by the group.
  const isMove = (type) => type === "mousemove" || type === "mouseleave";
  const describeSeries = (plot) => JSON.stringify([
    plot.series.map(({ name, hue, kind, dashed }) => [name, hue, kind, dashed]), plot.x.log, plot.y.log, plot.y.unit,
  ]);
  const rankOf = (series, plot) => plot.series.filter((one) => one.kind === series.kind).indexOf(series);

  function dashOf(series, lines) {
    if (series.dashed) return [6, 4];
    return DASHES[lines.filter((one) => !one.dashed && !isFilled(one)).indexOf(series)];
  }
  function makeLine(series, lines, show) {
    const kind = kindOf(series);
    return {
      show,
      stroke: () => css(series.hue),
      width: 1.8,
      dash: dashOf(series, lines),
      fill: isFilled(series) ? () => mixed(series.hue, FILLS[kind]) : undefined,
      paths: JOINED.includes(kind) ? undefined : uPlot.paths.stepped({ align: 1 }),
      points: { show: kind === "line" && series.x.length <= 30, size: 5, fill: () => css(series.hue) },
    };
  }
  const makeScale = (axis, range) => ({ time: false, distr: axis.log ? 3 : 1, log: axis.log || undefined, range });

  // room: CSS pixels that a tick with its text takes.
  function makeAxis(side, axis, size, room) {
    const font = fontOf();
    return {
      side, size, font, labelFont: font, labelSize: letters() + 7, gap: 4, labelGap: 0, space: room,
      stroke: () => css("muted"),
      grid: { stroke: () => css("line"), width: 1 },
      ticks: { stroke: () => css("line"), width: 1, size: 4 },
      values: (u, splits) => chartFormat.ticks(axis.unit, splits, Boolean(axis.log)),
      ...makeTicks(axis, room * 0.8),
    };
  }
  const WHOLE_STEPS = [0, 1, 2, 3, 4, 5, 6].flatMap((power) => [1, 2, 5].map((m) => m * 10 ** power));
  function makeTicks(axis, room) {
    const filter = (u, splits) => splits;
    if (axis.ticks?.length) return makeNamedTicks(new Map(axis.ticks), filter);
    if (axis.log) {
      const most = (u, i) => Math.max((i ? u.height : u.width) / room, 2);
      return { filter, splits: (u, i, low, high) => chartScale.findLogTicks(axis.log, low, high, most(u, i)) };
    }
    if (axis.unit === "s") return { incrs: chartScale.TIMES };
    return axis.whole ? { incrs: WHOLE_STEPS } : {};
  }
  // Those that have room beside the one before.
  function makeNamedTicks(named, filter) {
    const width = (value) => named.get(value).length * letters() * 0.58;
    const isApart = (u, a, b) => Math.abs(u.valToPos(a, "x") - u.valToPos(b, "x")) >= (width(a) + width(b)) / 2 + 8;
    const splits = (u) => {
      const kept = [];
      for (const value of named.keys()) {
        const isInside = value >= u.scales.x.min && value <= u.scales.x.max;
        if (isInside && (!kept.length || isApart(u, value, kept.at(-1)))) kept.push(value);
      }
      return kept;
    };
    return { splits, filter, values: (u, values) => values.map((value) => named.get(value)) };
  }

  // -- the legend: a button for each series, which shows and hides it and has its value where the cursor is --------------------

  // As precise as a place under the pointer can be.
  function roundX({ plot, uplot }, x) {
    if (plot.x.unit !== "s") return Number(x.toPrecision(3));
    const { min, max } = uplot.scales.x;
    return max - min < 60 ? Math.round(x * 10) / 10 : Math.round(x);
  }

  function makeLegend(chart) {
    const element = document.createElement("div"), where = document.createElement("output");
    const buttons = new Map();
    element.className = "keys";
    where.className = "key";
    function list() {
      buttons.clear();
      element.replaceChildren(...chart.plot.series.map(makeButton), where);
    }
    function makeButton(series) {
      const button = document.createElement("button"), value = document.createElement("output");
      button.type = "button";
      button.className = "key";
      button.setAttribute("aria-pressed", String(!chart.hidden.has(series.name)));
      const dash = isLine(series) ? dashOf(series, chart.lines) : undefined;
      button.append(chartShapes.makeSwatch(kindOf(series), series.hue, dash, rankOf(series, chart.plot)), series.name, value);
      button.addEventListener("click", () => chart.show(series, chart.hidden.has(series.name)));
      buttons.set(series.name, { button, value });
      return button;
    }
    function mark() {
      for (const [name, { button }] of buttons) button.setAttribute("aria-pressed", String(!chart.hidden.has(name)));
    }
    function write() {
      const u = chart.uplot, isOver = u?.cursor.left >= 0;
      const x = isOver ? u.posToVal(u.cursor.left, "x") : chart.lastX;
      const place = isOver ? chart.writeX(roundX(chart, x)) : "";
      where.textContent = place && `at ${place}`;
      for (const series of chart.plot.series) {
        const hasValue = isLine(series) || ["band", "strip"].includes(kindOf(series));
        const isShown = hasValue && (isOver || chart.options.last) && !chart.hidden.has(series.name);
        const value = isShown ? chart.valueAt(series, x) : null;
        buttons.get(series.name).value.textContent = isNumber(value) ? chart.writeY(value, series) : "";
      }
    }
    list();
    return { element, list, mark, write };
  }

  // -- all charts of a page ------------------------------------------------------------------------------------------------

  const drawn = new Map();   // box -> its chart

  // Draws a plot in a box, in place of what was drawn there before. Options, all optional:
  //   height     CSS pixels
  //   legend     false: none; an element: the legend's place, else it stands under the box
  //   last       the legend has the last values while the pointer is elsewhere
  //   xTicks     false: no texts at the x axis, as in all but the last of stacked charts
  //   yLabel     false: no text beside the y axis
  //   markTexts  false: upright marks without their texts
  function draw(box, plot, options = {}) {
    const before = drawn.get(box);
    const listeners = before?.listeners;
    before?.remove();
    const chart = new Chart(box, plot, options);
    if (listeners) chart.listeners = listeners;
    drawn.set(box, chart);
    if (!listeners) chart.on("range", (one, range) => one.group.setRange(range));
    return chart;
  }

  const isOnPaper = () => document.documentElement.classList.contains("paper");
  const redraw = (width) => drawn.forEach((chart) => chart.redraw(width));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  addEventListener("storage", () => redraw());   // another theme was chosen
  narrow.addEventListener("change", () => isOnPaper() || drawn.forEach((chart) => chart.build()));
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    redraw(PAPER_WIDTH);
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    redraw();
  });

  return { draw, redraw, group: groupOf, of: (box) => drawn.get(box), list: () => [...drawn.values()], kindOf };
})();
