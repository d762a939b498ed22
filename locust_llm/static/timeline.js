// Draws the timeline that timeline.py describes: a line a request, its gate wait, its prefill, and each of its chunks.
"use strict";
plots.kinds.timeline = (box, timeline) => {
  const { css, FONT } = plots;
  const { rows, length, slow } = timeline;
  const canvas = document.createElement("canvas"), said = document.createElement("output"), keys = document.createElement("div");
  const LEFT = 62, RIGHT = 12, TOP = 22, BOTTOM = 40;
  let width = 0, pitch = 11, chosen = -1;

  const x = (ms) => LEFT + (ms / length) * (width - LEFT - RIGHT);
  const y = (row) => TOP + (row + 0.5) * pitch;
  const clip = (ms) => Math.min(Math.max(ms, 0), length);

  function bar(ctx, from, to, row, height, hue) {
    if (to <= 0 || from >= length || !(to > from)) return;
    const left = x(clip(from)), right = Math.max(x(clip(to)), left + 1);
    ctx.fillStyle = css(hue);
    ctx.beginPath();
    ctx[ctx.roundRect ? "roundRect" : "rect"](left, y(row) - height / 2, right - left, height, Math.min(height / 2, 2.5, (right - left) / 2));
    ctx.fill();
  }

  // The stream: a thin line, red where it stood still, and a dot for each chunk.
  function stream(ctx, { chunks = [] }, row) {
    for (let i = 1; i < chunks.length; i++) {
      const stood = slow && chunks[i] - chunks[i - 1] > slow, left = x(clip(chunks[i - 1]));
      ctx.fillStyle = css(stood ? "stall" : "decode");
      ctx.globalAlpha = stood ? 0.55 : 0.35;
      ctx.fillRect(left, y(row) - (stood ? 1 : 0.5), x(clip(chunks[i])) - left, stood ? 2 : 1);
    }
    ctx.globalAlpha = 1;
    ctx.fillStyle = css("decode");
    for (const at of chunks) {
      if (at < 0 || at > length) continue;
      ctx.beginPath();
      ctx.arc(x(at), y(row), Math.min(pitch * 0.19, 2), 0, 7);
      ctx.fill();
    }
  }

  function end(ctx, request, row) {
    if (!request.outcome || request.closed > length || request.closed < 0) return;
    const [at, middle, size] = [x(request.closed), y(row), pitch * 0.3];
    ctx.strokeStyle = css(request.outcome === "failed" ? "fail" : "mark");
    ctx.lineWidth = 1.6;
    ctx.beginPath();
    if (request.outcome === "failed") {
      ctx.moveTo(at - size, middle - size); ctx.lineTo(at + size, middle + size);
      ctx.moveTo(at - size, middle + size); ctx.lineTo(at + size, middle - size);
    } else {
      ctx.moveTo(at, middle - size); ctx.lineTo(at, middle + size);
    }
    ctx.stroke();
  }

  function axes(ctx, height) {
    ctx.font = `11px ${FONT}`;
    ctx.fillStyle = css("muted");
    ctx.strokeStyle = css("line");
    ctx.lineWidth = 1;
    const steps = [1, 2, 5].flatMap((m) => [-1, 0, 1, 2, 3, 4, 5].map((p) => m * 10 ** p)).sort((a, b) => a - b);
    const step = steps.find((ms) => (ms / length) * (width - LEFT - RIGHT) >= 70) || length;
    const start = timeline.start * 1000, decimals = step >= 1000 ? 0 : step >= 100 ? 1 : step >= 10 ? 2 : 3;
    ctx.textAlign = "center";
    for (let at = Math.ceil(start / step) * step; at <= start + length; at += step) {
      const where = Math.round(x(at - start)) + 0.5;
      ctx.beginPath();
      ctx.moveTo(where, TOP - 4);
      ctx.lineTo(where, height - BOTTOM + 4);
      ctx.stroke();
      ctx.fillText(`${(at / 1000).toFixed(decimals)} s`, where, height - BOTTOM + 18);
    }
    ctx.fillText("time since the start", LEFT + (width - LEFT - RIGHT) / 2, height - 6);
    ctx.textAlign = "right";
    ctx.fillText("input tokens", LEFT + 6, 12);
  }

  function stall(ctx, height) {
    if (!timeline.stall) return;
    const [from, to] = timeline.stall.map((at) => x(clip(at)));
    ctx.fillStyle = css("stall");
    ctx.globalAlpha = 0.1;
    ctx.fillRect(from, TOP - 4, to - from, height - TOP - BOTTOM + 8);
    ctx.globalAlpha = 1;
    const text = timeline.stall_text;
    ctx.font = `600 11px ${FONT}`;
    const wide = ctx.measureText(text).width;
    ctx.textAlign = "left";
    ctx.fillText(text, Math.min(Math.max((from + to - wide) / 2, LEFT + 20), width - wide - 4), 12);
  }

  function draw(paper) {
    width = paper || Math.max(box.clientWidth, 200);
    pitch = width < 500 ? 9 : Math.min(Math.max(560 / rows.length, 11), 17);
    const height = TOP + rows.length * pitch + BOTTOM, ratio = paper ? 2 : devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    axes(ctx, height);
    stall(ctx, height);
    rows.forEach((request, row) => {
      if (row === chosen) {
        ctx.fillStyle = css("soft");
        ctx.fillRect(0, y(row) - pitch / 2, width, pitch);
      }
      const over = request.closed ?? length;
      bar(ctx, request.asked, request.admitted ?? request.sent ?? over, row, pitch * 0.28, "wait");
      if (request.sent != null) bar(ctx, request.sent, request.first ?? over, row, pitch * 0.7, "prefill");
      stream(ctx, request, row);
      end(ctx, request, row);
      ctx.font = `${Math.min(pitch - 1.5, 10)}px ${FONT}`;
      ctx.fillStyle = css(row === chosen ? "ink" : "muted");
      ctx.textAlign = "right";
      if (request.tokens != null) ctx.fillText(request.tokens.toLocaleString("en"), LEFT - 8, y(row) + pitch * 0.3);
    });
  }

  function choose(row) {
    if (row === chosen) return;
    chosen = row;
    said.textContent = rows[row]?.text ?? "";
    draw();
  }
  canvas.addEventListener("pointermove", (event) => choose(under(event)));
  canvas.addEventListener("pointerdown", (event) => choose(under(event)));
  canvas.addEventListener("pointerleave", () => choose(-1));
  const under = (event) => {
    const row = Math.floor((event.offsetY - TOP) / pitch);
    return row >= 0 && row < rows.length ? row : -1;
  };
  box.tabIndex = 0;
  box.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(Math.max(chosen + step, 0), rows.length - 1));
  });

  keys.className = "keys";
  for (const [kind, hue, text] of [
    ["bar", "wait", "waiting at the gate"], ["bar", "prefill", "in prefill"], ["path", "decode", "decoding, each chunk a dot"],
    ["line", "stall", "stalled"],
  ]) {
    const key = document.createElement("span");
    key.className = "key";
    key.append(plots.swatch(kind, hue), text);
    keys.append(key);
  }
  said.className = "said";
  box.append(canvas);
  box.after(keys, said);
  draw();
  return { redraw: draw, end: () => [canvas, keys, said].forEach((element) => element.remove()) };
};
