//! The playground: how it is served, and what it does in a browser.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/browser.rs"]
mod browser;
#[path = "common/server.rs"]
mod server;

use browser::Browser;
use serde_json::{Value, json};
use server::{Server, chat};

const QUESTION: &str = "Explain the quicksort algorithm in 3 sentences.";
/// Bytes of the page at most.
const SIZE_MAX: usize = 64 << 10;

#[test]
fn the_page_is_one_file_that_asks_nobody_else() {
    let server = Server::start(&["--api-key=secret"]);
    for path in ["/ui", "/ui/"] {
        let page = server.get(path);
        assert_eq!(page.status, 200, "no key is needed");
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        assert_eq!(page.header("x-frame-options"), "DENY");
        let policy = page.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'sha256-",
            "connect-src 'self'",
        ] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe-"), "{policy}");
        assert!(page.text.len() < SIZE_MAX, "{} bytes", page.text.len());
        // Names of XML formats are no addresses.
        let text = page.text.replace("http://www.w3.org/2000/svg", "");
        for outside in [
            "http:",
            "https:",
            "//cdn",
            "@import",
            "src=",
            "url(",
            "innerHTML",
            "insertAdjacentHTML",
            "outerHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(outside), "the page has {outside}");
        }
    }
    assert_eq!(server.get("/v1/models").status, 401, "the rest needs one");
    let reply = server.post("/ui", &json!({}));
    reply.refused(
        405,
        "invalid_request_error",
        Some("method_not_supported"),
        None,
    );
}

/// The browser with the page, or the reason why there is none.
fn open(server: &Server, size: (u32, u32), dark: bool) -> Option<Browser> {
    let Some(program) = browser::installed() else {
        eprintln!("skipped: no Chromium here; install it or set SPINNEY_CHROMIUM");
        return None;
    };
    let mut browser = Browser::start(program, size.0, size.1);
    let scheme = if dark { "dark" } else { "light" };
    let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
    browser.call("Emulation.setEmulatedMedia", json!({"features": features}));
    browser.open(&format!("http://{}/ui", server.address()));
    browser.until("document.getElementById('model').textContent.includes('context')");
    Some(browser)
}

fn ask(browser: &mut Browser, prompt: &str) {
    browser.evaluate("document.getElementById('prompt').focus()");
    browser.write(prompt);
    browser.press("Enter", 13);
    browser.until("document.getElementById('status').textContent.startsWith('Done')");
}

fn count(browser: &mut Browser, selector: &str) -> u64 {
    let all = format!("document.querySelectorAll({}).length", json!(selector));
    browser.evaluate(&all).as_u64().unwrap()
}

