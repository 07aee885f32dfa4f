// Searches the pages of search_index.js, which is a script, so that it loads from a folder as well as from a server.

// The pages that hold all words, those with a word in their title first: {page, excerpt}.
function searchPages(pages, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [];
  const found = [];
  for (const page of pages) {
    const title = page.title.toLowerCase();
    const text = page.text.toLowerCase();
    if (!words.every((word) => title.includes(word) || text.includes(word))) continue;
    const score = words.reduce((sum, word) => sum + (title.includes(word) ? 100 : 0) + text.split(word).length - 1, 0);
    const at = Math.max(0, text.indexOf(words.find((word) => text.includes(word)) || "") - 40);
    found.push({ page, score, excerpt: (at > 0 ? "… " : "") + page.text.slice(at, at + 120) + " …" });
  }
  return found.sort((a, b) => b.score - a.score).slice(0, 10);
}

function showFound(input, list) {
  list.replaceChildren();
  for (const { page, excerpt } of searchPages(searchIndex, input.value)) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = `${input.dataset.base}/${page.url}`;
    link.textContent = page.title;
    item.append(link, ` ${excerpt}`);
    list.append(item);
  }
}

if (typeof document !== "undefined") {
  document.addEventListener("DOMContentLoaded", () => {
    const input = document.getElementById("search");
    const list = document.getElementById("found");
    input.addEventListener("input", () => showFound(input, list));
  });
} else {
  module.exports = { searchPages };
}
