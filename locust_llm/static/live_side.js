// The side panel of the live page: where the time went, failures, the server, the last requests, the load generator.
"use strict";
const liveSide = (() => {
  const { SERVER, AT } = liveValues;
  const by = (id) => document.getElementById(id);
  const SPARK_S = 120;                     // seconds of the server's sparkline
  const SMALL = 0.01;                      // of the whole: a smaller part has no name beside the bar
  const ROW = 7, BAR = 5, LINE = 2;        // units: of a request's row, of its prefill, of its other parts
  const SEEN = 12;                         // the width of a failure, which may have taken no time
  const RUNNING = 0, WAITING = 1, KV_USED = 2, CACHE_HITS = 4;   // report/chart_data/server_chart_list.py, CHARTS

  function element(name, text, kind) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }
  function shape(name, attributes, kind) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (kind) made.setAttribute("class", kind);
    return made;
  }
  const many = (value) => (typeof value === "number" ? chartFormat.brief(Math.round(value), "", 15) : "–");
  const ms = (value) => (typeof value === "number" ? chartFormat.duration(value / 1e3) : "–");

  // -- where the time went -----------------------------------------------------------------------------------------------------

  // The first bar is of the last seconds, the second of a minute before; both in the scale of the longer one.
  function showParts({ parts: given }) {
    by("parts").hidden = !given?.count;
    if (!given?.count) return;
    const rows = [["now", given.parts], ...(given.before.length ? [["1 min ago", given.before]] : [])];
    const totals = rows.map(([, parts]) => liveValues.sum(parts.map(([, , value]) => value)));
    const longest = Math.max(...totals, 1e-6);
    by("parts").querySelector(".bars").replaceChildren(...rows.map(([name, parts], i) => makeBar(name, parts, totals[i], longest)));
    const shown = given.parts.filter(([, , value]) => value >= SMALL * totals[0]);
    by("parts").querySelector(".keys").replaceChildren(...shown.map(([name, label, value]) => {
      const key = element("li");
      key.append(element("i", undefined, `part ${name}`), `${label} `, element("small", ms(value)));
      return key;
    }));
  }
  function makeBar(name, parts, total, longest) {
    const row = element("div", undefined, "owner"), svg = shape("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none" }, "bar");
    let at = 0;
    for (const [part, , value] of parts) {
      const width = 1000 * value / longest;
      svg.append(shape("rect", { x: at, width, height: 10 }, `part ${part}`));
      at += width;
    }
    row.setAttribute("role", "img");
    row.setAttribute("aria-label", `${name}: ${ms(total)} from due to the first token: ${parts.map(([, label, value]) => `${label} ${ms(value)}`).join(", ")}`);
    row.append(element("span", name), svg, element("b", ms(total)));
    return row;
  }

  // -- failures ----------------------------------------------------------------------------------------------------------------

  function showFailures({ failures, ok, failed, ended_by_us: ended }) {
    const others = Object.entries(ended).map(([word, count]) => `${many(count)} ${word}`);
    const rows = failures.filter(([, count]) => count).map(([name, count, message]) => {
      const row = element("li");
      row.append(element("b", `${many(count)} × ${name}`), message && message !== name ? ` ${message}` : "");
      return row;
    });
    const all = ok + failed;
    if (!rows.length) rows.push(element("li", all ? `none in ${many(all)} requests` : "no request has ended", all ? "pass" : "plain"));
    if (others.length) rows.push(element("li", others.join(", "), "plain"));
    by("failures").querySelector("ul").replaceChildren(...rows);
    by("failures").classList.toggle("bad", failures.some(([, count]) => count));
  }

  // -- checks of answers, growth, ghost tokens -----------------------------------------------------------------------------------

  function showFindings({ answers = [], growth = [], ghosts = [] }) {
    for (const [place, rows] of [["checks", answers], ["growth", growth], ["ghosts", ghosts]]) {
      by(place).hidden = !rows.length;
      by(place).querySelector("dl").replaceChildren(...rows.flatMap((row) => [
        element("dt", row.label), element("dd", row.value, row.is_fault ? "loud" : ""),
      ]));
    }
  }

  // -- the server's own metrics --------------------------------------------------------------------------------------------------

  const valuesOf = (point, chart) => (point?.[SERVER]?.[chart] ?? []).filter((value) => typeof value === "number");
  function showEngine(points, isOver) {
    const last = points.at(-1);
    const total = (chart) => (valuesOf(last, chart).length ? liveValues.sum(valuesOf(last, chart)) : null);
    const most = (chart) => (valuesOf(last, chart).length ? Math.max(...valuesOf(last, chart)) : null);
    const facts = [
      [total(RUNNING), (value) => `${many(value)} running`], [total(WAITING), (value) => `${many(value)} waiting`],
      [most(KV_USED), (value) => `KV cache ${chartFormat.brief(value, "%", 3)}`],
      [most(CACHE_HITS), (value) => `prefix hits ${chartFormat.brief(value, "%", 3)}`],
    ].filter(([value]) => value !== null).map(([value, write]) => write(value));
    by("engine").hidden = !points.some((point) => valuesOf(point, RUNNING).length);
    if (by("engine").hidden) return;
    by("engine").querySelector("p").textContent = liveValues.describeEngine(facts, isOver);
    const shown = points.filter((point) => point[AT] >= last[AT] - SPARK_S && valuesOf(point, RUNNING).length);
    const heights = shown.map((point) => liveValues.sum(valuesOf(point, RUNNING)));
    const top = Math.max(...heights, 1), span = Math.max(last[AT] - (shown[0]?.[AT] ?? 0), 1);
    const places = shown.map((point, i) => `${100 * (point[AT] - shown[0][AT]) / span},${22 - 20 * heights[i] / top}`);
    const svg = by("engine").querySelector("svg");
    svg.setAttribute("aria-label", `Running in the server over the last ${Math.round(span)} s: at most ${many(top)}`);
    svg.replaceChildren(shape("polyline", { points: places.join(" ") }));
  }

  // -- the last requests -----------------------------------------------------------------------------------------------------------

  let texts = [], chosen = -1;
  function showRequests(drawing) {
    const box = by("requests").querySelector(".lines");
    by("requests").hidden = !drawing;
    if (!drawing || box.matches(":hover, :focus")) return;
    const width = 1000, to = (at) => width * at / drawing.length;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${ROW * drawing.lines.length}`, preserveAspectRatio: "none" });
    const bar = (row, from, until, height, kind) => shape("rect", {
      x: to(from), width: Math.max(to(until - from), 2), y: row * ROW + (ROW - height) / 2, height,
    }, kind);
    texts = [];
    drawing.lines.forEach(([asked, , sent, first, closed, stalls, outcome, text], row) => {
      const group = shape("g", {}, "row");
      group.append(shape("rect", { x: 0, width, y: row * ROW, height: ROW }, "back"));
      const begun = sent ?? closed;
      group.append(bar(row, asked, begun, LINE, "waits"));
      if (sent !== null) group.append(bar(row, sent, first ?? closed, BAR, outcome ? "stalls" : "prefills"));
      if (first !== null) group.append(bar(row, first, closed, LINE, outcome ? "stalls" : "decodes"));
      if (outcome) group.append(shape("rect", { x: Math.min(to(closed), width - SEEN), width: SEEN, y: row * ROW + 1, height: BAR }, "stalls"));
      for (const [from, until] of stalls) group.append(bar(row, from, until, LINE, "stalls"));
      svg.append(group);
      texts.push(text);
    });
    box.replaceChildren(svg);
    box.setAttribute("aria-label", `The last ${texts.length} requests over ${ms(drawing.length)}; arrow keys choose one`);
    choose(-1);
  }
  function choose(row) {
    const rows = by("requests").querySelectorAll(".row");
    rows[chosen]?.classList.remove("chosen");
    rows[row]?.classList.add("chosen");
    chosen = row;
    const output = by("requests").querySelector("output");
    output.textContent = texts[row] ?? "";
    output.hidden = !output.textContent;
    by("requests").querySelector(".keys").hidden = !output.hidden;
  }
  {
    const box = by("requests").querySelector(".lines");
    const under = (event) => choose([...box.querySelectorAll(".row")].indexOf(event.target.closest(".row")));
    box.addEventListener("pointermove", under);
    box.addEventListener("pointerdown", under);
    box.addEventListener("pointerleave", () => choose(-1));
    box.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      choose(Math.min(Math.max(chosen + step, 0), texts.length - 1));
    });
  }

  // -- the load generator ------------------------------------------------------------------------------------------------------------

  function showGenerator({ processes = [], client, state }) {
    const shares = processes.map(([, , share]) => share).filter((share) => typeof share === "number");
    const cpu = shares.length ? `${chartFormat.brief(100 * Math.max(...shares), "%", 2)} of a core${shares.length > 1 ? " at most" : ""}` : "";
    const count = processes.length === 1 ? "1 process" : `${processes.length} processes`;
    const unknown = state === "over" ? "" : "measurement not judged yet";
    const verdict = client ? `measurement ${client.level}` : unknown;
    const kind = { OK: "pass", DEGRADED: "open", INVALID: "loud" }[client?.level] ?? "plain";
    const facts = [processes.length ? count : "", cpu].filter(Boolean);
    const place = by("generator").querySelector("p");
    place.replaceChildren(facts.join(", "), facts.length && verdict ? " · " : "", element("span", verdict, kind));
  }

  return { element, many, ms, showParts, showFailures, showFindings, showEngine, showRequests, showGenerator };
})();
