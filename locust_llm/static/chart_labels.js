// Where the texts of marks stand, so that none is lost and none covers another. Sizes in pixels; no drawing.
"use strict";
const chartLabels = (() => {
  const MOST_LANES = 5;

  const SAME_PLACE = 10, WIDEST = 200;   // marks so close are one text, while it is no wider

  // Marks of one colour at nearly one place have one text: "limit 1, limit 8".
  function joinClose(marks, measure) {
    const joined = [];
    for (const mark of [...marks].sort((a, b) => a.at - b.at)) {
      const last = joined.at(-1);
      const text = last && `${last.text}, ${mark.text}`;
      if (last && last.hue === mark.hue && mark.at - last.at <= SAME_PLACE && measure(text) <= WIDEST) last.text = text;
      else joined.push({ ...mark });
    }
    return joined;
  }

  // Texts of upright marks stand in lanes above the plot, each over its line; a text that meets another goes one lane up.
  // Where all lanes are taken it joins the text before it. ``measure`` gives a text's width.
  function assignLanes(marks, measure, [left, right], gap = 8) {
    const ends = [], placed = [];
    for (const mark of joinClose(marks, measure)) {
      const width = measure(mark.text);
      const start = Math.max(left, Math.min(mark.at - width / 2, right - width));
      const free = ends.findIndex((end) => end + gap <= start);
      const lane = free < 0 ? ends.length : free;
      if (lane >= MOST_LANES) {
        joinText(placed.at(-1), mark, measure, [left, right]);
        ends[placed.at(-1).lane] = placed.at(-1).left + measure(placed.at(-1).text);
        continue;
      }
      ends[lane] = start + width;
      placed.push({ mark, text: mark.text, first: mark.text, lane, left: start });
    }
    return { placed, lanes: ends.length };
  }
  // All texts, while the plot is wide enough for them; else the first and the last.
  function joinText(label, mark, measure, [left, right]) {
    const all = `${label.text}, ${mark.text}`;
    label.text = measure(all) <= right - left ? all : `${label.first} \u2026 ${mark.text}`;
    label.left = Math.max(left, Math.min(label.left, right - measure(label.text)));
  }

  const overlap = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

  // Of boxes [left, top, right, bottom] the first that meets none of those taken; else the one that meets fewest.
  function chooseBox(candidates, taken) {
    const meets = candidates.map((box) => taken.filter((other) => overlap(box, other)).length);
    return candidates[meets.indexOf(Math.min(...meets))];
  }

  return { assignLanes, chooseBox, overlap };
})();
