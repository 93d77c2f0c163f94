// Gives each block of code a button that copies it, and lets the keyboard
// scroll what is wider than the page.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll(".highlight")) {
    const code = block.querySelector("pre");
    if (!code || !navigator.clipboard) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(code.innerText.trimEnd() + "\n");
      button.textContent = "Copied";
      button.classList.add("done");
      setTimeout(() => {
        button.textContent = "Copy";
        button.classList.remove("done");
      }, 2000);
    });
    block.append(button);
  }
  for (const wide of document.querySelectorAll(".highlight pre, .table-wrapper"))
    if (wide.scrollWidth > wide.clientWidth) wide.tabIndex = 0;
});
