// How different two colours look (CIEDE2000), as people see them who lack one kind of cone (Machado, Oliveira and
// Fernandes 2009, severity 1).
"use strict";

const SIGHTS = {
  full: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
};
const TO_XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]];
const WHITE = [0.95047, 1, 1.08883];

const multiply = (matrix, vector) => matrix.map((row) => row.reduce((sum, value, i) => sum + value * vector[i], 0));
const degrees = (radians) => (radians * 180) / Math.PI;
const cosine = (angle) => Math.cos((angle * Math.PI) / 180);
const sine = (angle) => Math.sin((angle * Math.PI) / 180);

function toLinear(hex) {
  return [1, 3, 5].map((i) => {
    const value = parseInt(hex.slice(i, i + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
}
function toLab(hex, sight) {
  const seen = multiply(SIGHTS[sight], toLinear(hex)).map((value) => Math.min(Math.max(value, 0), 1));
  const [x, y, z] = multiply(TO_XYZ, seen).map((value, i) => value / WHITE[i])
    .map((value) => (value > 0.008856 ? Math.cbrt(value) : 7.787 * value + 16 / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

// Sharma, Wu and Dalal 2005.
function ciede2000([l1, a1, b1], [l2, a2, b2]) {
  const mean = (Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2;
  const stretch = 1 + 0.5 * (1 - Math.sqrt(mean ** 7 / (mean ** 7 + 25 ** 7)));
  const [c1, c2] = [Math.hypot(a1 * stretch, b1), Math.hypot(a2 * stretch, b2)];
  const angle = (a, b) => (a || b ? (degrees(Math.atan2(b, a * stretch)) + 360) % 360 : 0);
  const [h1, h2] = [angle(a1, b1), angle(a2, b2)];
  let turn = h2 - h1;
  if (turn > 180) turn -= 360;
  if (turn < -180) turn += 360;
  if (!c1 || !c2) turn = 0;
  const dh = 2 * Math.sqrt(c1 * c2) * sine(turn / 2);
  const [l, c] = [(l1 + l2) / 2, (c1 + c2) / 2];
  let h = h1 + h2;
  if (c1 && c2) {
    const far = Math.abs(h1 - h2) > 180;
    h = (h + (far ? 360 : 0) - (far && h >= 360 ? 720 : 0)) / 2;
  }
  const t = 1 - 0.17 * cosine(h - 30) + 0.24 * cosine(2 * h) + 0.32 * cosine(3 * h + 6) - 0.2 * cosine(4 * h - 63);
  const sl = 1 + (0.015 * (l - 50) ** 2) / Math.sqrt(20 + (l - 50) ** 2);
  const [sc, sh] = [1 + 0.045 * c, 1 + 0.015 * c * t];
  const rotation = -sine(60 * Math.exp(-(((h - 275) / 25) ** 2))) * 2 * Math.sqrt(c ** 7 / (c ** 7 + 25 ** 7));
  const [dl, dc] = [(l2 - l1) / sl, (c2 - c1) / sc];
  return Math.sqrt(dl ** 2 + dc ** 2 + (dh / sh) ** 2 + rotation * dc * (dh / sh));
}

const difference = (a, b, sight) => ciede2000(toLab(a, sight), toLab(b, sight));

module.exports = { SIGHTS, ciede2000, difference };
