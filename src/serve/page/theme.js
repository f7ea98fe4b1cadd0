// Light, dark, or as the system has it. Runs before the page is drawn, so that it never flashes.

{
  const KEY = "quire-theme";
  const apply = (theme) => { document.documentElement.dataset.theme = theme; };
  apply(localStorage.getItem(KEY) ?? "system");
  addEventListener("DOMContentLoaded", () => {
    const choice = document.getElementById("theme");
    choice.value = document.documentElement.dataset.theme;
    choice.onchange = () => {
      localStorage.setItem(KEY, choice.value);
      apply(choice.value);
    };
  });
}
