// How charts and pages write numbers, durations, times and dates. locust_llm/text/format.py has the same rules:
// tests/data/format_cases.json holds both to them.
"use strict";
const chartFormat = (() => {
  const NONE = "-";
  const MOST_DECIMALS = 6;
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const twoDigits = (value) => String(value).padStart(2, "0");

  // A number between two that can be written is rounded to the even one, as Python does.
  function isTie(value, decimals) {
    const parts = Math.abs(value) * 2 ** (decimals + 1);
    return Number.isInteger(parts) && (Math.abs(value) * 10 ** decimals) % 1 === 0.5;
  }
  function round(value, decimals) {
    if (!isTie(value, decimals)) return Math.abs(value).toFixed(decimals);
    const below = Math.floor(Math.abs(value) * 10 ** decimals);
    const even = below % 2 ? below + 1 : below;
    return (even / 10 ** decimals).toFixed(decimals);
  }
  function separateThousands(digits) {
    const [whole, fraction] = digits.split(".");
    const separated = whole.replace(/\B(?=(\d{3})+$)/g, ",");
    return fraction === undefined ? separated : `${separated}.${fraction}`;
  }
  const dropZeros = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const sign = (value) => (value < 0 ? "-" : "");

  // Significant digits, no zeros at the end, no power of ten: "612.3 ms", "0.98%", "12,346".
  function brief(value, unit = "", digits = 4) {
    if (!isNumber(value)) return value === Infinity ? "fail" : NONE;
    const size = value ? Math.floor(Math.log10(Math.abs(value))) : 0;
    const decimals = Math.max(0, Math.min(MOST_DECIMALS, digits - 1 - size));
    const text = dropZeros(separateThousands(round(value, decimals)));
    return (text === "0" ? "" : sign(value)) + text + unit;
  }

  // "12.3 ms", "1.23 s".
  function duration(seconds, digits = 3) {
    if (isNumber(seconds) && Math.abs(seconds) < 0.9995) return brief(seconds * 1e3, " ms", digits);
    return brief(seconds, " s", digits);
  }

  // A moment or a length on the run's own clock: "0:51", "12:03", "1:02:03"; with decimals "0:51.3".
  function clock(seconds, decimals = 0) {
    if (!isNumber(seconds)) return NONE;
    const rounded = Number(round(seconds, decimals));
    const [hours, minutes] = [Math.floor(rounded / 3600), Math.floor(rounded / 60) % 60];
    const rest = (rounded % 60).toFixed(decimals).padStart(decimals ? decimals + 3 : 2, "0");
    const before = hours ? `${hours}:${twoDigits(minutes)}` : `${minutes}`;
    return `${rounded ? sign(seconds) : ""}${before}:${rest}`;
  }

  // Unix seconds: "2026-11-25 16:24 UTC".
  function date(unixSeconds) {
    if (!isNumber(unixSeconds)) return NONE;
    const text = new Date(unixSeconds * 1000).toISOString();
    return `${text.slice(0, 10)} ${text.slice(11, 16)} UTC`;
  }

  // "1 request", "12,346 requests".
  function count(number, noun, several = `${noun}s`) {
    return `${brief(number, "", 15)} ${number === 1 ? noun : several}`;
  }

  // -- the values of a chart, by the unit of its axis --------------------------------------------------------------------

  function writeValue(unit, number, digits = 3) {
    if (!isNumber(number)) return brief(number);
    if (unit === "ms") return duration(number / 1e3, digits);
    if (unit === "s") return clock(number, Number.isInteger(number) ? 0 : 1);
    if (unit === "%") return brief(number, "%", digits);
    return brief(number, "", Math.max(digits, 4));
  }

  // [from the largest tick on, the size of the unit, its name]
  const TICK_UNITS = {
    ms: [[1e3, 1e3, " s"], [0, 1, " ms"]],
    "%": [[0, 1, "%"]],
    "": [[1e7, 1e6, "M"], [1e4, 1e3, "k"], [0, 1, ""]],
  };
  function decimalsOf(step) {
    const exact = (decimals) => Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) < 1e-6;
    return [0, 1, 2, 3].find(exact) ?? 4;
  }
  function stepOf(numbers) {
    const steps = numbers.slice(1).map((number, i) => number - numbers[i]);
    return steps.length ? Math.min(...steps.map(Math.abs)) : Math.abs(numbers[0] ?? 1);
  }

  // The ticks of an axis: one unit and as many decimals for all. Of a logarithmic axis each has its own.
  function ticks(unit, numbers, log = false) {
    if (!numbers.length) return [];
    if (unit === "s") return numbers.map((number) => clock(number, Math.min(decimalsOf(stepOf(numbers)), 3)));
    const most = Math.max(...numbers.map(Math.abs));
    const known = TICK_UNITS[unit] ?? TICK_UNITS[""];
    const write = (number, of) => {
      const [, size, name] = known.find(([from]) => of >= from);
      const decimals = decimalsOf((log ? number : stepOf(numbers)) / size);
      return number === 0 ? "0" : sign(number) + separateThousands(round(number / size, decimals)) + name;
    };
    return numbers.map((number) => write(number, log ? Math.abs(number) : most));
  }

  return { isNumber, brief, duration, clock, date, count, writeValue, ticks };
})();
