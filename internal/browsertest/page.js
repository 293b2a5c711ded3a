// Returns what of a page cannot be read: a list of sentences, empty if all is well.
function (dark) {
  const problems = [], say = (text) => { if (problems.length < 20) problems.push(text); };
  const width = document.documentElement.clientWidth;
  for (const d of document.querySelectorAll("details")) d.open = true;

  // Nothing is wider than the window, unless it scrolls by itself and can be reached by keyboard.
  if (document.documentElement.scrollWidth > width) say(`the page is ${document.documentElement.scrollWidth} wide, in a window of ${width}`);
  const scrolls = (e) => e.closest(".scroll");
  for (const s of document.querySelectorAll(".scroll")) {
    if (s.tabIndex !== 0 || !s.getAttribute("aria-label")) say("a box that scrolls cannot be reached by keyboard, or has no name");
  }

  // Every text is in the window, large enough, in strong contrast, and not cut off.
  const rgb = (text) => (text.match(/[\d.]+/g) || []).map(Number);
  const light = (c) => {
    const [r, g, b] = c.map((x) => { x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(rgb(getComputedStyle(document.body).backgroundColor));
  if (dark ? ground > 0.05 : ground < 0.8) say(`the background has the luminance ${ground}`);
  const contrast = (c) => { const l = light(c); return (Math.max(l, ground) + 0.05) / (Math.min(l, ground) + 0.05); };
  const texts = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const e = n.parentElement;
    if (!n.data.trim() || e.closest("script, style, title")) continue;
    const range = document.createRange();
    range.selectNodeContents(n);
    const box = range.getBoundingClientRect(), style = getComputedStyle(e), words = n.data.trim().slice(0, 60);
    if (box.width === 0 || box.height === 0) { say(`"${words}" is not visible`); continue; }
    if (!scrolls(e) && (box.left < -0.5 || box.right > width + 0.5)) say(`"${words}" is from ${box.left} to ${box.right}, in a window of ${width}`);
    if (parseFloat(style.fontSize) < 11.5) say(`"${words}" is ${style.fontSize} high`);
    const color = rgb(e instanceof SVGElement ? style.fill : style.color);
    if (contrast(color) < 4.5) say(`"${words}" has the contrast ${contrast(color)}`);
    if (style.overflow === "hidden" && (e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight)) say(`"${words}" is cut off`);
    texts.push({ e, box, words });
  }
  if (texts.length < 20) say(`the page has ${texts.length} texts`);

  // No two texts touch, where one of them is in a picture.
  for (let i = 0; i < texts.length; i++) {
    for (let j = 0; j < texts.length; j++) {
      const a = texts[i], b = texts[j];
      if (i === j || !(a.e instanceof SVGElement) || (b.e instanceof SVGElement && j > i) || scrolls(b.e)) continue;
      const apart = a.box.right <= b.box.left + 0.5 || b.box.right <= a.box.left + 0.5 || a.box.bottom <= b.box.top + 3 || b.box.bottom <= a.box.top + 3;
      if (!apart) say(`"${a.words}" touches "${b.words}"`);
    }
  }

  // Pictures have a role, a name and their figures; lines and areas are within them.
  const pictures = [...document.querySelectorAll("svg[role=img]")];
  if (pictures.length < 2) say(`the page has ${pictures.length} pictures`);
  for (const svg of pictures) {
    const title = svg.querySelector(":scope > title");
    if (!title || !title.textContent.trim()) say("a picture has no title");
    if (!svg.closest("section").querySelector("table")) say(`the picture "${title?.textContent}" has no table`);
    const frame = svg.getBoundingClientRect();
    if (frame.width < 200 || frame.height < 20) say(`the picture "${title?.textContent}" is ${frame.width} by ${frame.height}`);
    for (const e of svg.querySelectorAll("path, rect, line")) {
      const box = e.getBoundingClientRect();
      if (/NaN|Infinity|undefined/.test(e.outerHTML.replace(/<title>.*?<\/title>/s, ""))) say(`not a number: ${e.outerHTML.slice(0, 120)}`);
      if (box.left < frame.left - 8 || box.right > frame.right + 8 || box.top < frame.top - 14 || box.bottom > frame.bottom + 20) say(`outside of its picture: ${e.outerHTML.slice(0, 120)}`);
    }
  }

  // Headings are in order, and no id is used twice.
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  if (new Set(ids).size !== ids.length) say("an id is used twice");
  for (const e of document.querySelectorAll("[aria-labelledby]")) {
    for (const id of e.getAttribute("aria-labelledby").split(" ")) if (!document.getElementById(id)) say(`no element has the id ${id}`);
  }
  if (document.querySelectorAll("h1").length !== 1 || !document.title || !document.documentElement.lang) say("a page wants one h1, a title and a language");
  for (const e of document.querySelectorAll("*")) {
    for (const a of e.attributes) if (/^on|^(src|href|srcset|action)$/.test(a.name) && a.value) say(`an attribute that loads or runs something: ${a.name}`);
  }
  return problems;
}
