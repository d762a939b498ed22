// The form of a new run: hides what does not matter, uploads a dataset, starts the run.
"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const form = by("run"), answer = by("answer");
  const fields = [...form.querySelectorAll(".field")].map((box) => ({ box, input: box.querySelector("[name]") }));
  const named = new Map(fields.map((field) => [field.input.name, field]));

  // -- what matters --------------------------------------------------------------------------------------------------------

  const isSwitch = (input) => input.type === "checkbox";
  function isSet({ box, input }) {
    if (box.hidden) return false;
    return isSwitch(input) ? input.checked : !["", input.dataset.default].includes(input.value.trim());
  }
  // In the order of the page a field may come before the one that it needs: so until nothing changes.
  function hide() {
    for (let again = true; again;) {
      again = false;
      for (const { box } of fields) {
        const needs = box.dataset.needs.split(" ").filter(Boolean);
        const matters = !needs.length || needs.some((name) => (name.startsWith("!") ? !isSet(named.get(name.slice(1))) : isSet(named.get(name))));
        if (box.hidden === matters) again = true;
        box.hidden = !matters;
      }
    }
  }
  form.addEventListener("input", ({ target }) => {
    hide();
    keep();
    if (!target.hasAttribute("aria-invalid")) return;
    target.removeAttribute("aria-invalid");
    answer.textContent = "";
  });

  // -- what was typed ------------------------------------------------------------------------------------------------------

  // It stays until a run has started, also where a refusal led to another page in between. Not the dataset: an upload ends.
  const TYPED = "locust-llm: typed into the form of a run";
  const read = (input) => (isSwitch(input) ? String(input.checked) : input.value);
  const given = new Map(fields.map(({ input }) => [input.name, read(input)]));
  const kept = fields.map(({ input }) => input).filter((input) => !["dataset", "scenario"].includes(input.name));
  // The fields of another workload come from the load generator, and what was typed comes back.
  const workload = named.get("scenario").input;
  const choose = (scenario) => location.replace(`new?${new URLSearchParams({ scenario })}`);
  workload.addEventListener("change", () => { keep(); choose(workload.value); });
  function keep() {
    const typed = kept.filter((input) => read(input) !== given.get(input.name)).map((input) => [input.name, read(input)]);
    try {
      sessionStorage.setItem(TYPED, JSON.stringify({ scenario: workload.value, typed }));
    } catch { /* a browser that keeps nothing */ }
  }
  function forget() {
    try { sessionStorage.removeItem(TYPED); } catch { /* a browser that keeps nothing */ }
  }
  function bringBack() {
    let record = null;
    try { record = JSON.parse(sessionStorage.getItem(TYPED)); } catch { forget(); }
    const { scenario, typed } = record ?? { scenario: workload.value, typed: [] };
    if (scenario !== workload.value && !location.search) return choose(scenario);
    for (const [name, value] of typed) {
      const input = named.get(name)?.input;
      if (!input) continue;
      if (isSwitch(input)) input.checked = value === "true";
      else input.value = value;
      const folded = input.closest("details");
      if (folded) folded.open = true;
    }
    by("forget").hidden = !typed.length && !location.search;
  }
  by("forget").addEventListener("click", () => { forget(); location.replace("new"); });
  bringBack();
  hide();

  // -- the start -----------------------------------------------------------------------------------------------------------

  function values() {
    const body = new URLSearchParams();
    for (const { box, input } of fields) {
      if (isSwitch(input)) body.set(input.name, box.hidden ? input.dataset.default : String(input.checked));
      else body.set(input.name, box.hidden ? "" : input.value);
    }
    return body;
  }
  function refused(message) {
    answer.className = "";
    answer.textContent = message;
    const flags = message.match(/(^|\s)--?[a-z][a-z-]*/g)?.map((flag) => flag.trim()) ?? [];
    if (/^SLO /.test(message)) flags.unshift("--slo");
    if (/^cannot reach/.test(message)) flags.unshift("-H");
    const spelled = (flag) => (flag === "--host" ? "-H" : flag.replace(/^--no-/, "--"));
    const known = (flag) => fields.find(({ box }) => box.dataset.flag === spelled(flag) && !box.hidden);
    const field = flags.map(known).find(Boolean);
    if (!field) return;
    field.input.setAttribute("aria-invalid", "true");
    const folded = field.box.closest("details");
    if (folded) folded.open = true;
    field.input.scrollIntoView({ block: "center" });
    field.input.focus({ preventScroll: true });
  }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    for (const { input } of fields) input.removeAttribute("aria-invalid");
    answer.className = "busy";
    answer.textContent = "Checking the server …";
    by("start").disabled = true;
    try {
      const got = await fetch("../swarm", { method: "POST", body: values() });
      if (got.redirected) throw new Error("Signed out: reload the page.");
      if (got.status === 413) throw new Error(await got.text());
      const { success, message } = await got.json();
      if (success) { forget(); location.assign("../llm"); }
      else refused(message);
    } catch (error) {
      refused(error instanceof TypeError || error instanceof SyntaxError ? "No answer from the load generator." : error.message);
    } finally {
      by("start").disabled = false;
    }
  });

  // -- the command line ----------------------------------------------------------------------------------------------------

  by("command").addEventListener("click", async () => {
    try {
      const got = await fetch("command", { method: "POST", body: values() });
      if (got.redirected) throw new Error("Signed out: reload the page.");
      const { success, message, command } = await got.json();
      if (!success) return refused(message);
      answer.textContent = by("copied").textContent = "";
      by("words").textContent = command;
      by("shown").showModal();
    } catch (error) {
      refused(error instanceof TypeError || error instanceof SyntaxError ? "No answer from the load generator." : error.message);
    }
  });
  by("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(by("words").textContent);
      by("copied").textContent = "Copied.";
    } catch {   // a page of another machine without TLS may not
      getSelection().selectAllChildren(by("words"));
      by("copied").textContent = "Selected: press Ctrl+C.";
    }
  });

  // -- the upload ----------------------------------------------------------------------------------------------------------

  by("file").addEventListener("change", async () => {
    const file = by("file").files[0], said = by("uploaded"), list = named.get("dataset").input;
    if (!file) return;
    const say = (text, kind) => { [said.textContent, said.className] = [text, kind]; };
    if (file.size > Number(by("file").dataset.most)) return say("It is too large.", "loud");
    say("Uploading …", "plain");
    by("start").disabled = true;
    try {
      const got = await fetch(`datasets?${new URLSearchParams({ name: file.name })}`, { method: "POST", body: file,
        headers: { "Content-Type": "application/octet-stream" } });
      if (got.redirected) throw new Error("Signed out: reload the page.");
      if (got.status === 413) throw new Error(await got.text());
      const { done, message, choice, name } = await got.json();
      if (!done) throw new Error(message);
      list.querySelectorAll("option[value^='upload:']").forEach((option) => option.remove());
      list.append(new Option(`${name}, uploaded`, choice, true, true));
      say("Uploaded.", "pass");
      hide();
    } catch (error) {
      say(error instanceof TypeError || error instanceof SyntaxError ? "The upload failed." : error.message, "loud");
    } finally {
      by("start").disabled = false;
      by("file").value = "";
    }
  });
})();
