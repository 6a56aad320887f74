//! A headless Chromium, driven over its debugging pipe.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    number: u64,
    session: String,
    complaints: VecDeque<String>,
    _profile: tempfile::TempDir,
}

/// The program, if it is here.
pub(crate) fn chromium() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            Command::new(name)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        });
    if found.is_none() {
        println!("skipped: no chromium here (apt-get install chromium)");
    }
    found
}

impl Browser {
    /// Starts it.
    pub(crate) fn start(program: &str) -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        // Its pipe is file handles 3 and 4; a shell puts our two there.
        let mut child = Command::new("sh")
            .args([
                "-c",
                "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1",
            ])
            .arg(program)
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--no-first-run",
                "--remote-debugging-pipe",
                "--window-size=1280,900",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the browser starts");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        let mut browser = Self {
            child,
            to,
            from,
            number: 0,
            session: String::new(),
            complaints: VecDeque::new(),
            _profile: profile,
        };
        let made = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": made["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().expect("an id").to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.ask(domain, json!({}));
        }
        browser
    }

    fn hear(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.from.read_until(0, &mut bytes).expect("readable");
        assert!(bytes.pop() == Some(0), "the browser has gone");
        let message: Value = serde_json::from_slice(&bytes).expect("JSON");
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push_back(params.to_string()),
            Some("Runtime.consoleAPICalled") => self.complaints.push_back(params.to_string()),
            Some("Log.entryAdded") => self.complaints.push_back(params["entry"].to_string()),
            _ => {}
        }
        message
    }

    fn ask(&mut self, method: &str, params: Value) -> Value {
        self.number += 1;
        let number = self.number;
        let mut message = json!({"id": number, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.to
            .write_all(message.to_string().as_bytes())
            .expect("written");
        self.to.write_all(&[0]).expect("written");
        self.to.flush().expect("written");
        loop {
            let answer = self.hear();
            if answer["id"] == number {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// Opens an address.
    pub(crate) fn open(&mut self, url: &str) {
        self.ask("Page.navigate", json!({"url": url}));
    }

    /// What an expression is in the page.
    pub(crate) fn look(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true});
        let found = self.ask("Runtime.evaluate", params);
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// Looks until an expression is true, for a minute at most.
    #[track_caller]
    pub(crate) fn wait(&mut self, expression: &str) {
        for _ in 0..600 {
            // Between two pages there is nothing to look at.
            let params = json!({"expression": expression, "returnByValue": true});
            let found = self.ask("Runtime.evaluate", params);
            if found["result"]["value"] == json!(true) {
                return;
            }
            self.rest(100);
        }
        let body = self.look("document.body.innerText");
        panic!(
            "never: {expression}; the page:\n{}",
            body.as_str().unwrap_or_default()
        );
    }

    /// Lets time pass, in the browser.
    pub(crate) fn rest(&mut self, ms: u64) {
        let pause = format!("new Promise((done) => setTimeout(done, {ms}))");
        let params = json!({"expression": pause, "awaitPromise": true});
        self.ask("Runtime.evaluate", params);
    }

    /// What the page's heap holds, in KiB, after what is garbage has been collected.
    pub(crate) fn heap_kib(&mut self) -> u64 {
        self.ask("HeapProfiler.collectGarbage", json!({}));
        let used = self.ask("Runtime.getHeapUsage", json!({}));
        used["usedSize"].as_f64().map_or(0, |bytes| bytes as u64) / 1024
    }

    /// Presses a key.
    pub(crate) fn press(&mut self, key: &str, code: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let params = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            self.ask("Input.dispatchKeyEvent", params);
        }
    }

    /// Writes text where the cursor is.
    pub(crate) fn write(&mut self, text: &str) {
        self.ask("Input.insertText", json!({"text": text}));
    }

    /// What the page, or the browser about it, has complained of; forgets it.
    pub(crate) fn complaints(&mut self) -> Vec<String> {
        self.look("0");
        self.complaints.drain(..).collect()
    }

    /// A picture of the page, into the folder of `GAPSCOPE_KEEP` if that is set.
    pub(crate) fn keep(&mut self, name: &str, width: u32, dark: bool) {
        use base64::Engine;
        let Some(folder) = std::env::var_os("GAPSCOPE_KEEP") else {
            return;
        };
        let value = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": value}]});
        self.ask("Emulation.setEmulatedMedia", media);
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", size);
        self.rest(600);
        let params = json!({"format": "png", "captureBeyondViewport": true});
        let taken = self.ask("Page.captureScreenshot", params);
        let data = taken["data"].as_str().expect("a picture");
        let bytes = base64::engine::general_purpose::STANDARD.decode(data);
        let to = std::path::PathBuf::from(folder).join(format!("{name}-{value}-{width}.png"));
        std::fs::write(&to, bytes.expect("base64")).expect("written");
        println!("kept: {}", to.display());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
