// Pages that show plots and nothing else of their own: history, what-if.
"use strict";
{
  const boxes = document.querySelectorAll(".canvas");
  JSON.parse(document.getElementById("plots").textContent).forEach((plot, i) => {
    const chart = chartTools.attach(charts.draw(boxes[i], plot));
    chartTools.addButtons(boxes[i].closest("figure"), chart);
  });
}
