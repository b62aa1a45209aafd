// What pages do beyond showing themselves; all of them work without.
"use strict";
(() => {
  const root = document.documentElement;
  const THEME = "streamd-theme", LIVE = "streamd-live";
  const POLL_MS = 5000;
  let unfolded = []; // by their ids

  function kept(key) {
    try { return localStorage.getItem(key); } catch { return null; }
  }

  function keep(key, value) {
    try { localStorage.setItem(key, value); } catch { /* it holds for this page */ }
  }

  // -- light and dark: what the system says, until somebody chooses

  const dark = matchMedia("(prefers-color-scheme: dark)");

  function theme() {
    return root.dataset.theme || (dark.matches ? "dark" : "light");
  }

  function other() {
    return theme() === "dark" ? "light" : "dark";
  }

  const chosen = kept(THEME);
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;

  function nameTheme() {
    const button = document.getElementById("theme");
    if (!button) return;
    button.hidden = false;
    button.textContent = other() === "dark" ? "Dark" : "Light";
    button.title = `Show pages in ${other()} colours`;
  }

  function themeChanged() {
    nameTheme();
    document.dispatchEvent(new Event("streamd:theme"));
  }

  // -- parts of pages that ask for what is new, while the page is seen and nobody has paused them

  const isLive = () => kept(LIVE) !== "off";

  function nameLive() {
    const button = document.getElementById("live");
    if (!button) return;
    button.hidden = false;
    button.textContent = isLive() ? "Pause updates" : "Resume updates";
  }

  // Whoever types in a part, or would lose their place in it, is left alone.
  function isBusy(part) {
    const active = document.activeElement;
    if (active === part || !part.contains(active)) return false;
    return !active.id || active.matches("input, select, textarea");
  }

  function poll() {
    if (!isLive() || document.hidden) return;
    for (const part of document.querySelectorAll("[data-poll]")) {
      if (!isBusy(part)) part.dispatchEvent(new Event("poll"));
    }
  }

  // Figures that are no longer renewed must not look as if they were.
  let renewed = new Date();

  function sayStale(event, why) {
    if (!event.detail.elt.matches("[data-poll]")) return;
    let line = document.getElementById("stale");
    if (!line) {
      line = document.createElement("p");
      line.id = "stale";
      line.className = "problem";
      line.setAttribute("role", "alert");
      event.detail.elt.before(line);
    }
    const time = renewed.toISOString().slice(11, 19);
    const text = `${why} What is shown here is of ${time} UTC.`;
    if (line.textContent !== text) line.textContent = text;
  }

  function reasonOf(answer) {
    const page = new DOMParser().parseFromString(answer.responseText, "text/html");
    const said = page.querySelector(".problem");
    return said ? said.textContent.trim() : `The server answers ${answer.status}.`;
  }

  document.addEventListener("htmx:responseError", (event) => {
    if (event.detail.xhr.status !== 401) sayStale(event, reasonOf(event.detail.xhr));
  });
  for (const name of ["htmx:sendError", "htmx:timeout"]) {
    document.addEventListener(name, (event) => sayStale(event, "The server does not answer."));
  }
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!event.detail.shouldSwap) return;
    renewed = new Date();
    document.getElementById("stale")?.remove();
  });

  // What was unfolded stays so.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const opened = [...event.detail.target.querySelectorAll("details[id][open]")];
    unfolded = opened.map((details) => details.id);
  });
  document.addEventListener("htmx:afterSwap", () => {
    for (const id of unfolded) document.getElementById(id)?.setAttribute("open", "");
    unfolded = [];
  });

  document.addEventListener("DOMContentLoaded", () => {
    nameTheme();
    nameLive();
    setInterval(poll, POLL_MS);
  });
  document.addEventListener("visibilitychange", poll);
  dark.addEventListener("change", themeChanged);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "theme") {
      root.dataset.theme = other();
      keep(THEME, root.dataset.theme);
      themeChanged();
    }
    if (button.id === "live") {
      keep(LIVE, isLive() ? "off" : "on");
      nameLive();
      poll();
    }
  });
})();
