// The definition of a term where it stands: as a tip under the pointer, for the keyboard and for touch. The texts are those of
// the table of definitions at the end of the page.
"use strict";
const termTips = (() => {
  const PLACES = "#tiles li > span, .rules li > span:not(.mark), .forest li > span:not(.mark):not(.sides), .plot h3, "
    + "section thead th, section:not(.made) tbody th";
  const LINGER_MS = 250;   // a pointer has time to reach the tip

  // -- which term a text begins with (no document) -------------------------------------------------------------------------

  const plain = (text) => text.toLowerCase().replaceAll("-", " ");

  // The longest name with which the text begins, as a whole word: [name's length, what it means] or null.
  function findTerm(text, terms) {
    const wanted = plain(text);
    let found = null;
    for (const [name, means] of Object.entries(terms)) {
      const isLonger = !found || name.length > found[0];
      const isWhole = wanted.startsWith(plain(name)) && !/^\w/.test(wanted.slice(name.length));
      if (isLonger && isWhole) found = [name.length, means];
    }
    return found;
  }

  // -- the tip -------------------------------------------------------------------------------------------------------------

  let tip = null, shownFor = null, hiding = 0;
  function makeTip() {
    tip = document.createElement("div");
    tip.className = "chart-tip term-tip";
    tip.hidden = true;
    tip.addEventListener("pointerenter", () => clearTimeout(hiding));
    tip.addEventListener("pointerleave", () => hideSoon());
    document.body.append(tip);
  }
  function show(term) {
    clearTimeout(hiding);
    if (!tip) makeTip();
    shownFor = term;
    const means = document.getElementById(term.getAttribute("aria-describedby"));
    const [name, text] = [document.createElement("div"), document.createElement("div")];
    name.textContent = means.parentElement.firstElementChild.textContent;
    text.textContent = means.textContent;
    tip.replaceChildren(name, text);
    tip.hidden = false;
    const box = term.getBoundingClientRect();
    const isLow = box.bottom + 6 + tip.offsetHeight > innerHeight && box.top > tip.offsetHeight + 6;
    const left = Math.max(8, Math.min(box.left, innerWidth - 8 - tip.offsetWidth));
    tip.style.left = `${scrollX + left}px`;
    tip.style.top = `${scrollY + (isLow ? box.top - 4 - tip.offsetHeight : box.bottom + 4)}px`;
  }
  function hide() {
    clearTimeout(hiding);
    shownFor = null;
    if (tip) tip.hidden = true;
  }
  function hideSoon() {
    clearTimeout(hiding);
    hiding = setTimeout(hide, LINGER_MS);
  }

  // -- the terms of a page -------------------------------------------------------------------------------------------------

  const firstText = (element) => [...element.childNodes].find((node) => node.nodeType === 3 && node.textContent.trim());

  // A term in a button is asked by the button; else its words become what is asked.
  function markTerm(element, terms, isFirst) {
    const button = element.querySelector("button"), text = firstText(button ?? element);
    const found = text && findTerm(text.textContent.trimStart(), terms);
    if (!found) return;
    const [length, id] = found;
    let term = button;
    if (!term) {
      const start = text.textContent.length - text.textContent.trimStart().length;
      term = document.createElement("span");
      const words = text.splitText(start);
      words.splitText(length);
      words.replaceWith(term);
      term.append(words);
      term.tabIndex = isFirst(id) ? 0 : -1;
    }
    term.classList.add("term");
    term.setAttribute("aria-describedby", id);
  }
  // All terms below ``root``. The keyboard reaches the first of each in a section, the pointer all.
  function mark(root, terms) {
    for (const section of [root, ...root.querySelectorAll("section, header")]) {
      const seen = new Set([...section.querySelectorAll("span.term[tabindex='0']")].map((term) => term.getAttribute("aria-describedby")));
      const isFirst = (id) => !seen.has(id) && Boolean(seen.add(id));
      for (const element of section.querySelectorAll(PLACES)) {
        const isOwn = element.closest("section, header") === section && !element.closest("#s-definitions") && !element.querySelector(".term");
        if (isOwn) markTerm(element, terms, isFirst);
      }
    }
  }

  function listen() {
    const termOf = (event) => (event.target instanceof Element ? event.target.closest(".term") : null);
    document.addEventListener("pointerover", (event) => {
      const term = termOf(event);
      if (term) show(term);
      else if (shownFor && !tip.contains(event.target)) hideSoon();
    });
    document.addEventListener("focusin", (event) => {
      const term = termOf(event);
      if (term?.matches(":focus-visible") || term?.matches("span")) show(term);
      else hide();
    });
    document.addEventListener("focusout", hide);
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
    });
  }

  return { mark, listen, findTerm };
})();
