// A timeline is drawn by timeline_svg.py. Here: which request a line is, under the pointer or by the arrow keys.
"use strict";
function drawTimeline(box) {
  const rows = [...box.querySelectorAll(".row")], output = box.parentElement.querySelector(".chosen-line");
  let chosen = -1;
  function choose(row) {
    rows[chosen]?.classList.remove("chosen");
    rows[row]?.classList.add("chosen");
    chosen = row;
    output.textContent = rows[row]?.querySelector("title").textContent ?? "";
  }
  const under = (event) => choose(rows.indexOf(event.target.closest(".row")));
  box.addEventListener("pointermove", under);
  box.addEventListener("pointerdown", under);
  box.addEventListener("pointerleave", () => choose(-1));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(Math.max(chosen + step, 0), rows.length - 1));
  });
}
