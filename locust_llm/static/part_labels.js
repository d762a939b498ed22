// The parts of a latency are drawn by latency_breakdown_display.py. Here: a part that is wide enough has its name in it.
"use strict";
function labelParts(bar) {
  const LEAST = 60, ROOM = 12;   // CSS pixels: of a part with a name, and beside the name

  // Black on light colours, white on dark ones: relative luminance as in WCAG.
  function chooseInk(color) {
    const [red, green, blue] = color.match(/[\d.]+/g).map((value) => (value / 255) ** 2.2);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#111" : "#fff";
  }
  function makeText(part, name) {
    const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
    text.textContent = name;
    text.setAttribute("x", part.getAttribute("x"));
    text.setAttribute("dx", ROOM / 2);
    text.setAttribute("y", "50%");
    text.setAttribute("dy", ".35em");
    if (part.classList.contains("estimated")) text.setAttribute("class", "over-hatch");
    else text.style.fill = chooseInk(getComputedStyle(part).fill);
    return text;
  }
  function write() {
    bar.querySelectorAll("text").forEach((text) => text.remove());
    for (const part of bar.querySelectorAll("rect.part")) {
      const [name] = (part.querySelector("title")?.textContent ?? "").split(": "), { width } = part.getBoundingClientRect();
      if (!name || width < LEAST) continue;
      const text = makeText(part, name);
      bar.append(text);
      if (text.getComputedTextLength() + ROOM > width) text.remove();
    }
  }
  new ResizeObserver(write).observe(bar);
}
