// TeX to MathML: the part of it that models write in answers. A command that is not known is shown as
// it was written, and so is a formula that cannot be read as a whole.

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 40;

const node = (tag, attributes = {}, ...children) => {
  const made = document.createElementNS(MATHML, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// "alpha α beta β" -> {alpha: "α", beta: "β"}
const table = (text) => {
  const words = text.trim().split(/\s+/);
  return Object.fromEntries(words.flatMap((word, i) => (i % 2 ? [] : [[word, words[i + 1]]])));
};

const LETTERS = table(`alpha α beta β gamma γ delta δ epsilon ϵ varepsilon ε zeta ζ eta η theta θ
  vartheta ϑ iota ι kappa κ lambda λ mu μ nu ν xi ξ omicron ο pi π varpi ϖ rho ρ varrho ϱ sigma σ
  varsigma ς tau τ upsilon υ phi ϕ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Xi Ξ
  Pi Π Sigma Σ Upsilon Υ Phi Φ Psi Ψ Omega Ω ell ℓ hbar ℏ imath ı jmath ȷ Re ℜ Im ℑ aleph ℵ infty ∞
  partial ∂ nabla ∇ emptyset ∅ varnothing ∅ angle ∠ triangle △ square □ degree ° top ⊤ bot ⊥ ldots …
  dots … cdots ⋯ vdots ⋮ ddots ⋱ dotsc … dotsb ⋯ prime ′ checkmark ✓`);
const OPERATORS = table(`times × cdot ⋅ div ÷ pm ± mp ∓ ast ∗ star ⋆ circ ∘ bullet • oplus ⊕ otimes ⊗
  odot ⊙ cup ∪ cap ∩ setminus ∖ wedge ∧ land ∧ vee ∨ lor ∨ neg ¬ lnot ¬ leq ≤ le ≤ geq ≥ ge ≥ leqslant ⩽
  geqslant ⩾ neq ≠ ne ≠ approx ≈ equiv ≡ sim ∼ simeq ≃ cong ≅ propto ∝ ll ≪ gg ≫ in ∈ notin ∉ ni ∋
  subset ⊂ subseteq ⊆ supset ⊃ supseteq ⊇ mid ∣ nmid ∤ parallel ∥ perp ⟂ forall ∀ exists ∃ nexists ∄
  to → rightarrow → leftarrow ← leftrightarrow ↔ Rightarrow ⇒ Leftarrow ⇐ Leftrightarrow ⇔ implies ⟹
  iff ⟺ mapsto ↦ longrightarrow ⟶ Longrightarrow ⟹ uparrow ↑ downarrow ↓ gets ← hookrightarrow ↪
  therefore ∴ because ∵ colon : lbrace { rbrace } { { } } lbrack [ rbrack ] langle ⟨ rangle ⟩ lfloor ⌊
  rfloor ⌋ lceil ⌈ rceil ⌉ vert | lvert | rvert | Vert ‖ lVert ‖ rVert ‖ | ‖ backslash \\ % % # # & & $ $
  _ _ vdash ⊢ models ⊨ prec ≺ succ ≻ preceq ⪯ succeq ⪰ triangleq ≜ coloneqq ≔ rightleftharpoons ⇌`);
const LARGE = table(`sum ∑ prod ∏ coprod ∐ bigcup ⋃ bigcap ⋂ bigoplus ⨁ bigotimes ⨂ bigvee ⋁ bigwedge ⋀`);
const INTEGRALS = table("int ∫ iint ∬ iiint ∭ oint ∮");
const FUNCTIONS = new Set(`sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth log ln lg exp
  deg dim ker hom arg`.split(/\s+/));
const LIMITS = new Set("lim max min sup inf det gcd Pr limsup liminf argmax argmin".split(" "));
const ACCENTS = table(`hat ^ widehat ^ bar ¯ overline ‾ tilde ~ widetilde ~ vec → overrightarrow → dot ˙
  ddot ¨ overbrace ⏞`);
const BELOW = table("underline _ underbrace ⏟");
const SPACES = { ",": ".17em", ":": ".22em", ">": ".22em", ";": ".28em", "!": "-.17em", " ": ".3em",
                 quad: "1em", qquad: "2em", enspace: ".5em", thinspace: ".17em" };
const TEXTS = new Set("text textrm textnormal mbox textit textbf textsf texttt".split(" "));
// Said to the typesetter, and nothing to a browser.
const IGNORED = new Set(`displaystyle textstyle limits nolimits nonumber notag hline big Big bigg Bigg
  bigl bigr Bigl Bigr biggl biggr Biggl Biggr`.split(/\s+/));
const FENCES = { pmatrix: "()", bmatrix: "[]", Bmatrix: "{}", vmatrix: "||", Vmatrix: "‖‖", cases: "{" };
const TABLES = new Set(`matrix smallmatrix pmatrix bmatrix Bmatrix vmatrix Vmatrix cases array aligned
  align align* alignedat gathered gather gather* split equation equation* eqnarray`.split(/\s+/));
// The first capital, small letter and digit of an alphabet, and the letters that Unicode has elsewhere.
const ALPHABETS = {
  mathbf: [0x1d400, 0x1d41a, 0x1d7ce], boldsymbol: [0x1d468, 0x1d482, 0x1d7ce],
  mathbb: [0x1d538, 0x1d552, 0x1d7d8, table("C ℂ H ℍ N ℕ P ℙ Q ℚ R ℝ Z ℤ")],
  mathcal: [0x1d49c, 0x1d4b6, null, table("B ℬ E ℰ F ℱ H ℋ I ℐ L ℒ M ℳ R ℛ e ℯ g ℊ o ℴ")],
  mathfrak: [0x1d504, 0x1d51e, null, table("C ℭ H ℌ I ℑ R ℜ Z ℨ")],
  mathsf: [0x1d5a0, 0x1d5ba, 0x1d7e2], mathtt: [0x1d670, 0x1d68a, 0x1d7f6],
};
ALPHABETS.bm = ALPHABETS.boldsymbol;
ALPHABETS.mathscr = ALPHABETS.mathcal;

function inAlphabet([capital, small, digit, elsewhere = {}], text) {
  return text.replace(/[A-Za-z0-9]/g, (c) => {
    const first = c >= "a" ? small : c >= "A" ? capital : digit;
    if (elsewhere[c] || first === null) return elsewhere[c] ?? c;
    return String.fromCodePoint(first + c.charCodeAt(0) - (c >= "a" ? 97 : c >= "A" ? 65 : 48));
  });
}

class Parser {
  #source;
  #at = 0;
  #depth = 0;

  constructor(source) {
    this.#source = source;
  }

  // The next token without taking it: "\\frac", "{", "12.5", "x"; "" at the end.
  #peek() {
    const token = /\s*(\\(?:operatorname\*|tag\*|[A-Za-z]+|[^])|\d+(?:,\d{3}(?!\d))*(?:\.\d+)?|[^]|$)/uy;
    token.lastIndex = this.#at;
    const [whole, found] = token.exec(this.#source);
    return { found: found.trim() === "" && found !== "\\ " ? "" : found, end: this.#at + whole.length };
  }

  #next() {
    const { found, end } = this.#peek();
    this.#at = end;
    return found;
  }

  #takes(token) {
    const isNext = this.#peek().found === token;
    if (isNext) this.#next();
    return isNext;
  }

  #expect(token) {
    if (!this.#takes(token)) throw new Error(`expected ${token}`);
  }

  // The text of {...} as it stands.
  #raw() {
    this.#expect("{");
    const from = this.#at;
    for (let level = 1; level > 0; this.#at++) {
      const c = this.#source[this.#at];
      if (c === undefined) throw new Error("expected }");
      if (c === "\\") this.#at++;
      else if (c === "{") level++;
      else if (c === "}") level--;
    }
    return this.#source.slice(from, this.#at - 1);
  }

  // Nodes up to one of `ends`, which is not taken.
  #nodes(...ends) {
    if (++this.#depth > MAX_DEPTH) throw new Error("too deep");
    const list = [];
    for (;;) {
      const { found } = this.#peek();
      if (ends.includes(found)) break;
      if (found === "" || found === "}") throw new Error(`expected ${ends.join(" or ")}`);
      const made = this.#scripted();
      if (made) list.push(made);
    }
    this.#depth--;
    return list;
  }

  #row(...ends) {
    const list = this.#nodes(...ends);
    return list.length === 1 ? list[0] : node("mrow", {}, ...list);
  }

  // The argument of a command: {...} or one token.
  #argument() {
    if (this.#takes("{")) {
      const row = this.#row("}");
      this.#expect("}");
      return row;
    }
    const { found, end } = this.#peek();
    if (/^\d/.test(found)) {  // \frac12 is one half
      this.#at = end - found.length + 1;
      return node("mn", {}, found[0]);
    }
    return this.#atom() ?? node("mrow");
  }

  #scripted() {
    const base = /^[_^]$/.test(this.#peek().found) ? node("mrow") : this.#atom();
    if (!base) return null;
    let below = null;
    let above = null;
    for (;;) {
      if (this.#takes("\\limits") || this.#takes("\\nolimits")) continue;
      if (this.#takes("_")) below = this.#argument();
      else if (this.#takes("^")) above = this.#argument();
      else if (this.#peek().found === "'") above = node("mo", {}, this.#primes());
      else break;
    }
    if (!below && !above) return base;
    const isLimit = base.hasAttribute("movablelimits") || /^m(under|over)$/.test(base.localName);
    const parts = [base, below, above].filter(Boolean);
    const tag = isLimit ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return node(tag[below && above ? 2 : below ? 0 : 1], {}, ...parts);
  }

  #primes() {
    let text = "";
    while (this.#takes("'")) text += "′";
    return text;
  }

  // Null for what shows nothing.
  #atom() {
    const token = this.#next();
    if (token[0] === "\\") return this.#command(token.slice(1));
    if (token === "{") {
      const row = node("mrow", {}, ...this.#nodes("}"));
      this.#expect("}");
      return row;
    }
    if (/^\d/.test(token)) return node("mn", {}, token);
    if (/^\p{L}$/u.test(token)) return node("mi", {}, token);
    if (token === "~") return node("mspace", { width: ".3em" });
    if (token === "" || token === "&") throw new Error(`unexpected ${token}`);
    const stretchy = /^[()[\]|]$/.test(token) ? { stretchy: "false" } : {};
    return node("mo", stretchy, { "-": "−", "*": "∗" }[token] ?? token);
  }

  #command(name) {
    const plain = this.#symbol(name);
    if (plain) return plain;
    if (IGNORED.has(name)) return null;
    // Spaces at its ends would go.
    if (TEXTS.has(name)) return node("mtext", {}, this.#raw().replace(/^\s|\s$/g, "\u00a0"));
    if (Object.hasOwn(ALPHABETS, name)) return this.#letters(ALPHABETS[name]);
    if (Object.hasOwn(ACCENTS, name)) {
      const mark = node("mo", { stretchy: String(/^(over|wide)/.test(name)) }, ACCENTS[name]);
      return node("mover", name === "overbrace" ? {} : { accent: "true" }, this.#argument(), mark);
    }
    if (Object.hasOwn(BELOW, name)) {
      return node("munder", {}, this.#argument(), node("mo", { stretchy: "true" }, BELOW[name]));
    }
    return this.#structure(name) ?? node("mtext", { class: "unknown" }, `\\${name}`);
  }

  // What takes no argument.
  #symbol(name) {
    if (Object.hasOwn(LETTERS, name)) return node("mi", {}, LETTERS[name]);
    if (Object.hasOwn(OPERATORS, name)) {
      return node("mo", { stretchy: "false" }, OPERATORS[name]);
    }
    if (Object.hasOwn(LARGE, name)) {
      return node("mo", { largeop: "true", movablelimits: "true" }, LARGE[name]);
    }
    if (Object.hasOwn(INTEGRALS, name)) return node("mo", { largeop: "true" }, INTEGRALS[name]);
    if (FUNCTIONS.has(name)) return node("mi", {}, name);
    if (LIMITS.has(name)) {
      const shown = name.replace(/^(lim|arg)(?=.)/, "$1\u2009");
      return node("mo", { movablelimits: "true", class: "name" }, shown);
    }
    if (Object.hasOwn(SPACES, name)) return node("mspace", { width: SPACES[name] });
    return null;
  }

  #letters(alphabet) {
    const row = this.#argument();
    const leaves = row.matches("mi, mn, mo") ? [row] : row.querySelectorAll("mi, mn");
    for (const leaf of leaves) {
      leaf.textContent = inAlphabet(alphabet, leaf.textContent);
      if (leaf.localName === "mi") leaf.setAttribute("mathvariant", "normal");
    }
    return row;
  }

  #structure(name) {
    switch (name) {
      case "frac": case "dfrac": case "tfrac": case "cfrac": {
        const display = { d: "true", t: "false" }[name[0]];
        const fraction = node("mfrac", {}, this.#argument(), this.#argument());
        return display ? node("mstyle", { displaystyle: display }, fraction) : fraction;
      }
      case "binom": case "dbinom": case "tbinom": {
        const pair = node("mfrac", { linethickness: "0" }, this.#argument(), this.#argument());
        return node("mrow", {}, node("mo", {}, "("), pair, node("mo", {}, ")"));
      }
      case "sqrt": return this.#root();
      case "left": return this.#fenced();
      case "begin": return this.#environment(this.#raw());
      case "boxed": case "fbox": return node("mrow", { class: "boxed" }, this.#argument());
      case "mathrm": case "operatorname": case "operatorname*": {
        const word = this.#raw().replace(/\\[,;:! ]/g, " ").trim();
        return node("mi", { mathvariant: "normal" }, word);
      }
      case "mathit": case "mathnormal": return this.#argument();
      case "overset": case "stackrel": {
        const above = this.#argument();
        return node("mover", {}, this.#argument(), above);
      }
      case "underset": {
        const below = this.#argument();
        return node("munder", {}, this.#argument(), below);
      }
      case "xrightarrow": case "xleftarrow": {
        const arrow = node("mo", { stretchy: "true" }, name === "xrightarrow" ? "→" : "←");
        return node("mover", {}, arrow, node("mpadded", { lspace: ".4em", width: "+.8em" },
          this.#argument()));
      }
      case "not": {
        const struck = this.#atom();
        if (struck) struck.textContent += "\u0338";
        return struck;
      }
      case "bmod": return node("mo", { lspace: ".2em", rspace: ".2em" }, "mod");
      case "pmod": {
        const modulus = this.#argument();
        return node("mrow", {}, node("mspace", { width: ".5em" }), node("mo", {}, "("),
          node("mi", {}, "mod"), node("mspace", { width: ".3em" }), modulus, node("mo", {}, ")"));
      }
      case "substack": {
        this.#expect("{");
        const rows = this.#rows("}");
        this.#expect("}");
        return rows;
      }
      case "phantom": return node("mphantom", {}, this.#argument());
      case "tag": case "tag*": return node("mtext", {}, `\u2003(${this.#raw()})`);
      case "label": this.#raw(); return null;
      default: return null;
    }
  }

  #root() {
    let degree = null;
    if (this.#takes("[")) {
      degree = this.#row("]");
      this.#expect("]");
    }
    const inside = this.#argument();
    return degree ? node("mroot", {}, inside, degree) : node("msqrt", {}, inside);
  }

  // "(", "\\{", "\\langle"; "" for the dot that shows nothing.
  #delimiter() {
    const token = this.#next();
    if (token === ".") return "";
    const shown = token[0] === "\\" ? OPERATORS[token.slice(1)] : token;
    if (!shown || shown.length > 1) throw new Error(`no delimiter: ${token}`);
    return { "<": "⟨", ">": "⟩" }[shown] ?? shown;
  }

  #fenced() {
    const row = node("mrow", {}, node("mo", { fence: "true", stretchy: "true" }, this.#delimiter()));
    for (;;) {
      row.append(...this.#nodes("\\right", "\\middle"));
      const isMiddle = this.#next() === "\\middle";
      row.append(node("mo", { fence: "true", stretchy: "true" }, this.#delimiter()));
      if (!isMiddle) return row;
    }
  }

  #rows(...ends) {
    const rows = node("mtable");
    for (;;) {
      const row = node("mtr");
      do {
        row.append(node("mtd", {}, ...this.#nodes("&", "\\\\", ...ends)));
      } while (this.#takes("&"));
      // A last row that is empty was only opened by the \\ before it.
      if (row.children.length > 1 || row.firstChild.children.length) rows.append(row);
      if (!this.#takes("\\\\")) return rows;
      const height = /\s*\[-?[\d.]+\s*\w+\]/y;
      height.lastIndex = this.#at;
      if (height.test(this.#source)) this.#at = height.lastIndex;
    }
  }

  #environment(name) {
    if (!TABLES.has(name)) throw new Error(`no environment: ${name}`);
    if (name === "array" || name === "alignedat") this.#raw();
    const rows = this.#rows("\\end");
    this.#expect("\\end");
    if (this.#raw() !== name) throw new Error(`expected \\end{${name}}`);
    if (/^(align|split|eqnarray)/.test(name)) rows.setAttribute("class", "aligned");
    if (name === "cases") rows.setAttribute("class", "cases");
    if (!FENCES[name]) return rows;
    const fences = [...FENCES[name]].map((c) => node("mo", { fence: "true", stretchy: "true" }, c));
    return node("mrow", {}, fences[0], rows, ...fences.slice(1));
  }

  // A formula; lines of it, where it has several, one below the other.
  parse() {
    const rows = this.#rows("");
    const isOne = rows.children.length === 1 && rows.firstChild.children.length === 1;
    return isOne ? node("mrow", {}, ...rows.firstChild.firstChild.childNodes) : rows;
  }
}

// <math>, or <code> with the source where it is no formula. `display` is "block" or "inline".
export function mathElement(tex, display) {
  try {
    return node("math", { display }, new Parser(tex).parse());
  } catch {
    const source = document.createElement("code");
    source.className = "tex";
    source.textContent = tex.trim();
    return source;
  }
}
