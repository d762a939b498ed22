// What Material for MkDocs leaves out for keyboards and screen readers: names, and a way to scroll a wide table.
"use strict";
addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  document.querySelectorAll(".md-code__nav").forEach((nav, i) => nav.setAttribute("aria-label", `Code ${i + 1}`));
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
  for (const head of document.querySelectorAll("th:empty")) head.replaceWith(document.createElement("td"));
});
