// The report page: its plots, the list of contents, and what is folded away.
"use strict";
{
  const boxes = document.querySelectorAll(".canvas:not(.lines)");
  JSON.parse(document.getElementById("plots").textContent).forEach((plot, i) => {
    const chart = chartTools.attach(charts.draw(boxes[i], plot));
    chartTools.addButtons(boxes[i].closest("figure"), chart);
  });
  document.querySelectorAll(".lines").forEach(drawTimeline);

  const wide = matchMedia("(min-width: 75rem)"), contents = document.getElementById("contents");
  const fit = () => { contents.open = wide.matches; };
  wide.addEventListener("change", fit);
  fit();

  // A section that one goes to is unfolded.
  const unfold = (hash) => {
    const folded = hash && document.getElementById(hash.slice(1))?.querySelector("details");
    if (folded) folded.open = true;
  };
  contents.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    unfold(link.hash);
    fit();
  });
  addEventListener("hashchange", () => unfold(location.hash));
  unfold(location.hash);

  // On paper nothing is folded.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("section details:not([open])")];
    opened.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => opened.splice(0).forEach((details) => { details.open = false; }));
}
