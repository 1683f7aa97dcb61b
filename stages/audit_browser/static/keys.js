// Keys and sliders; every page works without. Nothing here reads a document's text, and nothing is written as markup.
"use strict";
(() => {
  const off = document.getElementById("keys-off");
  const told = document.getElementById("keys");
  const remembered = "corpusmill-no-keys";
  if (told) told.hidden = false;
  try { if (off) off.checked = localStorage.getItem(remembered) === "1"; } catch { /* no storage: not remembered */ }
  if (off) off.addEventListener("change", () => {
    try { localStorage.setItem(remembered, off.checked ? "1" : "0"); } catch { /* as above */ }
  });

  const rows = Array.from(document.querySelectorAll("[data-row]"));
  function step(by) {
    if (!rows.length) return false;
    const at = rows.indexOf(document.activeElement);
    const next = rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  }

  const places = Array.from(document.querySelectorAll("[data-place]"));
  let seen = -1;
  function place() {
    if (!places.length) return false;
    const at = places.indexOf(document.activeElement);
    seen = ((at < 0 ? seen : at) + 1) % places.length;
    places[seen].focus({ preventScroll: true });
    places[seen].scrollIntoView({ block: "center" });
    return true;
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || (off && off.checked)) return;
    const inside = event.target instanceof Element ? event.target.closest("input, select, textarea") : null;
    if (inside && inside.type !== "checkbox") {
      if (event.key === "Escape") inside.blur();
      return;
    }
    if (event.key === "/") {
      const find = document.getElementById("find");
      if (find) { event.preventDefault(); find.focus(); find.select(); }
      return;
    }
    const wanted = Array.from(document.querySelectorAll("[data-key]")).find((one) => one.dataset.key === event.key);
    if (wanted) { event.preventDefault(); wanted.click(); return; }
    if (event.key === "m" && place()) { event.preventDefault(); return; }
    if ((event.key === "j" && step(1)) || (event.key === "k" && step(-1))) event.preventDefault();
  });

  for (const shown of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) break; // pages that came over plain HTTP from another machine have none
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try { await navigator.clipboard.writeText(shown.textContent); button.textContent = "Copied"; } catch { button.textContent = "Not copied: mark it yourself"; }
    });
    shown.after(button);
  }

  for (const field of document.querySelectorAll("input[data-low]")) {
    const slider = document.createElement("input");
    slider.type = "range";
    slider.min = field.dataset.low;
    slider.max = field.dataset.high;
    slider.step = field.dataset.step;
    slider.value = field.value;
    slider.setAttribute("aria-label", field.getAttribute("aria-label"));
    slider.addEventListener("input", () => { field.value = slider.value; });
    field.addEventListener("input", () => { if (field.value.trim() !== "" && Number.isFinite(Number(field.value))) slider.value = field.value; });
    field.after(slider);
  }
})();
