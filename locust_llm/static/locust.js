// What Locust's page gets from us: rules a line each in its form, and the live page in the tab LLM. Where Locust's page is not
// as expected nothing happens: the form has a field for one rule then, and the tab its table.
"use strict";
(() => {
  const RULES = "slo", TAB = "LLM", FIRST = "model", SHORT = 13, LIMIT = "prefillConcurrency";

  // Fields are read from the page when the form is sent, the last of a name counts: a taller one may stand behind Locust's.
  function rules() {
    for (const input of document.querySelectorAll(`input[name="${RULES}"]`)) {
      if (input.nextElementSibling?.tagName === "TEXTAREA") continue;
      const area = document.createElement("textarea"), given = (window.templateArgs?.extra_options?.[RULES]?.default_value || "");
      area.name = RULES;
      area.rows = Math.max(3, given.split("\n").length);
      area.value = given;
      area.placeholder = "ttft p95 < 500ms\nerror_rate < 1%";
      area.setAttribute("aria-label", "Rules (SLO), one a line");
      area.style.cssText = "width:100%;font:inherit;color:inherit;background:transparent;border:0;outline:0;padding:16.5px 14px;resize:vertical";
      input.style.display = "none";
      const control = input.closest(".MuiFormControl-root"), label = control?.querySelector("label");
      if (label) label.style.cssText = "transform:translate(14px,-9px) scale(.75);max-width:calc(133% - 32px);pointer-events:auto";
      control?.querySelector("legend")?.style.setProperty("max-width", "100%");
      input.after(area);
    }
  }

  // What matters is in sight, the rest behind a button; of a run that is on only what can be changed.
  function unfold() {
    for (const button of document.querySelectorAll("form button[aria-expanded=false], form [role=button][aria-expanded=false]")) {
      if (["Advanced options", "Custom parameters"].includes(button.textContent.trim()) && !button.dataset.unfolded) {
        button.dataset.unfolded = "true";
        button.click();
      }
    }
    for (const first of document.querySelectorAll(`form [name="${FIRST}"]`)) {
      let list = first.parentElement;
      while (list && list.querySelectorAll("[name]").length < SHORT) list = list.parentElement;
      if (!list || list.dataset.llm || list.children.length <= SHORT) continue;
      const limit = list.querySelector(`[name="${LIMIT}"]`);
      if (limit && document.body.textContent.includes("Edit running load test")) {
        list.dataset.llm = "edit";
        fetch("./llm/live").then((answer) => answer.json()).then(({ target }) => { limit.value = target ?? ""; }).catch(() => {});
        continue;
      }
      list.dataset.llm = "short";
      const more = document.createElement("button");
      more.type = "button";
      more.textContent = `${list.children.length - SHORT} more options`;
      more.style.cssText = "font:inherit;color:inherit;background:transparent;border:1px solid;border-radius:4px;padding:10px;cursor:pointer;opacity:.8";
      more.addEventListener("click", () => {
        list.dataset.llm = "long";
        more.remove();
      });
      list.append(more);
    }
  }

  let frame = null;
  function tab() {
    const chosen = document.querySelector("[role=tab][aria-selected=true]");
    const here = chosen?.textContent.trim() === TAB;
    if (here && !frame?.isConnected) {
      const place = chosen.closest(".MuiContainer-root");
      if (!place) return;
      frame = document.createElement("iframe");
      frame.src = "./llm";
      frame.title = "Live plots and the prefill gate";
      frame.style.cssText = "width:100%;border:0;margin-top:16px;height:1400px;color-scheme:normal";
      frame.addEventListener("load", () => {
        const inside = frame.contentDocument?.documentElement;
        if (inside) new ResizeObserver(() => { frame.style.height = `${inside.querySelector("body").scrollHeight + 8}px`; }).observe(inside.querySelector("body"));
      });
      place.append(frame);
    } else if (!here && frame) {
      frame.remove();
      frame = null;
    }
  }

  const style = document.createElement("style");
  style.textContent = `[data-llm=short] > :nth-child(n + ${SHORT + 1}):not(button),
    [data-llm=edit] > :not(:has([name="${LIMIT}"])) { display: none }`;
  document.head.append(style);
  const look = () => { rules(); unfold(); tab(); };
  new MutationObserver(look).observe(document.getElementById("root") || document.body, { childList: true, subtree: true, attributes: true, attributeFilter: ["aria-selected"] });
  look();
})();
