// The theme of a page: what somebody chose, here or with Locust's button for dark and light, else the system's.
"use strict";
const pageTheme = (() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let own = "";   // of a page that may keep nothing: a report in a sandbox
  function findChosen() {
    try {
      return localStorage.getItem("theme") || own;
    } catch {
      return own;
    }
  }
  const findShown = () => findChosen() || (dark.matches ? "dark" : "light");

  function apply() {
    const chosen = findChosen();
    if (!chosen) return;
    document.documentElement.style.colorScheme = chosen;
    for (const sheet of document.styleSheets) {
      for (const rule of sheet.cssRules) {
        if (rule instanceof CSSMediaRule && (rule.was || rule.media.mediaText).includes("prefers-color-scheme: dark")) {
          rule.was = "prefers-color-scheme: dark";
          rule.media.mediaText = chosen === "dark" ? "all" : "not all";
        }
      }
    }
  }
  function toggle() {
    own = findShown() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("theme", own);
    } catch {
      // it holds for this page until it is closed
    }
    dispatchEvent(new StorageEvent("storage", { key: "theme" }));
  }
  apply();
  addEventListener("storage", apply);
  return { toggle, findShown };
})();
