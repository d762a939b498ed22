// The scripts of the pages (plain scripts, each with one global) and their tests.
import js from "@eslint/js";
import globals from "globals";

const OWN = {
  uPlot: "readonly", chartFormat: "readonly", chartScale: "readonly", chartLabels: "readonly", chartShapes: "readonly",
  charts: "readonly", chartTools: "readonly", drawTimeline: "readonly", labelParts: "readonly",
  liveValues: "readonly", liveCharts: "readonly", liveSide: "readonly",
  runGoals: "readonly", ruleRows: "readonly",
  requestTable: "readonly", requestPlots: "readonly", requestView: "readonly",
  pageTheme: "readonly", reportTools: "readonly", termTips: "readonly",
};

export default [
  { ignores: ["**/*.min.js", "**/node_modules/**", ".*/**", "site/**", "build/**"] },
  js.configs.recommended,
  {
    rules: {
      eqeqeq: "error", "no-var": "error", "prefer-const": ["error", { destructuring: "all" }], "no-shadow": "error",
      complexity: ["error", 15], "no-nested-ternary": "error", "no-unused-expressions": "error",
    },
  },
  {
    files: ["locust_llm/static/*.js"],
    languageOptions: { sourceType: "script", globals: { ...globals.browser, ...OWN } },
    rules: { strict: ["error", "global"], "no-redeclare": ["error", { builtinGlobals: false }],
      "no-unused-vars": ["error", { varsIgnorePattern: `^(${Object.keys(OWN).join("|")})$` }] },
  },
  { files: ["docs/*.js"], languageOptions: { sourceType: "script", globals: globals.browser } },
  { files: ["tests/js/*.js"], languageOptions: { sourceType: "commonjs", globals: globals.node } },
];
