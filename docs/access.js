// What the theme leaves out for keyboards and screen readers: boxes that scroll can be focused, and the search has a name.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  const mark = () => document.querySelectorAll("pre > code, .md-typeset__scrollwrap, .md-typeset p:has(> img)").forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });
  mark();
  setTimeout(mark, 200); // tables get their frames late
  addEventListener("resize", mark);
});
