// Draws the plots that report/charts/model.py describes: lines and axes by uPlot; dots, marks and the rest here.
"use strict";
const plots = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
  const PAPER = 680, PAPER_HIGH = 180;  // a plot on paper, CSS pixels: three to a page
  const narrow = matchMedia("(max-width: 40rem)");
  const letters = () => (narrow.matches ? 14 : 12);  // pixels high
  const fontOf = (ratio = 1, weight = "") => `${weight} ${letters() * ratio}px ${FONT}`.trim();

  // -- how values are written ----------------------------------------------------------------------------------------

  const digits = (value, most = 4) => value.toLocaleString("en", { maximumSignificantDigits: most });
  const compact = (value) =>
    Math.abs(value) >= 1e6 ? `${digits(value / 1e6)}M` : Math.abs(value) >= 1e4 ? `${digits(value / 1e3)}k` : digits(value);
  const clock = (s) => {
    const whole = Math.round(Math.abs(s)), two = (n) => String(n).padStart(2, "0");
    if ((whole < 120 && whole % 60) || s % 1 || !whole) return `${digits(s, 6)} s`;
    const [h, m] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
    return `${s < 0 ? "-" : ""}${h ? `${h}:${two(m)}` : m}:${two(whole % 60)}`;
  };
  // Ticks of one axis in one format.
  const time = (s, ticks) => {
    const most = Math.max(...ticks), two = (n) => String(n).padStart(2, "0");
    if (most < 120 || ticks.some((tick) => tick % 1)) return `${digits(s, 6)} s`;
    const [h, m, rest] = [Math.floor(s / 3600), Math.floor(s / 60) % 60, two(s % 60)];
    return most < 3600 ? `${m}:${rest}` : `${h}:${two(m)}:${rest}`;
  };
  const units = {
    ms: (v) => (v === 0 ? "0" : v >= 1000 ? `${digits(v / 1000)} s` : v < 0.1 ? `${digits(v * 1000)} µs` : `${digits(v)} ms`),
    s: clock,
    "%": (v) => `${digits(v)}%`,
  };
  const written = (unit) => units[unit] || compact;

  // -- extents -------------------------------------------------------------------------------------------------------

  const number = (value) => typeof value === "number" && isFinite(value);
  const extent = (values, log) => {
    const known = values.filter((value) => number(value) && (!log || value > 0));
    return known.length ? [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))] : [1, 10];
  };
  // above: room for texts at the upper edge, a share of the height.
  function range(axis, values, fromZero, above = 0) {
    const [least, most] = extent(values, axis.log);
    const room = axis.log ? Math.pow(most / least || 1, 0.06 + above) * 1.05 : 0;
    const low = axis.low ?? (axis.log ? least / room : fromZero ? Math.min(0, least) : least);
    const high = axis.high ?? (axis.log ? most * room : fromZero ? most + (most - low) * (0.07 + above) : most);
    return [low, high > low ? high : low + 1];
  }

  // Of a logarithmic axis: powers of the base, and twice and five times those of 10 where there is room.
  function logTicks(axis, low, high, most) {
    const base = axis.log, powers = [];
    for (let p = Math.floor(Math.log(low) / Math.log(base)); p <= Math.log(high) / Math.log(base); p++) powers.push(p);
    const within = (values) => values.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    const fine = base === 10 ? within(powers.flatMap((p) => [1, 2, 5].map((m) => m * 10 ** p))) : [];
    if (fine.length && fine.length <= most) return fine;
    const whole = within(powers.map((p) => base ** p));
    return whole.filter((_, i) => i % Math.ceil(whole.length / most) === 0);
  }

  // -- what uPlot does not draw --------------------------------------------------------------------------------------

  function inside(u, draw) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 6 * uPlot.pxRatio, bbox.width, bbox.height + 12 * uPlot.pxRatio);
    ctx.clip();
    draw(ctx, uPlot.pxRatio, bbox);
    ctx.restore();
  }
  const places = (u, series) =>
    series.x.map((x, i) => (number(x) && number(series.y[i])
      ? [u.valToPos(x, "x", true), u.valToPos(series.y[i], "y", true)] : null)).filter(Boolean);

  const spots = {
    dots: (u, series) => inside(u, (ctx, ratio) => {
      const count = series.x.length;
      const size = (count > 1500 ? 2.2 : count > 400 ? 2.8 : count > 200 ? 3.4 : 4.4) * ratio;
      ctx.fillStyle = css(series.hue);
      ctx.globalAlpha = count > 400 ? 0.5 : count > 200 ? 0.7 : 0.9;  // few do not cover each other
      for (const [x, y] of places(u, series)) {
        ctx.beginPath();
        ctx.arc(x, y, size / 2, 0, 7);
        ctx.fill();
      }
    }),
    // Of several such series in a plot the first has rings, the next squares, then diamonds.
    rings: (u, series, rank) => inside(u, (ctx, ratio) => {
      ctx.strokeStyle = css(series.hue);
      ctx.fillStyle = css("back");
      ctx.lineWidth = 1.8 * ratio;
      const size = 4.5 * ratio;
      for (const [x, y] of places(u, series)) {
        ctx.beginPath();
        if (rank === 0) ctx.arc(x, y, size, 0, 7);
        else if (rank === 1) ctx.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
        else [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0], [0, -1.3]].forEach(([a, b]) => ctx.lineTo(x + a * size, y + b * size));
        ctx.fill();
        ctx.stroke();
      }
    }),
    rug: (u, series) => inside(u, (ctx, ratio, box) => {
      ctx.fillStyle = css(series.hue);
      for (const x of series.x) ctx.fillRect(u.valToPos(x, "x", true) - ratio / 2, box.top, ratio, 9 * ratio);
    }),
    path: (u, series) => {
      inside(u, (ctx, ratio) => {
        ctx.strokeStyle = ctx.fillStyle = css(series.hue);
        ctx.lineWidth = 1.6 * ratio;
        const at = places(u, series);
        ctx.beginPath();
        at.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
        ctx.stroke();
        for (const [x, y] of at) {
          ctx.beginPath();
          ctx.arc(x, y, 4 * ratio, 0, 7);
          ctx.fill();
        }
      });
      const { ctx } = u, ratio = uPlot.pxRatio;
      ctx.save();
      ctx.font = fontOf(ratio, 600);
      ctx.fillStyle = css("ink");
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      const taken = [];
      places(u, series).forEach(([x, y], i) => {
        const text = series.labels?.[i] ?? "", wide = ctx.measureText(text).width, high = (letters() + 2) * ratio;
        const spot = [[7, -6], [7, 14], [-7 - wide / ratio, -6], [-7 - wide / ratio, 14], [-wide / ratio / 2, -10]]
          .map(([dx, dy]) => [x + dx * ratio, y + dy * ratio])
          .find(([a, b]) => a >= u.bbox.left && a + wide <= u.bbox.left + u.bbox.width
            && taken.every(([c, d, w]) => a > c + w || a + wide < c || Math.abs(b - d) > high));
        if (!spot) return;
        taken.push([...spot, wide]);
        ctx.fillText(text, ...spot);
      });
      ctx.restore();
    },
  };

  function whiskers(u, series) {
    inside(u, (ctx, ratio, box) => {
      ctx.strokeStyle = css(series.hue);
      ctx.lineWidth = 1.4 * ratio;
      series.x.forEach((at, i) => {
        const x = u.valToPos(at, "x", true);
        const low = number(series.low[i]) ? u.valToPos(series.low[i], "y", true) : box.top + box.height;
        const high = number(series.high?.[i]) ? u.valToPos(series.high[i], "y", true) : null;
        if (high === null || !number(series.y[i])) return;
        ctx.beginPath();
        ctx.moveTo(x, low);
        ctx.lineTo(x, high);
        for (const y of [low, high]) {
          ctx.moveTo(x - 4 * ratio, y);
          ctx.lineTo(x + 4 * ratio, y);
        }
        ctx.stroke();
      });
    });
  }

  // Lines across, each with its text: of upright ones above the plot, in one row or two; of level ones beside the line, of
  // those beyond the plot at its upper edge. Where there is no room for a text beside the others it is left out; knees come
  // first.
  const rowHeight = () => letters() + 3;
  const upright = (mark) => number(mark.x);
  const rowsOf = (all) => (all.some((mark) => mark.hue === "knee") ? 2 : all.some(upright) ? 1 : 0);
  // How much of the curves, of their points and of the upright lines a text would hide.
  function crossed(u, all, [left, top, right, bottom]) {
    const beside = (x) => x >= left && x <= right, at = u.data[0].map((x) => u.valToPos(x, "x", true));
    const hidden = u.data.slice(1).reduce((sum, values) => {
      const ys = values.map((value) => (number(value) ? u.valToPos(value, "y", true) : NaN));
      const points = ys.filter((y, i) => beside(at[i]) && y >= top && y <= bottom);
      const lines = ys.filter((y, i) => at[i] >= left && at[i - 1] <= right && Math.max(y, ys[i - 1]) >= top && Math.min(y, ys[i - 1]) <= bottom);
      return sum + points.length + lines.length;
    }, 0);
    return hidden + all.filter((mark) => upright(mark) && beside(u.valToPos(mark.x, "x", true))).length;
  }
  function marks(u, all, ticks = 0) {  // ticks: CSS pixels that those at the upper edge take
    const taken = [], crowded = all.filter(upright).length > 12;  // as the blocks of two arms: fainter than what is measured
    const free = (box) => taken.every((other) => box[0] > other[2] || box[2] < other[0] || box[1] > other[3] || box[3] < other[1]);
    const { ctx, bbox } = u, ratio = uPlot.pxRatio, right = bbox.left + bbox.width, bottom = bbox.top + bbox.height;
    ctx.save();
    ctx.font = fontOf(ratio);
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.lineWidth = 1.2 * ratio;
    ctx.lineJoin = "round";
    for (const mark of [...all].sort((a, b) => (b.hue === "knee") - (a.hue === "knee") || !!a.beyond - !!b.beyond)) {
      const high = rowHeight() * ratio, text = mark.beyond ? `${mark.text} \u2191` : mark.text;
      const at = u.valToPos(upright(mark) ? mark.x : mark.y, upright(mark) ? "x" : "y", true);
      if (upright(mark) ? at < bbox.left - 1 || at > right + 1 : !mark.beyond && (at < bbox.top || at > bottom)) continue;
      ctx.strokeStyle = ctx.fillStyle = css(mark.hue || "mark");
      if (!mark.beyond) {
        ctx.setLineDash([5 * ratio, 4 * ratio]);
        ctx.globalAlpha = upright(mark) && crowded ? 0.35 : 1;
        ctx.beginPath();
        if (upright(mark)) { ctx.moveTo(at, bbox.top); ctx.lineTo(at, bottom); }
        else { ctx.moveTo(bbox.left, at); ctx.lineTo(right, at); }
        ctx.stroke();
        ctx.setLineDash([]);
        ctx.globalAlpha = 1;
      }
      const wide = ctx.measureText(text).width, gap = 4 * ratio;
      const beside = all.filter(upright).map((other) => u.valToPos(other.x, "x", true))
        .flatMap((x) => [x - wide - gap, x + gap]).filter((x) => x >= bbox.left + gap && x + wide + gap <= right);
      const edges = [right - wide - gap, bbox.left + gap, ...beside];
      const left = Math.min(Math.max(at - wide / 2, bbox.left), right - wide);
      const levels = mark.beyond ? [1, 2, 3].map((row) => bbox.top + ticks * ratio + high * (row - 0.5))
        : [at - high / 2, at + high / 2].filter((y) => y - high / 2 >= bbox.top && y + high / 2 <= bottom);
      const spots = upright(mark)
        ? [1, 2].slice(0, rowsOf(all)).map((row) => [left, bbox.top - high * (row - 0.5)])
        : mark.beyond ? levels.flatMap((y) => edges.map((x) => [x, y])) : [...edges, (edges[0] + edges[1]) / 2].flatMap((x) => levels.map((y) => [x, y]));
      const box = (x, y) => [x - 3 * ratio, y - high / 2 + 1, x + wide + 3 * ratio, y + high / 2 - 1];
      const spot = spots.filter(([x, y]) => free(box(x, y))).map((at) => [upright(mark) ? 0 : crossed(u, all, box(...at)), at])
        .reduce((best, one) => (best && best[0] <= one[0] ? best : one), null)?.[1];
      if (!spot) continue;
      taken.push(box(...spot));
      ctx.strokeStyle = css("back");
      ctx.lineWidth = 3 * ratio;
      ctx.strokeText(text, ...spot);
      ctx.lineWidth = 1.2 * ratio;
      ctx.fillText(text, ...spot);
    }
    ctx.restore();
  }

  // -- one plot ------------------------------------------------------------------------------------------------------

  const isLine = (series) => ["line", "steps", "area"].includes(series.kind || "line");
  const heightOf = (plot) => (plot.low ? 180 : 260) + 2 * (letters() - 12);  // equal beside each other, whatever is in them
  const widthOf = (box) => Math.max(box.clientWidth, 200);
  const TIMES = [                   // seconds between ticks
    ...[1e-3, 1e-2, 0.1, 1].flatMap((power) => [power, 2 * power, 5 * power]), 10, 15, 30,
    ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60), ...[1, 2, 5, 10, 24].map((hours) => hours * 3600),
  ];

  // The lines of a plot differ in their strokes too, not in colour only.
  const DASHES = [undefined, [2, 3], [9, 3, 2, 3], [13, 4]];
  function dashOf(series, lines) {
    if (series.dashed) return [6, 4];
    return DASHES[lines.filter((one) => !one.dashed && one.kind !== "area").indexOf(series)];
  }

  const rankOf = (series, plot) => plot.series.filter((one) => one.kind === series.kind).indexOf(series);

  function lineOf(series, lines) {
    const kind = series.kind || "line", few = series.x.length <= 30 && kind === "line";
    return {
      stroke: () => css(series.hue),
      width: 1.8,
      dash: dashOf(series, lines),
      fill: kind === "area" ? () => `color-mix(in srgb, ${css(series.hue)} 28%, transparent)` : undefined,
      paths: kind === "line" ? undefined : uPlot.paths.stepped({ align: 1 }),
      points: { show: few, size: 5, fill: () => css(series.hue) },
    };
  }

  const scaleOf = (axis, range) => ({ time: false, distr: axis.log ? 3 : 1, log: axis.log || undefined, range });

  // room: CSS pixels that a tick with its text takes.
  function axisOf(side, axis, size, room) {
    const font = fontOf(), text = axis.unit === "s" ? time : written(axis.unit);
    return {
      side, size, font, labelFont: font, labelSize: letters() + 7, gap: 4, labelGap: 0, space: room,
      stroke: () => css("muted"),
      grid: { stroke: () => css("line"), width: 1 },
      ticks: { stroke: () => css("line"), width: 1, size: 4 },
      values: (u, splits) => splits.map((value) => (value === null ? "" : text(value, splits))),
      ...ticksOf(axis, room * 0.8),
    };
  }

  function ticksOf(axis, room) {
    const filter = (u, splits) => splits;
    if (axis.ticks) {
      const named = new Map(axis.ticks), width = (value) => named.get(value).length * letters() * 0.58;
      const apart = (u, a, b) => Math.abs(u.valToPos(a, "x") - u.valToPos(b, "x")) >= (width(a) + width(b)) / 2 + 8;
      const splits = (u) => [...named.keys()].filter((value) => value >= u.scales.x.min && value <= u.scales.x.max)
        .reduce((kept, value) => (kept.length && !apart(u, value, kept.at(-1)) ? kept : [...kept, value]), []);
      return { splits, filter, values: (u, splits) => splits.map((value) => named.get(value)) };
    }
    if (axis.log) {
      return { filter, splits: (u, i, low, high) => logTicks(axis, low, high, Math.max((i ? u.height : u.width) / room, 2)) };
    }
    return axis.unit === "s" ? { incrs: TIMES } : {};
  }

  function draw(box, plot) {
    const lines = plot.series.filter(isLine), others = plot.series.filter((series) => !isLine(series));
    const all = plot.marks || [], shown = new Set(plot.series);
    const xRange = range(plot.x, plot.series.flatMap((series) => series.x), false);
    const heights = plot.series.filter((series) => series.kind !== "rug").flatMap((series) => [...series.y, ...(series.high || [])]);
    const yRange = range(plot.y, [...heights, ...all.map((mark) => (mark.beyond ? null : mark.y))], true,
      all.some((mark) => mark.beyond) ? 0.08 : 0);
    const visible = (some, dots) => some.filter((series) => shown.has(series) && (series.kind === "dots") === dots);
    const keys = legend(plot, lines, shown, (series) => {
      const index = lines.indexOf(series);
      index < 0 ? u.redraw() : u.setSeries(index + 1, { show: shown.has(series) });
    });
    const size = (width) => (width ? { width, height: PAPER_HIGH } : { width: widthOf(box), height: heightOf(plot) });
    const options = {
      ...size(), legend: { show: false }, padding: [6 + rowHeight() * rowsOf(all), 12, 0, 0],
      scales: {
        x: scaleOf(plot.x, (u, low, high) => (number(low) ? [low, high] : xRange)),  // as zoomed
        y: scaleOf(plot.y, () => yRange),
      },
      series: [{}, ...lines.map((series) => lineOf(series, lines))],
      axes: [
        { ...axisOf(2, plot.x, letters() + 15, letters() * 4.8), label: plot.x.label || null },
        // a label where the ticks have no unit
        { ...axisOf(3, plot.y, letters() * (units[plot.y.unit] ? 4.9 : 3.4), letters() * 2.8),
          label: units[plot.y.unit] ? null : plot.y.label || null },
      ],
      cursor: {
        y: false, points: { size: 6 }, drag: { x: true, y: false },
        sync: plot.group ? { key: plot.group, scales: ["x", null] } : undefined,
      },
      hooks: {
        drawAxes: [(u) => visible(others, true).forEach((series) => spots.dots(u, series))],
        draw: [(u) => {
          visible(lines, false).forEach((series) => series.low && whiskers(u, series));
          visible(others, false).forEach((series) => spots[series.kind](u, series, rankOf(series, plot)));
          marks(u, all, visible(others, false).some(({ kind }) => kind === "rug") ? 9 : 0);
        }],
        setCursor: [(u) => keys.say(u)],
      },
    };
    const u = new uPlot(options, uPlot.join([[xRange], ...lines.map((series) => [series.x, series.y])]), box);
    box.after(keys.element);
    return {
      end: () => [u.destroy(), keys.element.remove()],
      redraw: (width) => [u.setSize(size(width)), u.redraw()],
    };
  }

  // -- the keys beneath a plot ---------------------------------------------------------------------------------------

  // A button each: it shows and hides its series, and says its value where the cursor is.
  function legend(plot, lines, shown, toggled) {
    const element = document.createElement("div"), where = document.createElement("output"), values = new Map();
    element.className = "keys";
    where.className = "key";
    for (const series of plot.series) {
      const button = document.createElement("button"), value = document.createElement("output");
      button.type = "button";
      button.className = "key";
      button.setAttribute("aria-pressed", "true");
      const shape = RINGS[series.kind === "rings" ? Math.min(rankOf(series, plot), 2) : -1] || series.kind || "line";
      button.append(swatch(shape, series.hue, dashOf(series, lines)), series.name, value);
      button.addEventListener("click", () => {
        shown.has(series) ? shown.delete(series) : shown.add(series);
        button.setAttribute("aria-pressed", String(shown.has(series)));
        toggled(series);
      });
      values.set(series, value);
      element.append(button);
    }
    element.append(where);

    function place(x) {
      if (plot.x.label === "percentile") return `p${digits((1 - 1 / x) * 100, 6)}`;
      return plot.x.unit === "s" ? clock(Math.round(x * 100) / 100) : written(plot.x.unit)(Number(x.toPrecision(3)));
    }
    function say(u) {
      const over = u.cursor.left >= 0;
      where.textContent = over ? `at ${place(u.posToVal(u.cursor.left, "x"))}` : "";
      lines.forEach((series, i) => {
        const index = u.cursor.idxs?.[i + 1], value = over && number(index) ? u.data[i + 1][index] : null;
        values.get(series).textContent = number(value) && shown.has(series) ? written(plot.y.unit)(value) : "";
      });
    }
    return { element, say };
  }

  const RINGS = ["rings", "squares", "diamonds"];
  const SHAPES = {
    line: "M0 5H28", steps: "M0 8H9V3H19V6H28", area: "M0 10V4H9V2H19V5H28V10Z", dots: "M11 5a3 3 0 1 1 6 0a3 3 0 1 1-6 0Z",
    rings: "M11 5a3 3 0 1 1 6 0a3 3 0 1 1-6 0Z", rug: "M8 1V9M14 1V9M20 1V9",
    squares: "M11 2H17V8H11Z", diamonds: "M14 1L18 5L14 9L10 5Z", path: "M0 5H28M11 5a3 3 0 1 1 6 0a3 3 0 1 1-6 0Z",
  };
  // dash: its strokes and gaps, or that it is dashed.
  function swatch(kind, hue, dash) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", "0 0 28 10");
    svg.setAttribute("aria-hidden", "true");
    shape.setAttribute("d", SHAPES[kind]);
    shape.style.stroke = `var(--${hue})`;
    shape.style.strokeWidth = "2";
    shape.style.strokeDasharray = Array.isArray(dash) ? dash.join(" ") : dash ? "4 3" : "";
    shape.style.fill = ["dots", "area", "path"].includes(kind) ? `var(--${hue})` : "none";
    svg.append(shape);
    return svg;
  }

  // -- all plots of a page -------------------------------------------------------------------------------------------

  const drawn = new Map();          // box -> its plot

  // Draws it in this box, in place of what was drawn there before.
  function add(box, description) {
    const before = drawn.get(box);
    before?.sizes.disconnect();
    before?.end();
    const plot = draw(box, description);
    let width = box.clientWidth;
    plot.sizes = new ResizeObserver(() => {
      if (Math.abs(box.clientWidth - width) < 1 || onPaper()) return;
      width = box.clientWidth;
      plot.redraw();
    });
    plot.sizes.observe(box);
    plot.description = description;
    drawn.set(box, plot);
  }

  const onPaper = () => document.documentElement.classList.contains("paper");
  const redraw = (width) => drawn.forEach((plot) => plot.redraw(width));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
  narrow.addEventListener("change", () => onPaper() || [...drawn].forEach(([box, plot]) => add(box, plot.description)));
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    redraw(PAPER);
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    redraw();
  });

  return { add, marks, css, swatch, written, digits, narrow, letters, fontOf, rowHeight };
})();
