//! The page and the login form: each one text with its style and script in it, and a
//! policy that allows these, by their hashes, and nothing else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

use crate::report::plot::svg::escape;

const LIVE: &str = include_str!("page/live.html");
const LOGIN: &str = include_str!("page/login.html");
const STYLES: [&str; 3] = [
    include_str!("../report/plot/figure.css"),
    include_str!("../report/html/report.css"),
    include_str!("page/live.css"),
];
const SCRIPTS: [&str; 3] = [
    include_str!("page/draw.js"),
    include_str!("page/state.js"),
    include_str!("page/live.js"),
];

/// Both pages, ready but for the visitor's name.
pub(super) struct Pages {
    style: String,
    script: String,
    live_policy: String,
    login_policy: String,
}

fn hash(text: &str) -> String {
    format!(
        "'sha256-{}'",
        STANDARD.encode(digest(&SHA256, text.as_bytes()))
    )
}

impl Pages {
    pub(super) fn new() -> Self {
        let style = STYLES.concat();
        let script = SCRIPTS.concat();
        let policy = |more: &str| {
            format!(
                "default-src 'none'; style-src {}; {more}form-action 'self'; base-uri 'none'; \
                 frame-ancestors 'none'",
                hash(&style)
            )
        };
        Self {
            live_policy: policy(&format!(
                "script-src {}; connect-src 'self'; img-src data:; ",
                hash(&script)
            )),
            login_policy: policy("img-src data:; "),
            style,
            script,
        }
    }

    /// The live page for `who`, and its policy.
    pub(super) fn live(&self, who: &str, has_session: bool) -> (String, String) {
        let visitor = match (who.is_empty(), has_session) {
            (true, _) => String::new(),
            (false, false) => format!("<span class=\"soft\">{}</span>", escape(who)),
            (false, true) => format!(
                "<form method=\"post\" action=\"/logout\"><span class=\"soft\">{}</span> <button>log \
                 out</button></form>",
                escape(who)
            ),
        };
        // The script first: what is put in elsewhere is never looked at again.
        let text = LIVE
            .replace("{{visitor}}", &visitor)
            .replace("{{style}}", &self.style)
            .replace("{{script}}", &self.script);
        (text, self.live_policy.clone())
    }

    /// The login form, with what was wrong, and its policy.
    pub(super) fn login(&self, why: &str, takes_tokens: bool) -> (String, String) {
        let form = match takes_tokens {
            true => {
                "<form method=\"post\" action=\"/login\"><label for=\"token\">Token</label> <input \
                 id=\"token\" name=\"token\" type=\"password\" autocomplete=\"off\" required \
                 autofocus> <button>log in</button></form><p class=\"soft\">A token of an operator \
                 or a viewer, as <code>gapscope-aggregator tokens add</code> makes it.</p>"
            }
            false => {
                "<p>This server knows its visitors by certificate: give your browser one of an \
                 operator or a viewer, as <code>gapscope-aggregator certs</code> makes it.</p>"
            }
        };
        let why = match why.is_empty() {
            true => String::new(),
            false => format!(
                "<p role=\"alert\" class=\"tone tone-bad\">✗ {}</p>",
                escape(why)
            ),
        };
        let text = LOGIN
            .replace("{{form}}", form)
            .replace("{{why}}", &why)
            .replace("{{style}}", &self.style);
        (text, self.login_policy.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_fetched_from_elsewhere_and_nothing_is_left_to_fill_in() {
        let pages = Pages::new();
        for (text, policy) in [
            pages.live("operator:<b>", true),
            pages.live("", false),
            pages.login("<img src=x>", true),
            pages.login("", false),
        ] {
            for way in [
                " src=\"",
                "href=\"http",
                "@import",
                "url(",
                "{{",
                "<b>",
                "<img",
            ] {
                assert!(!text.contains(way), "{way}");
            }
            assert!(policy.starts_with("default-src 'none'"), "{policy}");
            assert!(!policy.contains("unsafe"), "{policy}");
            assert_eq!(text.matches("<style>").count(), 1);
        }
    }
}
