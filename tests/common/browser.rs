//! A browser without a window, driven over its debugging protocol through a pair of pipes.

#![allow(dead_code, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// Where one is installed: `SPINNEY_CHROMIUM`, else the first name that is found on the path.
pub fn installed() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("SPINNEY_CHROMIUM") {
        return Some(path.into());
    }
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&folders)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|path| path.is_file())
}

/// A browser with one page; it ends with the test.
pub struct Browser {
    child: Child,
    /// `None` after the end.
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// What the page complained about.
    pub complaints: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    pub fn start(program: PathBuf, width: u32, height: u32) -> Self {
        let profile = tempfile::tempdir().unwrap();
        // The protocol is spoken on descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"])
            .arg(program)
            .args(["--headless", "--remote-debugging-pipe", "--no-sandbox"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args([
                "--disable-background-networking",
                "--disable-component-update",
            ])
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in output.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).unwrap();
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser = Browser {
            input: child.stdin.take(),
            child,
            messages,
            session: None,
            last_id: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1,
            "mobile": false});
        browser.call("Emulation.setDeviceMetricsOverride", size);
        browser
    }

    /// Calls a method and waits for its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.input.as_mut().unwrap().write_all(&bytes).unwrap();
        let end = Instant::now() + LIMIT;
        loop {
            let answer = self.receive(end, method);
            if answer["id"] == id {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    fn receive(&mut self, end: Instant, what: &str) -> Value {
        let left = end.saturating_duration_since(Instant::now());
        let message = match self.messages.recv_timeout(left) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => panic!("{what} took longer than {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the browser ended during {what}"),
        };
        let params = &message["params"];
        let complaint = match message["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => true,
            "Runtime.consoleAPICalled" => params["type"] == "error" || params["type"] == "warning",
            "Log.entryAdded" => params["entry"]["level"] == "error",
            _ => false,
        };
        if complaint {
            self.complaints.push(params.clone());
        }
        message
    }

    /// The value of an expression, awaited.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "awaitPromise": true,
            "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params);
        let failed = answer.get("exceptionDetails");
        assert!(failed.is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        let end = Instant::now() + LIMIT;
        while self.evaluate(expression) != true {
            if Instant::now() > end {
                let page = self.evaluate("document.body.innerText");
                panic!("{expression} stays false on {page}\n{:?}", self.complaints);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'");
    }

    /// Types into what has the focus.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses and releases a key.
    pub fn press(&mut self, key: &str, code: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key,
                "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// A PNG of what is to be seen.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let answer = self.call("Page.captureScreenshot", json!({"format": "png"}));
        STANDARD.decode(answer["data"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends when its pipe does.
        self.input.take();
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
