"use strict";
// Shows the calls of the OpenAPI document. A refusal's `type` leads to its row of the table below them.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", paint);
  paint();

  // Who comes for a refusal. The calls push the table down as they arrive, so the browser's own jump misses; and the
  // list of calls would take the address for one of its own. Whoever moves stays where they are.
  const wanted = /^#[a-z_]+$/.test(location.hash) ? document.getElementById(location.hash.slice(1)) : null;
  const calls = document.getElementById("calls");
  const growing = new ResizeObserver(() => wanted?.scrollIntoView());
  growing.observe(calls);
  for (const moved of ["wheel", "touchstart", "pointerdown", "keydown"]) {
    addEventListener(moved, () => growing.disconnect(), { once: true, passive: true });
  }

  SwaggerUIBundle({
    url: "/api/openapi.json",
    dom_id: "#calls",
    layout: "BaseLayout",
    deepLinking: wanted === null,
    defaultModelsExpandDepth: 0,
    docExpansion: "list",
    presets: [SwaggerUIBundle.presets.apis],
  });
})();
