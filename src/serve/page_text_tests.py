"""The page's Markdown and TeX. Run by page_test.py."""

from page_case import BROWSER, PageCase

__all__ = ["MarkdownTest", "MathTest"]

# What the page's own additions look like, taken out of what a test compares.
PLAIN_HTML = r"""
    const plain = (node) => {
      for (const bar of node.querySelectorAll(".bar-of-code")) {
        if (bar.firstChild.textContent) bar.parentNode.dataset.language = bar.firstChild.textContent;
        bar.remove();
      }
      for (const each of node.querySelectorAll("[tabindex]")) each.removeAttribute("tabindex");
      for (const each of node.querySelectorAll("a")) each.removeAttribute("rel");
      for (const each of node.querySelectorAll("a")) each.removeAttribute("target");
      return node.innerHTML;
    };"""

BLOCKS = {
    "One\ntwo\n\nthree": "<p>One<br>two</p><p>three</p>",
    "# One\n### Three ##\n#none": "<h4>One</h4><h6>Three</h6><p>#none</p>",
    "#### 26": "<h6>26</h6>",
    "a\n\n---\n***": "<p>a</p><hr><hr>",
    "> one\n> two\n>> three": "<blockquote><p>one<br>two</p><blockquote><p>three</p></blockquote>"
                              "</blockquote>",
    "- a\n- b\n  - c\n\n  d\n- e":
        "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul><p>d</p></li>"
        "<li><p>e</p></li></ul>",
    "Steps:\n1. a\n  - b\n2. c": "<p>Steps:</p><ol><li><p>a</p><ul><li><p>b</p></li></ul></li>"
                                 "<li><p>c</p></li></ol>",
    "3) c\n4) d": '<ol start="3"><li><p>c</p></li><li><p>d</p></li></ol>',
    "- [ ] open\n- [x] done": '<ul><li class="task">☐ <p>open</p></li>'
                              '<li class="task">☑ <p>done</p></li></ul>',
    "* a\n* * *\n* b": "<ul><li><p>a</p></li></ul><hr><ul><li><p>b</p></li></ul>",
    "In the year\n1986. it was": "<p>In the year<br>1986. it was</p>",
    "```py\nx = '<b>'\n\n  y\n```\nz":
        '<div class="code" data-language="py"><pre><code>x = \'&lt;b&gt;\'\n\n  y</code></pre></div>'
        "<p>z</p>",
    "~~~\n```\n~~~": '<div class="code"><pre><code>```</code></pre></div>',
    "```\nstill open": '<div class="code"><pre><code>still open</code></pre></div>',
    "1. a\n   ```\n   b\n     c\n   ```": '<ol><li><p>a</p><div class="code"><pre><code>b\n  c</code>'
                                         "</pre></div></li></ol>",
    "    indented\n\n      more": '<div class="code"><pre><code>indented\n\n  more</code></pre></div>',
    "|a|b|\n|:-:|--:|\n| 1 | `x` |\n| \\| |\nafter":
        '<div class="table"><table><thead><tr><th class="center">a</th><th class="right">b</th></tr>'
        '</thead><tbody><tr><td class="center">1</td><td class="right"><code>x</code></td></tr>'
        '<tr><td class="center">|</td><td class="right"></td></tr></tbody></table></div>'
        "<p>after</p>",
    "a | b\nno table": "<p>a | b<br>no table</p>",
    "$$\nx\n$$": '<div class="formula"><math display="block"><mrow><mi>x</mi></mrow></math></div>',
    "\\[ x \\].": '<div class="formula"><math display="block"><mrow><mi>x</mi></mrow></math>.</div>',
    "$$\nnot closed": "<p>$$<br>not closed</p>",
}
SPANS = {
    "**b** *i* ***bi*** ~~d~~ __b__ _i_":
        "<strong>b</strong> <em>i</em> <strong><em>bi</em></strong> <del>d</del> "
        "<strong>b</strong> <em>i</em>",
    "*a **b** c* **a *b***": "<em>a <strong>b</strong> c</em> <strong>a <em>b</em></strong>",
    "4 * 3 = 12, 2 * 7 = 14": "4 * 3 = 12, 2 * 7 = 14",
    "snake_case_name and __init__.py": "snake_case_name and <strong>init</strong>.py",
    "**open *and `a * b`*": "**open <em>and <code>a * b</code></em>",
    "`` a`b `` and ` c": "<code>a`b</code> and ` c",
    r"\*not\* \\ \q": r"*not* \ \q",
    "&lt;b&gt; &nbsp;&copy;": "&lt;b&gt; &nbsp;&amp;copy;",
    "a<br>b <b>c</b>": "a<br>b &lt;b&gt;c&lt;/b&gt;",
    "It costs $3 and $7, or $5.": "It costs $3 and $7, or $5.",
    "so $x$, \\(x\\)": 'so <math display="inline"><mrow><mi>x</mi></mrow></math>, '
                       '<math display="inline"><mrow><mi>x</mi></mrow></math>',
    '[a *b*](https://h.org/x_(y) "t") [c](d)':
        '<a href="https://h.org/x_(y)">a <em>b</em></a> [c](d)',
    "see https://h.org/a_b_c. (http://h.org)":
        'see <a href="https://h.org/a_b_c">https://h.org/a_b_c</a>. '
        '(<a href="http://h.org/">http://h.org</a>)',
    "<https://h.org> <mailto:a@h.org>": '<a href="https://h.org/">https://h.org</a> '
                                        '<a href="mailto:a@h.org">mailto:a@h.org</a>',
    "![a picture](https://h.org/p.png)": '<a href="https://h.org/p.png">a picture</a>',
    "![](https://h.org/p.png)": '<a href="https://h.org/p.png">https://h.org/p.png</a>',
    "[x](javascript:alert(1)) <javascript:alert(1)>":
        "[x](javascript:alert(1)) &lt;javascript:alert(1)&gt;",
    "[x](data:text/html,y) [z](https": "[x](data:text/html,y) [z](https",
}
SAMPLE = """## A *heading*
Some **bold** text, `code` and [a link](https://h.org), &amp; \\*stars\\*.
Its second line costs $3, $x_1$ and é😀.

1. First
   - nested
     ```c
     int x;

       y;
     ```
2. Second

| a | b |
|---|--:|
| 1 | **2** |

> quoted
> - item

\\[
\\frac{1}{2}
\\]
The end.
"""
# Whatever the marks, they are shown, and soon.
HOSTILE = [">" * 5000, "- " * 5000, "*a " * 5000, "**a*" * 3000, "[" * 5000, "[a](" * 3000, "`" * 3001,
           "` `` " * 3000, "$a " * 3000, "\\(" * 3000, "|a" * 3000 + "\n" + "|-" * 3000, "_" * 5000,
           "\\[\n" * 3000, "<a:" * 3000, "&" * 5000, "~~a" * 3000, "\\" * 5001, "* " * 99 + "a",
           "![" * 3000, "https://h.org/" + ")" * 5000, "#" * 5000, "$" + "{" * 5000 + "$"]


