// What uPlot does not draw: dots, rings, paths, bands, intervals, the strip of failures, marks; and the swatches of legends.
"use strict";
const chartShapes = (() => {
  const { isNumber } = chartFormat;
  const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";
  const STRIP_HEIGHT = 22, STRIP_GAP = 5;   // CSS pixels
  const narrow = matchMedia("(max-width: 40rem)");

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const letters = () => (narrow.matches ? 14 : 12);   // pixels high
  const rowHeight = () => letters() + 3;
  const fontOf = (ratio = 1, weight = "") => `${weight} ${letters() * ratio}px ${FONT}`.trim();
  // Opaque, so that a legend's swatch has the colour of what it names, whatever lies under it.
  const mixed = (hue, percent) => `color-mix(in srgb, ${css(hue)} ${percent}%, ${css("back")})`;

  function drawInside(u, draw) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 6 * uPlot.pxRatio, bbox.top - 6 * uPlot.pxRatio, bbox.width + 12 * uPlot.pxRatio, bbox.height + 12 * uPlot.pxRatio);
    ctx.clip();
    draw(ctx, uPlot.pxRatio, bbox);
    ctx.restore();
  }
  const toX = (u, x) => u.valToPos(x, "x", true);
  const toY = (u, y) => u.valToPos(y, "y", true);
  function listPlaces(u, series) {
    const places = [];
    series.x.forEach((x, i) => {
      if (isNumber(x) && isNumber(series.y[i])) places.push([toX(u, x), toY(u, series.y[i]), i]);
    });
    return places;
  }

  // -- dots and paths --------------------------------------------------------------------------------------------------

  const FEW_DOTS = 60;   // so few stand above lines, more under them
  // [most points, their diameter, their opacity]: few do not cover each other.
  const DOT_SIZES = [[FEW_DOTS, 7, 0.95], [200, 4.4, 0.9], [400, 3.4, 0.7], [1500, 2.8, 0.5], [Infinity, 2.2, 0.5]];

  // ``dots``: how many all series of the plot have.
  function drawDots(u, series, { dots }) {
    const [, size, opacity] = DOT_SIZES.find(([most]) => dots <= most);
    drawInside(u, (ctx, ratio, box) => {
      ctx.fillStyle = css(series.hue);
      ctx.globalAlpha = opacity;
      for (const [x, y] of listPlaces(u, series)) {
        ctx.beginPath();
        if (y < box.top) traceArrow(ctx, x, box.top, 5 * ratio);
        else if (y > box.top + box.height) traceArrow(ctx, x, box.top + box.height, -5 * ratio);
        else ctx.arc(x, y, (size * ratio) / 2, 0, 7);
        ctx.fill();
      }
    });
  }
  // A value beyond the plot is an arrow at its edge.
  function traceArrow(ctx, x, edge, high) {
    ctx.moveTo(x, edge);
    ctx.lineTo(x - high * 0.7, edge + high);
    ctx.lineTo(x + high * 0.7, edge + high);
  }

  const DIAMOND = [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0], [0, -1.3]];
  // Of several such series in a plot the first has rings, the next squares, then diamonds.
  function tracePoint(ctx, rank, x, y, size) {
    ctx.beginPath();
    if (rank === 0) ctx.arc(x, y, size, 0, 7);
    else if (rank === 1) ctx.rect(x - size * 0.9, y - size * 0.9, size * 1.8, size * 1.8);
    else DIAMOND.forEach(([a, b]) => ctx.lineTo(x + a * size, y + b * size));
  }
  function drawRings(u, series, { rank }) {
    drawInside(u, (ctx, ratio) => {
      ctx.strokeStyle = css(series.hue);
      ctx.fillStyle = css("back");
      ctx.lineWidth = 1.8 * ratio;
      for (const [x, y] of listPlaces(u, series)) {
        tracePoint(ctx, rank, x, y, 4.5 * ratio);
        ctx.fill();
        ctx.stroke();
      }
    });
  }

  function drawPath(u, series) {
    const places = listPlaces(u, series);
    drawInside(u, (ctx, ratio) => {
      ctx.strokeStyle = ctx.fillStyle = css(series.hue);
      ctx.lineWidth = 1.6 * ratio;
      ctx.beginPath();
      places.forEach(([x, y]) => ctx.lineTo(x, y));
      ctx.stroke();
      for (const [x, y] of series.labels?.length ? places : []) {
        ctx.beginPath();
        ctx.arc(x, y, 4 * ratio, 0, 7);
        ctx.fill();
      }
    });
    if (series.labels?.length) drawPointLabels(u, series, places);
  }

  // A text beside each point; one that has no free place beside it stands further off, with a line to its point.
  const BESIDE = [[7, -6, 0], [7, 14, 0], [-7, -6, -1], [-7, 14, -1], [0, -10, -0.5]];
  const FURTHER = [[16, -24, 0], [16, 30, 0], [-16, -24, -1], [-16, 30, -1], [0, -40, -0.5], [0, 46, -0.5], [40, -52, 0]];
  function drawPointLabels(u, series, places) {
    const { ctx, bbox } = u, ratio = uPlot.pxRatio, high = (letters() + 2) * ratio;
    const taken = places.map(([x, y]) => [x - 4 * ratio, y - 4 * ratio, x + 4 * ratio, y + 4 * ratio]);
    ctx.save();
    ctx.font = fontOf(ratio, 600);
    ctx.fillStyle = css("ink");
    ctx.strokeStyle = css("muted");
    ctx.lineWidth = ratio;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    for (const [x, y, i] of places) {
      const text = series.labels[i] ?? "", width = ctx.measureText(text).width;
      const boxes = [...BESIDE, ...FURTHER].map(([dx, dy, share]) => {
        const left = x + dx * ratio + share * width, base = y + dy * ratio;
        return [left, base - high, left + width, base];
      }).filter(([left, top, right]) => left >= bbox.left && right <= bbox.left + bbox.width && top >= 0);
      const box = boxes.length ? chartLabels.chooseBox(boxes, taken) : [x, y - high, x + width, y];
      taken.push(box);
      const far = box[1] > y + 20 * ratio || box[3] < y - 20 * ratio;
      if (far) {
        ctx.beginPath();
        ctx.moveTo(x, y);
        ctx.lineTo((box[0] + box[2]) / 2, box[3] < y ? box[3] + 2 * ratio : box[1]);
        ctx.stroke();
      }
      ctx.fillText(text, box[0], box[3]);
    }
    ctx.restore();
  }

  // -- intervals -------------------------------------------------------------------------------------------------------

  // Around each point, upright and, with ``x_low`` and ``x_high``, level too. A lower end that is missing lies below the plot.
  function drawIntervals(u, series) {
    drawInside(u, (ctx, ratio, box) => {
      ctx.strokeStyle = css(series.hue);
      ctx.lineWidth = 1.4 * ratio;
      const end = 4 * ratio;
      for (const [x, y, i] of listPlaces(u, series)) {
        ctx.beginPath();
        if (isNumber(series.high?.[i])) {
          const low = isNumber(series.low[i]) ? toY(u, series.low[i]) : box.top + box.height;
          traceInterval(ctx, [x, low], [x, toY(u, series.high[i])], [end, 0]);
        }
        if (isNumber(series.x_high?.[i])) {
          traceInterval(ctx, [toX(u, series.x_low[i]), y], [toX(u, series.x_high[i]), y], [0, end]);
        }
        ctx.stroke();
      }
    });
  }
  function traceInterval(ctx, from, to, [dx, dy]) {
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    for (const [x, y] of [from, to]) {
      ctx.moveTo(x - dx, y - dy);
      ctx.lineTo(x + dx, y + dy);
    }
  }

  // From each x to the next a level, and its interval as a band.
  function drawBand(u, series) {
    drawInside(u, (ctx, ratio) => {
      for (let i = 0; i + 1 < series.x.length; i++) {
        if (!isNumber(series.y[i])) continue;
        const [left, right] = [toX(u, series.x[i]), toX(u, series.x[i + 1])];
        if (isNumber(series.low?.[i]) && isNumber(series.high?.[i])) {
          const [top, bottom] = [toY(u, series.high[i]), toY(u, series.low[i])];
          ctx.fillStyle = mixed(series.hue, 20);
          ctx.fillRect(left, top, right - left, Math.max(bottom - top, ratio));
        }
        ctx.fillStyle = css(series.hue);
        ctx.fillRect(left, toY(u, series.y[i]) - 0.75 * ratio, right - left, 1.5 * ratio);
      }
    });
  }

  // -- the strip of failures -------------------------------------------------------------------------------------------

  // Above the plot, with a scale of its own: a bar for each step, as high as its count. The largest count in sight stands at
  // its left.
  function drawStrip(u, series, offset) {
    const { ctx, bbox } = u, ratio = uPlot.pxRatio;
    const base = bbox.top - (offset + STRIP_GAP) * ratio, { min, max } = u.scales.x;
    const isInSight = (count, i) => isNumber(count) && series.x[i] <= max && (series.x[i + 1] ?? series.x[i]) >= min;
    const most = Math.max(...series.y.filter(isInSight), 0);
    const high = (STRIP_HEIGHT - STRIP_GAP) * ratio;
    ctx.save();
    ctx.font = fontOf(ratio);
    ctx.fillStyle = css(series.hue);
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillText(chartFormat.brief(most, "", 3), bbox.left - 8 * ratio, base - high / 2);
    ctx.fillStyle = css("line");
    ctx.fillRect(bbox.left, base, bbox.width, ratio);
    ctx.beginPath();
    ctx.rect(bbox.left, base - high, bbox.width, high);
    ctx.clip();
    ctx.fillStyle = css(series.hue);
    for (let i = 0; i + 1 < series.x.length; i++) {
      if (!series.y[i]) continue;
      const [left, right] = [toX(u, series.x[i]), toX(u, series.x[i + 1])];
      const tall = Math.max((high * series.y[i]) / most, 2 * ratio);
      ctx.fillRect(left, base - tall, Math.max(right - left - 0.5 * ratio, 1.5 * ratio), tall);
    }
    ctx.restore();
  }

  // -- marks: lines across the plot, each with its text ------------------------------------------------------------------

  const isUpright = (mark) => isNumber(mark.x);
  const isVisible = (u, mark) => mark.x >= u.scales.x.min && mark.x <= u.scales.x.max;

  // The lanes that the texts of the upright marks take. In the window of a measuring context, as a plot is laid out first.
  function layOutUpright(u, marks, [left, right], ratio) {
    const upright = marks.filter((mark) => isUpright(mark) && mark.text && isVisible(u, mark));
    const { min, max, distr } = u.scales.x;
    const scaled = distr === 3 ? Math.log : (x) => x;
    const shareOf = (x) => (scaled(x) - scaled(min)) / (scaled(max) - scaled(min) || 1);
    u.ctx.save();
    u.ctx.font = fontOf(ratio);
    const placed = chartLabels.assignLanes(
      upright.map((mark) => ({ ...mark, at: left + shareOf(mark.x) * (right - left) })),
      (text) => u.ctx.measureText(text).width, [left, right], 8 * ratio);
    u.ctx.restore();
    return placed;
  }
  function strokeLine(ctx, from, to) {
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
  }
  function writeText(ctx, text, x, y, hue, ratio) {
    ctx.strokeStyle = css("back");
    ctx.lineWidth = 3 * ratio;
    ctx.strokeText(text, x, y);
    ctx.fillStyle = css(hue);
    ctx.fillText(text, x, y);
  }

  // ``above``: CSS pixels between the plot and the lowest lane; ``series``: those whose points no text should hide.
  function drawMarks(u, marks, above = 0, series = []) {
    const { ctx, bbox } = u, ratio = uPlot.pxRatio;
    const upright = marks.filter((mark) => isUpright(mark) && isVisible(u, mark));
    ctx.save();
    ctx.font = fontOf(ratio);
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.lineJoin = "round";
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    ctx.globalAlpha = upright.length > 12 ? 0.35 : 1;   // as the blocks of two arms: fainter than what is measured
    for (const mark of upright) {
      ctx.strokeStyle = css(mark.hue || "mark");
      ctx.lineWidth = 1.2 * ratio;
      strokeLine(ctx, [toX(u, mark.x), bbox.top - above * ratio], [toX(u, mark.x), bbox.top + bbox.height]);
    }
    ctx.globalAlpha = 1;
    ctx.setLineDash([]);
    const { placed } = layOutUpright(u, marks, [bbox.left, bbox.left + bbox.width], ratio);
    for (const { mark, text, lane, left } of placed) {
      const y = bbox.top - above * ratio - rowHeight() * ratio * (lane + 0.5);
      writeText(ctx, text, left, y, mark.hue || "mark", ratio);
    }
    drawLevels(u, marks.filter((mark) => isNumber(mark.y)), upright, series.flatMap((one) => listObstacles(u, one)));
    ctx.restore();
  }

  // The places of all points of the curves; x rises.
  function projectCurves(u) {
    const xs = u.data[0].map((x) => toX(u, x));
    return { xs, curves: u.data.slice(1).map((values) => values.map((value) => (isNumber(value) ? toY(u, value) : NaN))) };
  }
  // How much of the curves, of their points and of the upright lines a text would hide.
  function countHidden({ xs, curves }, lines, [left, top, right, bottom]) {
    const first = Math.max(chartScale.findIndexAt(xs, left), 0);
    const last = Math.min(chartScale.findIndexAt(xs, right) + 1, xs.length - 1);
    let hidden = lines.filter((x) => x >= left && x <= right).length;
    for (const ys of curves) {
      for (let i = first; i <= last; i++) {
        if (xs[i] >= left && xs[i] <= right && ys[i] >= top && ys[i] <= bottom) hidden++;
        const [low, high] = [Math.min(ys[i], ys[i - 1]), Math.max(ys[i], ys[i - 1])];
        if (xs[i] >= left && xs[i - 1] <= right && high >= top && low <= bottom) hidden++;
      }
    }
    return hidden;
  }

  // Boxes around the points that uPlot does not know, around their intervals, and where the texts of a path are likely. Of a
  // cloud none: it is everywhere.
  function listObstacles(u, series) {
    if (!["path", "rings", "dots"].includes(series.kind) || series.x.length > FEW_DOTS) return [];
    const ratio = uPlot.pxRatio, size = 6 * ratio, high = rowHeight() * ratio;
    return listPlaces(u, series).flatMap(([x, y, i]) => {
      const boxes = [[x - size, y - size, x + size, y + size]];
      if (isNumber(series.high?.[i])) boxes.push([x - size, toY(u, series.high[i]), x + size, toY(u, series.low[i] ?? series.y[i])]);
      if (series.labels?.[i]) boxes.push([x, y - size - high, x + 2 * size + u.ctx.measureText(series.labels[i]).width, y]);
      return boxes;
    });
  }
  // A text beside each level line where it hides least; one of a line beyond the plot at the upper edge, with an arrow.
  function drawLevels(u, marks, upright, obstacles) {
    const { ctx, bbox } = u, ratio = uPlot.pxRatio, high = rowHeight() * ratio, gap = 4 * ratio;
    const [right, bottom] = [bbox.left + bbox.width, bbox.top + bbox.height];
    if (!marks.length) return;
    const taken = [], places = projectCurves(u), linesAt = upright.map((mark) => toX(u, mark.x));
    const isBeyond = (mark) => mark.y > u.scales.y.max;
    const shown = marks.filter((mark) => mark.y >= u.scales.y.min).sort((a, b) => isBeyond(a) - isBeyond(b));
    for (const mark of shown) {
      const at = toY(u, mark.y), text = isBeyond(mark) ? `${mark.text} \u2191` : mark.text;
      const width = ctx.measureText(text).width;
      if (!isBeyond(mark)) {
        ctx.setLineDash([5 * ratio, 4 * ratio]);
        ctx.strokeStyle = css(mark.hue || "mark");
        ctx.lineWidth = 1.2 * ratio;
        strokeLine(ctx, [bbox.left, at], [right, at]);
        ctx.setLineDash([]);
      }
      const middles = isBeyond(mark)
        ? [0.5, 1.5, 2.5].map((row) => bbox.top + high * row)
        : [at - high / 2, at + high / 2].filter((y) => y - high / 2 >= bbox.top && y + high / 2 <= bottom);
      const beside = linesAt.flatMap((x) => [x - width - gap, x + gap]);
      const edges = [right - width - gap, bbox.left + gap, ...beside, (bbox.left + right - width) / 2]
        .filter((x) => x >= bbox.left && x + width <= right);
      const boxes = middles.flatMap((y) => edges.map((x) => [x - gap / 2, y - high / 2 + 1, x + width + gap / 2, y + high / 2 - 1]));
      const free = boxes.filter((box) => !taken.some((other) => chartLabels.overlap(box, other)));
      const countMet = (box) => obstacles.filter((other) => chartLabels.overlap(box, other)).length;
      const costs = free.map((box) => countHidden(places, linesAt, box) + countMet(box));
      const box = free.length ? free[costs.indexOf(Math.min(...costs))]
        : moveAside([right - width - gap, isBeyond(mark) ? bbox.top + high / 2 : at, width], high, taken, [bbox.top, bottom]);
      taken.push(box);
      writeText(ctx, text, box[0] + gap / 2, (box[1] + box[3]) / 2, mark.hue || "mark", ratio);
    }
  }
  // No place beside the line is free: the text stands at the right edge, above or below those that are there.
  function moveAside([x, at, width], high, taken, [top, bottom]) {
    const levels = Array.from({ length: Math.floor((bottom - top) / high) }, (_, row) => top + high * (row + 0.5));
    const boxes = levels.sort((a, b) => Math.abs(a - at) - Math.abs(b - at))
      .map((y) => [x, y - high / 2 + 1, x + width + 4, y + high / 2 - 1]);
    return boxes.length ? chartLabels.chooseBox(boxes, taken) : [x, at - high / 2, x + width, at + high / 2];
  }

  // -- swatches ----------------------------------------------------------------------------------------------------------

  const OUTLINES = {
    line: "M0 5H28", steps: "M0 8H9V3H19V6H28", fill: "M0 10V6L9 3L18 6L28 1V10Z", area: "M0 10V4H9V2H19V5H28V10Z", stack: "M0 10V1H28V10Z",
    dots: "M11 5a3 3 0 1 1 6 0a3 3 0 1 1-6 0Z", rings: "M11 5a3 3 0 1 1 6 0a3 3 0 1 1-6 0Z",
    squares: "M11 2H17V8H11Z", diamonds: "M14 1L18 5L14 9L10 5Z", path: "M0 5H28M11 5a3 3 0 1 1 6 0a3 3 0 1 1-6 0Z",
    band: "M0 1H28V9H0Z", strip: "M4 10V5H9V10ZM12 10V1H17V10ZM20 10V7H25V10Z",
  };
  const RINGS = ["rings", "squares", "diamonds"];
  const FILLS = { dots: 100, path: 100, strip: 100, fill: 28, area: 28, stack: 75, band: 20 };   // percent of the colour
  const outlineOf = (kind, rank) => (kind === "rings" ? RINGS[Math.min(rank, 2)] : kind || "line");

  // dash: its strokes and gaps.
  function makeSwatch(kind, hue, dash, rank = 0) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const shape = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("viewBox", "0 0 28 10");
    svg.setAttribute("aria-hidden", "true");
    shape.setAttribute("d", OUTLINES[outlineOf(kind, rank)]);
    shape.style.stroke = `var(--${hue})`;
    shape.style.strokeWidth = "2";
    shape.style.strokeDasharray = dash ? dash.join(" ") : "";
    const percent = FILLS[kind];
    shape.style.fill = percent ? `color-mix(in srgb, var(--${hue}) ${percent}%, var(--back))` : "none";
    svg.append(shape);
    return svg;
  }

  const DRAWERS = { dots: drawDots, rings: drawRings, path: drawPath, band: drawBand };
  return {
    css, letters, rowHeight, fontOf, mixed, narrow, FILLS, STRIP_HEIGHT, FEW_DOTS,
    DRAWERS, drawIntervals, drawStrip, drawMarks, layOutUpright, makeSwatch,
  };
})();
