// The messages page beyond what it shows without script: the rest of a search as it is found, the
// live tail, and copying. Each is a request of a second for the page that a link would lead to.
"use strict";
(() => {
  const TAIL_MS = 1000, MOST_ROWS = 500;
  const byId = (id) => document.getElementById(id);
  const count = (number) => number.toLocaleString("en-US");
  const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
  let running = null; // an AbortController while a request is under way

  class Problem extends Error {}

  // The page at an address, as a document of which nothing is run.
  async function load(address, signal) {
    let answer;
    try {
      answer = await fetch(address, { headers: { "HX-Request": "true" }, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem("The server does not answer.");
    }
    if (answer.status === 401) {
      location.assign(answer.headers.get("HX-Redirect") || location.href);
      throw new DOMException("logged out", "AbortError");
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!page.getElementById("summary")) {
      const said = page.querySelector(".problem");
      throw new Problem(said ? said.textContent.trim() : `The server answers ${answer.status}.`);
    }
    return page;
  }

  function say(...parts) {
    const line = document.createElement("p");
    line.append(...parts);
    byId("state").replaceChildren(line);
    return line;
  }

  function button(title, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = title;
    made.addEventListener("click", action);
    return made;
  }

  // -- the rest of a search

  function showRunning(is) {
    document.documentElement.classList.toggle("running", is);
    byId("cancel").hidden = !is;
  }

  function add(page) {
    byId("rows").append(...page.getElementById("rows").children);
    byId("summary").replaceWith(page.getElementById("summary"));
    byId("state").replaceChildren(...page.getElementById("state").childNodes);
  }

  async function search(address) {
    running = new AbortController();
    showRunning(true);
    try {
      while (address) {
        add(await load(address, running.signal));
        const summary = byId("summary");
        address = summary.dataset.state === "going" ? summary.dataset.piece : "";
      }
    } catch (error) {
      stopped(error);
    }
    running = null;
    showRunning(false);
  }

  function stopped(error) {
    const found = plural(byId("rows").children.length, "message");
    const why = error instanceof Problem ? error.message : "Cancelled.";
    if (!(error instanceof Problem) && error.name !== "AbortError") throw error;
    const mark = document.createElement("strong");
    mark.textContent = `${why} `;
    say(mark, `${found} found so far; not all of the stream was searched. `, button("Go on", goOn));
  }

  function goOn() {
    const address = byId("summary").dataset.piece;
    if (address && !running) search(address);
  }

  // -- the tail

  const tail = { address: "", shown: 0, passed: 0, gone: 0, paused: false, timer: 0 };

  function sayTail(extra = "") {
    const parts = [tail.paused ? "Paused. " : "Live. ", `${plural(tail.shown, "message")} shown.`];
    if (tail.passed) {
      parts.push(` ${plural(tail.passed, "message")} not looked at, because more came than can be shown.`);
    }
    if (tail.gone) parts.push(` ${plural(tail.gone, "older message")} no longer shown.`);
    say(...parts, extra);
  }

  async function turn() {
    tail.timer = 0;
    if (tail.paused || document.hidden || running) return;
    running = new AbortController();
    let extra = "";
    try {
      take(await load(tail.address, running.signal));
    } catch (error) {
      if (!(error instanceof Problem) && error.name !== "AbortError") throw error;
      if (error instanceof Problem) extra = ` ${error.message} It is tried again.`;
    }
    running = null;
    sayTail(extra);
    next();
  }

  function take(page) {
    const { tail: address, passed } = page.getElementById("summary").dataset;
    const rows = [...page.getElementById("rows").children];
    rows.forEach((row) => row.classList.add("new"));
    byId("rows").prepend(...rows);
    tail.address = address;
    tail.passed += Number(passed);
    tail.shown += rows.length;
    const all = byId("rows").children;
    while (all.length > MOST_ROWS) {
      all[all.length - 1].remove();
      tail.gone += 1;
    }
  }

  function next() {
    if (!tail.timer && !tail.paused && !document.hidden) tail.timer = setTimeout(turn, TAIL_MS);
  }

  function follow(summary) {
    const pause = byId("pause");
    tail.address = summary.dataset.tail;
    tail.shown = byId("rows").children.length;
    pause.hidden = false;
    pause.addEventListener("click", () => {
      tail.paused = !tail.paused;
      pause.textContent = tail.paused ? "Resume" : "Pause";
      if (tail.paused) clearTimeout(tail.timer);
      tail.timer = 0;
      sayTail();
      next();
    });
    document.addEventListener("visibilitychange", next);
    byId("state").setAttribute("aria-live", "off"); // it changes every second
    sayTail();
    next();
  }

  // -- copying

  async function copy(made) {
    const text = byId(made.dataset.copy);
    const said = made.firstChild;
    try {
      await navigator.clipboard.writeText(text.textContent);
      said.data = "Copied";
    } catch { // only pages of this machine, or inside TLS, may
      getSelection().selectAllChildren(text);
      said.data = document.execCommand("copy") ? "Copied" : "Press Ctrl+C";
    }
    setTimeout(() => { said.data = "Copy"; }, 2000);
  }

  document.documentElement.classList.add("scripted");
  for (const made of document.querySelectorAll("[data-copy]")) {
    made.hidden = false;
    made.addEventListener("click", () => copy(made));
  }
  const summary = byId("summary");
  if (!summary) return;
  byId("cancel").addEventListener("click", () => running && running.abort());
  byId("state").addEventListener("click", (event) => {
    if (event.target.closest(".go-on") && byId("summary").dataset.piece) {
      event.preventDefault();
      goOn();
    }
  });
  if (summary.dataset.state === "live") follow(summary);
  else if (summary.dataset.state === "going") goOn();
})();
