// The page of all runs: sorts and searches them, opens their reports, compares two, and fills the form with one of them.
"use strict";
{
  const MOST = 8;   // so many runs fit into a comparison
  const by = (id) => document.getElementById(id);
  const { isNumber, brief, duration, date } = chartFormat;
  const KINDS = { PASS: "pass", OK: "pass", FAIL: "loud", INVALID: "loud", INCONCLUSIVE: "open", DEGRADED: "open" };
  // [head, value to sort by, text]
  const COLUMNS = [
    ["Run", (run) => run.name, (run) => run.name],
    ["Started", (run) => run.at, (run) => date(run.at)],
    ["Model", (run) => run.model, (run) => run.model],
    ["Load", (run) => run.load, (run) => run.load],
    ["Duration", (run) => run.duration_s, (run) => (isNumber(run.duration_s) ? duration(run.duration_s) : "")],
    ["TTFT p95", (run) => run.ttft_p95_ms, (run) => ms(run.ttft_p95_ms)],
    ["ITL p95", (run) => run.itl_p95_ms, (run) => ms(run.itl_p95_ms)],
    ["Tokens/s", (run) => run.tokens_per_s, (run) => (isNumber(run.tokens_per_s) ? brief(run.tokens_per_s) : "")],
    ["Errors", (run) => run.failure_rate, (run) => (isNumber(run.failure_rate) ? brief(run.failure_rate * 100, "%", 3) : "")],
    ["SLO", (run) => run.status, (run) => run.status],
    ["Client", (run) => run.client, (run) => run.client],
  ];
  const WORDS = [0, 2, 3, 9, 10];   // columns of text
  const ms = (value) => (isNumber(value) ? duration(value / 1e3) : "");
  const ticked = new Set();
  let runs = [], column = 1, isRising = false;

  function element(name, text = "", kind = "") {
    const made = document.createElement(name);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  }
  function linkTo(href, text, isOutside = true) {
    const link = element("a", text);
    link.href = href;
    if (isOutside) link.target = "_blank";
    return link;
  }
  const addressOf = (run, file) => `runs/${encodeURIComponent(run.name)}/${file}`;
  const hasReport = (run) => run.files.some(([file]) => file === "report.html");

  function compareValues(a, b) {
    const [one, other] = [a, b].map(COLUMNS[column][1]);
    const [isMissing, otherIsMissing] = [one, other].map((value) => value === null || value === "");
    if (isMissing || otherIsMissing) return isMissing - otherIsMissing;   // last, however it is sorted
    const order = typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
    return isRising ? order : -order;
  }

  function showHead() {
    const row = element("tr");
    row.append(element("td"));
    COLUMNS.forEach(([text], i) => {
      const head = element("th"), button = element("button", text);
      head.scope = "col";
      head.className = WORDS.includes(i) ? "words" : "";
      if (i === column) head.setAttribute("aria-sort", isRising ? "ascending" : "descending");
      button.type = "button";
      button.addEventListener("click", () => {
        isRising = i === column ? !isRising : WORDS.includes(i);
        column = i;
        show();
        by("count").closest("main").querySelectorAll("thead button")[i].focus();
      });
      head.append(button);
      row.append(head);
    });
    row.append(element("th", "Files"), element("td"));
    document.querySelector("thead").replaceChildren(row);
  }

  function makeRow(run) {
    const row = element("tr"), pick = element("td"), box = element("input");
    box.type = "checkbox";
    box.checked = ticked.has(run.name);
    box.disabled = !hasReport(run);
    box.setAttribute("aria-label", `Compare ${run.name}`);
    box.addEventListener("change", () => {
      if (box.checked) ticked.add(run.name);
      else ticked.delete(run.name);
      showCompare();
    });
    pick.append(box);
    row.append(pick);
    COLUMNS.forEach(([, , write], i) => {
      const cell = element(i ? "td" : "th", i ? write(run) : "", [KINDS[write(run)], WORDS.includes(i) && "words"].filter(Boolean).join(" "));
      if (!i) cell.append(hasReport(run) ? linkTo(addressOf(run, "report.html"), run.name) : run.name);
      row.append(cell);
    });
    const files = element("td"), more = element("details"), again = element("td");
    const count = element("summary", String(run.files.length));
    count.setAttribute("aria-label", `${chartFormat.count(run.files.length, "file")} of ${run.name}`);
    more.append(count, ...run.files.map(([file, what]) => linkTo(addressOf(run, file), what)));
    files.append(more);
    again.append(linkTo(`new?${new URLSearchParams([["like", run.name]])}`, "Run again", false));
    row.append(files, again);
    return row;
  }

  function showCompare() {
    const chosen = runs.filter((run) => ticked.has(run.name)).sort((a, b) => a.at - b.at);
    const isPossible = chosen.length > 1 && chosen.length <= MOST;
    by("compare").setAttribute("aria-disabled", String(!isPossible));
    if (isPossible) by("compare").href = `compare?${new URLSearchParams(chosen.map((run) => ["run", run.name]))}`;
    else by("compare").removeAttribute("href");
  }

  function show() {
    const words = by("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = runs.filter((run) => {
      const text = COLUMNS.map(([, , write]) => write(run)).join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    by("count").textContent = found.length === runs.length ? `${runs.length} runs` : `${found.length} of ${runs.length} runs`;
    showHead();
    document.querySelector("tbody").replaceChildren(...found.sort(compareValues).map(makeRow));
    showCompare();
  }

  by("bar").addEventListener("submit", (event) => event.preventDefault());
  by("search").addEventListener("input", show);
  fetch("runs").then((answer) => answer.json()).then((answer) => {
    ({ runs } = answer);
    show();
  }).catch(() => {
    by("count").textContent = "The list of runs cannot be read. Check whether the load generator still runs.";
  });
}
