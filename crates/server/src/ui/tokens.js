
// Text comes in pieces that are not tokens: bytes wait for their character, marks of reasoning
// and white space around them never show. So every token of a step is expected once, and pieces
// are matched against what is expected.

const FIRST = { kind: "plain", note: "first token, made by the prompt" };

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return share >= 99.95 ? "100 %" : `${share.toFixed(share < 10 ? 1 : 0)} %`;
}

/** Tokens that a step emitted, in order. */
function emitted(step) {
  const tokens = step.path.map((index) => {
    const node = step.nodes[index];
    const drafter = node.logprob === null ? "" : `, drafter ${percent(node.logprob)}, rank ${node.rank}`;
    return { rest: node.text, kind: "draft", depth: node.depth, note: `accepted draft, depth ${node.depth}${drafter}` };
  });
  if (step.bonus) {
    const plain = step.mode === "plain";
    const note = plain ? "plain step" : `bonus token behind ${step.path.length} accepted`;
    tokens.push({ rest: step.bonus.text, kind: plain ? "plain" : "bonus", note });
  }
  return tokens;
}

function style(element, token) {
  element.classList.add("token", token.kind);
  if (token.depth) element.style.setProperty("--depth", token.depth);
  if (token.note) element.title = token.note;
}

class Painter {
  constructor() {
    this.expected = [];
    this.current = FIRST;
    this.last = null;
  }

  expect(step) {
    this.expected.push(...emitted(step));
  }

  /** What comes next has no text of its own. */
  forget() {
    this.expected = [];
  }

  append(parent, text, token) {
    this.current = token;
    const last = this.last;
    if (last && last.token === token && last.span.parentNode === parent) {
      last.span.textContent += text;
      return;
    }
    const span = document.createElement("span");
    span.textContent = text;
    style(span, token);
    parent.append(span);
    this.last = { span, token };
  }

  paint(parent, text) {
    while (text) {
      const [token, next] = this.expected;
      if (!token) return this.append(parent, text, this.current);
      if (/^\uFFFD*$/.test(token.rest)) {
        // A part of a character, which comes with its last part.
        this.current = token;
        this.expected.shift();
        continue;
      }
      const rest = [token.rest, token.rest.trimStart()].find((rest) => rest && (text.startsWith(rest) || rest.startsWith(text)));
      if (rest && rest.length > text.length) {
        token.rest = rest.slice(text.length);
        return this.append(parent, text, token);
      }
      if (rest) {
        this.append(parent, rest, token);
        this.expected.shift();
        text = text.slice(rest.length);
        continue;
      }
      const at = text.indexOf(token.rest);
      if (at > 0 && !(next && next.rest && text.startsWith(next.rest))) {
        this.append(parent, text.slice(0, at), this.current);
        text = text.slice(at);
      } else {
        this.expected.shift();
      }
    }
  }
}