/// Nothing went wrong; a server need not tell about itself.
fn quiet(browser: &Browser) {
    let told = |complaint: &&Value| {
        let url = complaint["entry"]["url"].as_str().unwrap_or_default();
        complaint["entry"]["source"] != "network" || !url.ends_with("/server_info")
    };
    let complaints: Vec<_> = browser.complaints.iter().filter(told).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn a_chat_shows_tokens_tree_and_chart() {
    let server = Server::start(&["--speculative-ddtree-budget=15"]);
    let Some(mut browser) = open(&server, (1280, 800), false) else {
        return;
    };
    ask(&mut browser, QUESTION);
    let answer = server.post("/v1/chat/completions", &chat(QUESTION)).ok();
    let message = "document.querySelector('.assistant .text').textContent";
    let said = browser.evaluate(message);
    assert_eq!(said, answer["choices"][0]["message"]["content"]);
    // Every token is one element, but the end of the turn, which has no text.
    let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
    assert_eq!(count(&mut browser, ".assistant .token"), tokens - 1);
    assert_eq!(
        count(&mut browser, ".assistant .token.plain"),
        1,
        "the first"
    );
    let drafts = count(&mut browser, ".assistant .token.draft");
    let bonus = count(&mut browser, ".assistant .token.bonus");
    assert!(
        drafts > bonus && bonus > 0,
        "{drafts} drafts, {bonus} bonus"
    );
    let shown = |browser: &mut Browser, id: &str| -> u64 {
        let text = format!("Number(document.getElementById('{id}').textContent)");
        browser.evaluate(&text).as_u64().unwrap()
    };
    assert_eq!(shown(&mut browser, "tokens"), tokens);
    let steps = shown(&mut browser, "steps");
    assert!(0 < steps && steps < tokens / 2, "{steps} steps");
    assert_eq!(count(&mut browser, "#chart .speed"), 1);
    let bars = count(&mut browser, "#chart .point");
    assert!(
        steps <= bars && bars <= 2 * steps,
        "{bars} bars of {steps} steps"
    );
    // A step in the middle drafts without a limit.
    let middle = "(() => { const which = document.getElementById('which'); which.value = 2; \
        which.dispatchEvent(new Event('input')); return true })()";
    browser.evaluate(middle);
    let kept = count(&mut browser, "#tree .node.kept");
    let nodes = count(&mut browser, "#tree .node");
    assert!((16..=17).contains(&nodes), "{nodes} nodes");
    assert!(kept > 0 && count(&mut browser, "#tree .edge.kept") == kept);
    browser.evaluate("document.getElementById('conversation').scrollTop = 0");
    let picture = concat!(env!("CARGO_TARGET_TMPDIR"), "/playground.png");
    std::fs::write(picture, browser.screenshot()).unwrap();
    quiet(&browser);
}

#[test]
fn model_text_is_text_and_failures_are_told() {
    let server = Server::start(&["--speculative-algorithm=DFLASH"]);
    let Some(mut browser) = open(&server, (420, 900), true) else {
        return;
    };
    let paint = "(() => { const answer = new Answer(); const text = '<img src=x onerror=alert(1)>'; \
        const node = (text, parent, depth) => ({ id: 1, text, parent, depth, rank: 0, logprob: -1 }); \
        const step = { mode: 'chain', budget: 1, rows: 2, ms: 1, tokens: 2, path: [1], \
        nodes: [node('a', null, 0), node(text, 0, 1)], bonus: { id: 2, text: '</svg><b>x' } }; \
        answer.take({ choices: [{ delta: { content: text, reasoning_content: text }, step }] }); \
        view.steps = [step]; redraw(); \
        return document.querySelectorAll('main img, main b, main script').length })()";
    assert_eq!(browser.evaluate(paint), 0);
    assert_eq!(count(&mut browser, ".reasoning .token"), 1);
    // The page is no wider than its window.
    let wide = "document.documentElement.scrollWidth <= innerWidth";
    assert_eq!(browser.evaluate(wide), true);
    browser.evaluate("document.getElementById('tools').value = '{'");
    browser.evaluate("document.getElementById('prompt').focus()");
    browser.write("Hello");
    browser.press("Enter", 13);
    browser.until("document.getElementById('status').textContent === 'Failed.'");
    assert_eq!(count(&mut browser, ".fault"), 1);
    browser.evaluate("document.getElementById('tools').value = ''");
    ask(&mut browser, "What is the capital of France?");
    let dropped = browser.evaluate("view.messages.length");
    assert_eq!(dropped, 2, "what failed is not part of the conversation");
    quiet(&browser);
}

#[test]
fn keys_are_sent_and_answers_can_be_stopped() {
    let server = Server::start(&["--api-key=secret"]);
    let Some(program) = browser::installed() else {
        eprintln!("skipped: no Chromium here; install it or set SPINNEY_CHROMIUM");
        return;
    };
    let mut browser = Browser::start(program, 1000, 700);
    browser.open(&format!("http://{}/ui", server.address()));
    browser.until("document.getElementById('model').textContent.includes('not known')");
    let key = "(() => { const key = document.getElementById('key'); key.value = 'secret'; \
        key.dispatchEvent(new Event('change')); return true })()";
    browser.evaluate(key);
    browser.until("document.getElementById('model').textContent.includes('spinney-tiny')");
    ask(&mut browser, "What is the capital of France?");
    browser.evaluate("document.getElementById('prompt').focus()");
    browser.write(QUESTION);
    let stop = "(() => { send(); document.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape' })); return true })()";
    browser.evaluate(stop);
    browser.until("document.getElementById('status').textContent === 'Stopped.'");
    assert_eq!(browser.evaluate("view.running"), Value::Null);
    browser.evaluate("document.getElementById('reset').click()");
    assert_eq!(count(&mut browser, ".message"), 0);
}
