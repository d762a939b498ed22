// Runs scripts of locust_llm/static as a page does, one after the other in one context, and returns their globals.
"use strict";
const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const vm = require("node:vm");

const GLOBALS = {
  "chart_format.js": "chartFormat", "chart_scale.js": "chartScale", "chart_labels.js": "chartLabels",
  "chart_shapes.js": "chartShapes", "draw_chart.js": "charts", "chart_tools.js": "chartTools",
  "live_values.js": "liveValues", "run_goals.js": "runGoals", "rule_rows.js": "ruleRows",
  "requests.js": "requestTable", "request_plots.js": "requestPlots",
  "requests_panel.js": "requestView", "report_tools.js": "reportTools", "term_tips.js": "termTips",
};
const STATIC = join(__dirname, "..", "..", "locust_llm", "static");

// What the scripts ask of a browser when they are loaded.
const BROWSER = {
  matchMedia: () => ({ matches: false, addEventListener() {} }),
  addEventListener() {},
  URLSearchParams,
};

function loadScripts() {
  const context = vm.createContext({ ...BROWSER });
  for (const name of Object.keys(GLOBALS)) vm.runInContext(readFileSync(join(STATIC, name), "utf-8"), context, { filename: name });
  return vm.runInContext(`({ ${Object.values(GLOBALS).join(", ")} })`, context);
}

// As the values of another context have other prototypes.
const plain = (value) => JSON.parse(JSON.stringify(value));

module.exports = { loadScripts, plain, STATIC };
