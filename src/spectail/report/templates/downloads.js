// Files are made from what lies in the page: nothing is fetched.
function save(name, kind, content) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type: `${kind};charset=utf-8` })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// They lie there compressed: the numbers of a thousand classes are megabytes of text.
async function unpacked(name) {
  const bytes = Uint8Array.from(atob(report.files[name]), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

const KINDS = { csv: "text/csv", md: "text/markdown", tex: "application/x-tex", json: "application/json" };
document.querySelectorAll("[data-file]").forEach((button) => button.addEventListener("click", async () => {
  const name = button.dataset.file;
  save(name, KINDS[name.split(".").pop()], await unpacked(name));
}));

document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
  const text = document.getElementById(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    button.textContent = "Selected: press Ctrl+C";
  }
}));

document.documentElement.dataset.ready = performance.now().toFixed(0);
