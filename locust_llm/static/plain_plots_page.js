// Pages that show plots and nothing else of their own: history, what-if.
"use strict";
{
  const boxes = [...document.querySelectorAll(".canvas")];
  const waiting = new Map(JSON.parse(document.getElementById("plots").textContent).map((plot, i) => [boxes[i], plot]));
  // A plot in closed details has no width: it is drawn when they open.
  function draw(isShown) {
    for (const [box, plot] of waiting) {
      if (!isShown(box)) continue;
      waiting.delete(box);
      const chart = chartTools.attach(charts.draw(box, plot));
      chartTools.addButtons(box.closest("figure"), chart);
    }
  }
  const drawShown = () => draw((box) => !box.closest("details:not([open])"));
  function openNamed() {
    const named = document.getElementById(location.hash.slice(1));
    if (named instanceof HTMLDetailsElement) named.open = true;
  }
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", drawShown);
  addEventListener("hashchange", openNamed);
  addEventListener("beforeprint", () => draw(() => true));
  openNamed();
  drawShown();
}