class MarkdownTest(PageCase):
    def render(self, sources):
        return BROWSER.run_async(PLAIN_HTML + """
            const { showMarkdown } = await import("/markdown.js");
            return args[0].map((source) => {
              const box = document.createElement("div");
              showMarkdown(box, source);
              return plain(box);
            });""", sources)

    def test_markdown_becomes_elements(self):
        cases = {**BLOCKS, **{source: f"<p>{html}</p>" for source, html in SPANS.items()}}
        for (source, expected), got in zip(cases.items(), self.render(list(cases))):
            with self.subTest(source):
                self.assertEqual(got, expected)

    def test_text_that_grows_is_drawn_as_if_it_had_come_at_once(self):
        grown, whole, kept = BROWSER.run_async(PLAIN_HTML + """
            const { showMarkdown } = await import("/markdown.js");
            const [grown, whole] = ["div", "div"].map((tag) => document.createElement(tag));
            let heading = null;
            let kept = true;
            for (let end = 1; end <= args[0].length; end++) {
              showMarkdown(grown, args[0].slice(0, end));
              if (end === 100) heading = grown.firstChild;
              if (end > 100) kept &&= grown.firstChild === heading;
            }
            showMarkdown(whole, args[0]);
            return [plain(grown), plain(whole), kept];""", SAMPLE)
        self.assertEqual(grown, whole)
        self.assertTrue(kept, "a block that did not change stays")

    def test_every_text_knows_its_place_in_the_source(self):
        pieces = BROWSER.run_async("""
            const { showMarkdown } = await import("/markdown.js");
            const { sourceStart } = await import("/inline.js");
            const box = document.createElement("div");
            showMarkdown(box, args[0]);
            const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
            const list = [];
            while (walker.nextNode()) {
              const node = walker.currentNode;
              if (node.parentNode.closest("math, .bar-of-code")) continue;
              list.push([node.data, args[0].slice(sourceStart(node), sourceStart(node) + node.length)]);
            }
            return list;""", SAMPLE)
        self.assertGreater(len(pieces), 25)
        for shown, source in pieces:
            self.assertEqual(shown, source)

    def test_no_text_stops_the_page(self):
        for source, got in zip(HOSTILE, self.render(HOSTILE)):
            with self.subTest(source[:20]):
                self.assertNotEqual(got, "")


