// Rows of SLO rules: a rule as the parts of a row, its text as on the command line, and what is wrong with a row.
"use strict";
const ruleRows = (() => {
  const STATISTICS = ["avg", "min", "med", "p90", "p95", "p99", "max"];
  const WITHIN = "within";
  const OPERATORS = ["<", "<=", ">", ">=", WITHIN];
  const RULE = /^(\w+)(?:\s+(avg|min|max|med|p\d+(?:\.\d+)?))?\s*(?:(<=|>=|<|>)\s*(.*)|\s(within)\s+(.*?)\s*\bof\s+base)$/i;
  const LIMIT = /^((?:\d+(?:\.\d*)?|\.\d+)?)\s*(\D*)$/;

  const isShare = (metric) => metric.units.includes("%");
  // Of what two arms differ by: a share in percentage points, anything else also in percent.
  function unitsOf(metric, op) {
    if (op !== WITHIN) return metric.units;
    return isShare(metric) ? ["pp"] : ["%", ...metric.units];
  }

  // ``metrics`` by word. A row has either ``text`` or the other parts; what no row can hold stays a text.
  function parseRule(text, metrics) {
    const parts = RULE.exec(text.trim());
    const metric = parts && metrics.get(parts[1].toLowerCase());
    if (!metric) return { text };
    const op = (parts[3] ?? parts[5]).toLowerCase(), stat = (parts[2] ?? "").toLowerCase();
    const limit = LIMIT.exec(parts[4] ?? parts[6]);
    if (!limit || Boolean(stat) !== metric.has_statistic) return { text };
    const unit = limit[2].trim().toLowerCase() || (metric.units.includes("/s") ? "/s" : "");
    if (!unitsOf(metric, op).includes(unit)) return { text };
    return { metric: metric.word, stat, op, number: limit[1], unit };
  }
  function formatRule(row) {
    if ("text" in row) return row.text.trim();
    const limit = `${row.number.trim()}${row.unit}`;
    return [row.metric, row.stat, row.op, row.op === WITHIN ? `${limit} of base` : limit].filter(Boolean).join(" ");
  }
  // Of two arms the first unit is the usual one; of times ms is.
  const usualUnit = (units) => (units[0] !== "%" && units.includes("ms") ? "ms" : units[0]);
  function newRow(metric) {
    return { metric: metric.word, stat: metric.has_statistic ? "p95" : "", op: metric.less_is_better ? "<" : ">=", number: "", unit: usualUnit(metric.units) };
  }
  // A row with another metric keeps what fits.
  function changeMetric(row, metric) {
    const fresh = newRow(metric);
    const op = row.op === WITHIN ? WITHIN : fresh.op;
    const units = unitsOf(metric, op);
    return { ...fresh, op, stat: metric.has_statistic ? row.stat || fresh.stat : "", number: row.number, unit: units.includes(row.unit) ? row.unit : usualUnit(units) };
  }
  function changeOperator(row, op, metric) {
    const units = unitsOf(metric, op);
    const isOther = (op === WITHIN) !== (row.op === WITHIN);
    return { ...row, op, unit: isOther ? usualUnit(units) : row.unit };
  }
  // A sentence, or nothing.
  function findMistake(row) {
    if ("text" in row) return row.text.trim() ? "" : "Write an SLO such as ttft p95 < 500ms, or remove the row.";
    const number = row.number.trim();
    if (!number) return "Give a limit.";
    if (!/^(\d+(\.\d*)?|\.\d+)$/.test(number)) return `The limit is a number such as 500 or 0.5, not ${number}.`;
    if (row.unit === "%" && row.op !== WITHIN && Number(number) > 100) return "A share is at most 100 %.";
    return "";
  }
  // The row that a refusal of the load generator is about: "SLO 'ttft p95 < 5': the limit of ttft has no unit".
  function findRefused(message, texts) {
    const parts = /^SLO (['"])(.*?)\1: (.*)$/s.exec(message);
    if (!parts) return null;
    const quoted = parts[2].replace(/(\.\.\.|…)$/, "");
    const index = texts.findIndex((text) => text === parts[2] || text.startsWith(quoted));
    return index < 0 ? null : { index, why: parts[3] };
  }

  return { STATISTICS, OPERATORS, WITHIN, unitsOf, parseRule, formatRule, newRow, changeMetric, changeOperator, findMistake, findRefused };
})();
