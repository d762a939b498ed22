// Which values a chart shows: ranges of its axes, ticks, and holes in readings. No drawing: tests/js/ tests it.
"use strict";
const chartScale = (() => {
  const { isNumber } = chartFormat;
  const ROOM = 0.07;                // of the height, above the highest value
  const HOLDING = ["steps", "area", "stack", "band"];   // their values hold up to the next x
  const FAR = 2.5, FAR_LOG = 10;    // a limit so many times above all values does not stretch the axis

  // Seconds between ticks.
  const TIMES = [
    ...[1e-3, 1e-2, 0.1, 1].flatMap((power) => [power, 2 * power, 5 * power]),
    10, 15, 30,
    ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60),
    ...[1, 2, 5, 10, 24].map((hours) => hours * 3600),
  ];

  function findExtent(values, log = 0) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (!isNumber(value) || (log && value <= 0)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    return low <= high ? [low, high] : null;
  }
  const widen = ([low, high]) => [low, high > low ? high : low + 1];

  function findXRange(axis, series) {
    const [least, most] = findExtent(series.flatMap((one) => [...one.x, ...(one.x_low ?? []), ...(one.x_high ?? [])]), axis.log) ?? [axis.log ? 1 : 0, axis.log ? 10 : 1];
    const room = axis.log ? Math.pow(most / least, 0.06) * 1.05 : 1;
    return widen([axis.low ?? least / room, axis.high ?? most * room]);
  }

  // The values of a series whose x lies in the range; all of them where there is no range.
  function* listVisibleValues(series, range) {
    const columns = [series.y, series.low ?? [], series.high ?? []];
    const holds = HOLDING.includes(series.kind);
    for (let i = 0; i < series.x.length; i++) {
      const holdsUntil = holds ? series.x[i + 1] ?? series.x[i] : series.x[i];
      if (range && (holdsUntil < range[0] || series.x[i] > range[1])) continue;
      for (const column of columns) yield column[i];
    }
  }

  // The range of y over the visible values, with the limits that are near them; room for texts at the upper edge where a
  // limit lies beyond it.
  function findYRange(axis, series, limits, range = null) {
    const visible = (within) => findExtent(series.flatMap((one) => [...listVisibleValues(one, within)]), axis.log);
    const [least, most] = visible(range) ?? visible(null) ?? (axis.log ? [1, 10] : [0, 1]);
    const reach = most * (axis.log ? FAR_LOG : FAR);
    const near = limits.filter((limit) => limit <= reach || most <= 0);
    const highest = Math.max(most, ...near);
    const lowest = Math.min(least, ...near);
    const above = ROOM + (near.length < limits.length ? 0.08 : 0);
    const [low, high] = axis.log ? widenByRatio(lowest, highest, above) : widenBySum(axis, lowest, highest, above);
    return widen([axis.low ?? low, axis.high ?? high]);
  }
  function widenByRatio(lowest, highest, above) {
    const room = Math.pow(highest / lowest, above) * 1.05;
    return [lowest / room, highest * room];
  }
  // From zero, but where the axis is ``free``: there from below the lowest value.
  function widenBySum(axis, lowest, highest, above) {
    const span = highest - lowest || Math.abs(highest) || 1;
    const low = axis.low ?? (axis.free ? lowest - span * ROOM : Math.min(0, lowest));
    return [low, highest + (highest - low) * above];
  }

  const FINEST = [1, 1.5, 2, 3, 4, 5, 7];
  // Of a logarithmic axis: powers of the base, and twice and five times those of 10 where there is room.
  function findLogTicks(base, low, high, most) {
    const powerOf = (value) => Math.log(value) / Math.log(base) + 1e-9;   // of 1,000 that is 2.9999999999999996 else
    const powers = [];
    for (let p = Math.floor(powerOf(low)); p <= powerOf(high); p++) powers.push(p);
    const keepWithin = (values) => values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    const fine = base === 10 ? keepWithin(powers.flatMap((p) => [1, 2, 5].map((m) => m * 10 ** p))) : [];
    if (fine.length > 1 && fine.length <= most) return fine;
    // less than a decade: one tick does not say where the others would be
    const finest = base === 10 ? keepWithin(powers.flatMap((p) => FINEST.map((m) => m * 10 ** p))) : [];
    if (fine.length < 2 && finest.length > 1 && finest.length <= most) return finest;
    if (fine.length && fine.length <= most) return fine;
    const whole = keepWithin(powers.map((p) => base ** p));
    return whole.filter((_, i) => i % Math.ceil(whole.length / most) === 0);
  }

  // Between two readings that lie further apart than ``ratio`` times the usual distance there is nothing: a hole breaks the
  // line. 0: there are no holes.
  function breakAtGaps(x, y, ratio) {
    const steps = x.slice(1).map((at, i) => at - x[i]).sort((a, b) => a - b);
    if (!ratio || !steps.length) return [x, y];
    const longest = ratio * steps[steps.length >> 1];
    const [brokenX, brokenY] = [[], []];
    x.forEach((at, i) => {
      if (i && at - x[i - 1] > longest) {
        brokenX.push((at + x[i - 1]) / 2);
        brokenY.push(null);
      }
      brokenX.push(at);
      brokenY.push(y[i]);
    });
    return [brokenX, brokenY];
  }

  // Series on top of each other: each begins where the one below it ends. A value that is missing counts as 0.
  function stack(columns) {
    const sums = [];
    return columns.map((column) => column.map((value, i) => {
      sums[i] = (sums[i] ?? 0) + (isNumber(value) ? value : 0);
      return isNumber(value) ? sums[i] : null;
    }));
  }

  // The index of the value that holds at ``at``: the last x that is not after it. -1: before all.
  function findIndexAt(x, at) {
    let low = 0, high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] <= at) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  // The range that a drag from one x to another chooses; null: too short to be meant.
  function makeRange(from, to, [low, high], least = 0.002) {
    const [left, right] = [Math.max(Math.min(from, to), low), Math.min(Math.max(from, to), high)];
    return right - left >= least * (high - low) ? [left, right] : null;
  }

  return { TIMES, findExtent, findXRange, findYRange, findLogTicks, breakAtGaps, stack, findIndexAt, makeRange };
})();
