// What the live page computes from the points of the history: columns of its charts, without a browser.
"use strict";
const liveValues = (() => {
  const RATE_S = 5;        // seconds that a rate is of
  const SHORTEST_S = 30;   // the time axis is at least so long
  const AHEAD = 1.6;       // the time axis shows at most so many times what is over, towards the planned end
  const SILENT_MS = 3000;  // without news for longer, what the page shows is old
  // Places in a point of the history: live_page_tallies.py, LiveSample. Those with _S are totals over time.
  const AT = 0, USERS = 1, LIMIT = 2, USED_S = 3, WAITING_S = 4, DECODING_S = 5, TTFT = 6, ITL = 7, TOKENS = 8, OK = 9;
  const FAILED = 10, SERVER = 11, LATENCY = 12, IN_FLIGHT_AT = 13;

  // The index of the first point after the hole in the readings that lies before each point.
  function findStarts(points, holes) {
    let start = 0, hole = 0;
    return points.map((point, i) => {
      while (hole < holes.length && holes[hole][0] < point[AT]) {
        if (i > start && points[i - 1][AT] <= holes[hole][0]) start = i;
        hole += 1;
      }
      return start;
    });
  }

  // As a page writes it: whole from 100 on, else one or two decimals.
  function round(value) {
    if (value >= 100) return Math.round(value);
    return Number(value.toFixed(value >= 1 ? 1 : 2));
  }

  // Of a total: its growth per second over the last seconds, whichever points are left. Of requests that is their rate, of
  // request-seconds the mean number of requests. A hole in the readings is in no rate. Points are a little more than a second
  // apart: five of them take 5.02 s.
  function findRates(points, holes, of, at = AT) {
    const starts = findStarts(points, holes);
    return points.map((point, i) => {
      let j = i;
      while (j > starts[i] && point[AT] - points[j - 1][AT] <= RATE_S + 0.5) j--;
      if (j === i && i > starts[i]) j--;
      if (j === i && i > 0) return null;
      const seconds = point[at] - (i ? points[j][at] : 0);
      return seconds > 0 ? round((of(point) - (i ? of(points[j]) : 0)) / seconds) : null;
    });
  }
  // Percentiles with the number of values that each needs at least.
  const NEEDS = { p50: 2, p90: 10, p95: 20, p99: 100 };
  const isFew = (name, count) => count < NEEDS[name];
  // A percentile with the marks of the report: a star where there are too few values, a tilde where it may be off.
  const markPercentile = (text, name, count, inexact = []) => `${inexact.includes(name) ? "~" : ""}${text}${isFew(name, count) ? "*" : ""}`;
  // What stands beside the percentiles of a chart: how many values they are of, and which are of too few.
  function describeCount(count) {
    if (!count) return "last 10 s";
    const few = ["p50", "p95", "p99"].filter((name) => isFew(name, count));
    return `last 10 s, ${chartFormat.brief(count)} requests${few.length ? `; too few for ${few.join(", ")}` : ""}`;
  }
  // What the server's own metrics said last. After the end that is no state of the server.
  function describeEngine(facts, isOver) {
    if (!facts.length) return "Its metrics have no answer.";
    return `${isOver ? "At the last reading: " : ""}${facts.join(" · ")}`;
  }
  const sum = (values) => values.reduce((total, value) => total + value, 0);

  // The x of the points, with one in each hole; and a column with nothing there.
  function breakAtHoles(points, holes, columns) {
    const [x, broken] = [[], columns.map(() => [])];
    points.forEach((point, i) => {
      const before = i ? points[i - 1][AT] : -Infinity;
      for (const [from, to] of holes) {
        if (from < before || from >= point[AT] || i === 0) continue;
        x.push(Math.min((from + to) / 2, point[AT] - 1e-3));
        broken.forEach((column) => column.push(null));
      }
      x.push(point[AT]);
      columns.forEach((column, k) => broken[k].push(column[i] ?? null));
    });
    return { x, columns: broken };
  }

  // The end of the time axis: the planned end of the run, but not so far ahead that what there is gets narrow.
  function findEnd(now, planned) {
    const far = planned === null ? now : Math.min(planned, now * AHEAD);
    return Math.max(SHORTEST_S, now, far);
  }

  // The seconds of warmup and measurement together. null: nobody knows.
  function findPlanned(progress) {
    if (!progress || progress.phase === "grace") return null;
    const planned = progress.segments.map(([, seconds]) => seconds);
    return planned.includes(null) ? null : sum(planned);
  }

  // How much of the run is over, 0 to 1. null: nobody knows.
  function findShare(progress) {
    if (!progress) return null;
    const planned = progress.segments.map(([, seconds]) => seconds);
    if (!planned.includes(null) && sum(planned) > 0) {
      const over = progress.segments.map(([, seconds, done]) => Math.min(seconds, done));
      return sum(over) / sum(planned);
    }
    return progress.share;
  }

  // The alert of the page itself: it has no news. null: it has.
  function describeSilence(ageMs) {
    if (ageMs <= SILENT_MS) return null;
    const seconds = Math.floor(ageMs / 1000);
    return {
      kind: "page", level: "bad", since: null,
      text: `No news from the load generator for ${seconds} s: it has ended, or hangs. The page shows its last values`,
    };
  }

  return {
    RATE_S, SILENT_MS, AT, USERS, LIMIT, USED_S, WAITING_S, DECODING_S, TTFT, ITL, TOKENS, OK, FAILED, SERVER, LATENCY, IN_FLIGHT_AT,
    findRates, breakAtHoles, findEnd, findPlanned, findShare, describeSilence, describeCount, describeEngine, isFew, markPercentile, sum,
  };
})();
