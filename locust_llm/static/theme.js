// The theme of a page: Locust's button for dark and light decides, where it was ever used; else the system does.
"use strict";
(() => {
  function theme() {
    const chosen = localStorage.getItem("theme");
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
  theme();
  addEventListener("storage", theme);
})();