NONE = 'stretchy="false"'
MATH = {
    "x+1.5": "<mi>x</mi><mo>+</mo><mn>1.5</mn>",
    r"\frac{a}{2} \dfrac12": '<mfrac><mi>a</mi><mn>2</mn></mfrac><mstyle displaystyle="true"><mfrac>'
                             "<mn>1</mn><mn>2</mn></mfrac></mstyle>",
    "x^2_i y^{n+1} z_1": "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"
                         "<msup><mi>y</mi><mrow><mi>n</mi><mo>+</mo><mn>1</mn></mrow></msup>"
                         "<msub><mi>z</mi><mn>1</mn></msub>",
    "f''": "<msup><mi>f</mi><mo>′′</mo></msup>",
    r"\sqrt{x} \sqrt[3]{2}": "<msqrt><mi>x</mi></msqrt><mroot><mn>2</mn><mn>3</mn></mroot>",
    r"\alpha\Omega\pi*2": "<mi>α</mi><mi>Ω</mi><mi>π</mi><mo>∗</mo><mn>2</mn>",
    r"\sum_{k}^n k": '<munderover><mo largeop="true" movablelimits="true">∑</mo><mi>k</mi><mi>n</mi>'
                     "</munderover><mi>k</mi>",
    r"\int_0^1": '<msubsup><mo largeop="true">∫</mo><mn>0</mn><mn>1</mn></msubsup>',
    r"\lim_{x \to 0} \sin x": '<munder><mo movablelimits="true" class="name">lim</mo><mrow>'
                              f'<mi>x</mi><mo {NONE}>→</mo><mn>0</mn></mrow></munder>'
                              "<mi>sin</mi><mi>x</mi>",
    r"a \le b \neq c": f"<mi>a</mi><mo {NONE}>≤</mo><mi>b</mi><mo {NONE}>≠</mo><mi>c</mi>",
    r"\text{if } x": "<mtext>if&nbsp;</mtext><mi>x</mi>",
    r"\mathbb{R} \mathbf{x}": '<mi mathvariant="normal">ℝ</mi><mi mathvariant="normal">𝐱</mi>',
    r"\left( x \right]": '<mrow><mo fence="true" stretchy="true">(</mo><mi>x</mi>'
                         '<mo fence="true" stretchy="true">]</mo></mrow>',
    r"\boxed{42}": '<mrow class="boxed"><mn>42</mn></mrow>',
    r"\hat{x}": '<mover accent="true"><mi>x</mi><mo stretchy="false">^</mo></mover>',
    r"\begin{pmatrix} a & b \\ c & d \\ \end{pmatrix}":
        '<mrow><mo fence="true" stretchy="true">(</mo><mtable><mtr><mtd><mi>a</mi></mtd>'
        "<mtd><mi>b</mi></mtd></mtr><mtr><mtd><mi>c</mi></mtd><mtd><mi>d</mi></mtd></mtr></mtable>"
        '<mo fence="true" stretchy="true">)</mo></mrow>',
    r"\foo{x}": '<mtext class="unknown">\\foo</mtext><mrow><mi>x</mi></mrow>',
    r"\constructor \toString": '<mtext class="unknown">\\constructor</mtext>'
                               '<mtext class="unknown">\\toString</mtext>',
    "1,000 - 2": "<mn>1,000</mn><mo>−</mo><mn>2</mn>",
    "<b>": "<mo>&lt;</mo><mi>b</mi><mo>&gt;</mo>",
}
BROKEN = [r"\frac{1", "x}", r"\begin{matrix} a", r"\begin{nothing}x\end{nothing}", r"\left( x",
          r"\sqrt[3", r"\text{", r"\begin{matrix} a \end{pmatrix}", "{" * 1000 + "}" * 1000]


class MathTest(PageCase):
    def render(self, sources):
        return BROWSER.run_async("""
            const { mathElement } = await import("/math.js");
            return args[0].map((tex) => mathElement(tex, "inline").outerHTML);""", sources)

    def test_tex_becomes_mathml(self):
        for (source, expected), got in zip(MATH.items(), self.render(list(MATH))):
            with self.subTest(source):
                self.assertEqual(got, f'<math display="inline"><mrow>{expected}</mrow></math>')

    def test_lines_stand_below_each_other(self):
        got, = self.render([r"a &= b \\[2pt] &= c"])
        self.assertEqual(got, '<math display="inline"><mtable>'
                              "<mtr><mtd><mi>a</mi></mtd><mtd><mo>=</mo><mi>b</mi></mtd></mtr>"
                              "<mtr><mtd></mtd><mtd><mo>=</mo><mi>c</mi></mtd></mtr>"
                              "</mtable></math>")

    def test_what_is_no_formula_is_shown_as_it_was_written(self):
        for source, got in zip(BROKEN, self.render(BROKEN)):
            with self.subTest(source[:40]):
                self.assertEqual(got, f'<code class="tex">{source}</code>')
